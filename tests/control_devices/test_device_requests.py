"""From a device as people write it to kinds and units: by name, by need, by part; and what is refused."""

from __future__ import annotations

import pytest

from groundplane.catalog.device_needs import kinds_for
from groundplane.catalog.resolve import resolve_chip
from groundplane.control.devices import UNUSED, fits
from groundplane.control.events import DevicePart
from groundplane.control.kinds import described, part_of
from groundplane.spec.device import DeviceSpec, PartSpec
from groundplane.spec.errors import InputError

T = 1e12
GIB = 1 << 30
OFFERED = ("a100-80gb-sxm", "b200", "h100", "l4")


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        (DeviceSpec(), ()),
        (DeviceSpec(kind="h100"), ("h100",)),
        (DeviceSpec(kind="h100-80gb-sxm"), ("h100",)),  # the node used the alias
        (DeviceSpec(kind="a100"), ("a100-80gb-sxm",)),
        (DeviceSpec(bf16_flops_per_s=500 * T), ("h100", "b200")),
        (DeviceSpec(memory_bytes=100 * GIB), ("b200",)),
        (DeviceSpec(memory_bytes=20 * GIB), ("l4", "a100-80gb-sxm", "h100", "b200")),
        (DeviceSpec(scaleup=8), ("a100-80gb-sxm", "h100", "b200")),
        (
            DeviceSpec(bf16_flops_per_s=300 * T, memory_bytes=80 * GIB, scaleup=8),
            ("a100-80gb-sxm", "h100", "b200"),
        ),
    ],
)
def test_kinds_that_will_do_the_least_capable_first(device: DeviceSpec, kinds: tuple[str, ...]) -> None:
    assert kinds_for(device, OFFERED) == kinds


@pytest.mark.parametrize(
    ("device", "field", "rule"),
    [
        (DeviceSpec(kind="h10"), "device.kind", "offered: a100-80gb-sxm, b200, h100, l4"),
        (DeviceSpec(bf16_flops_per_s=9000 * T), "device.bf16", "the fastest device offered"),
        (DeviceSpec(memory_bytes=1000 * GIB), "device.memory", "at most 180 GiB"),
        (DeviceSpec(scaleup=999), "device.scaleup", "the largest scale-up domain offered"),
    ],
)
def test_needs_that_nobody_meets_say_what_there_is(device: DeviceSpec, field: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        kinds_for(device, OFFERED)
    assert caught.value.field == field
    assert rule in caught.value.rule


@pytest.mark.parametrize(
    ("chip", "profiles", "smallest_bytes"),
    [
        ("a100-40gb", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", 5 * GIB),
        ("a100", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", 10 * GIB),
        ("h100", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", 10 * GIB),
        ("h200", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", 141 * GIB // 8),
        ("b200", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", 180 * GIB // 8),
        ("mi300x", "", 0),
    ],
)
def test_the_published_profiles(chip: str, profiles: str, smallest_bytes: int) -> None:
    kind = described(chip, resolve_chip(chip))
    assert [profile.name for profile in kind.profiles] == profiles.split()
    for profile in kind.profiles:
        compute = int(profile.name[0])
        assert profile.units == compute * 1000
        assert profile.max_instances == ("+me" in profile.name)
        assert all(start + profile.num_slots <= 8 for start in profile.starts)
        assert profile.memory_bytes == kind.memory_bytes * profile.num_slots // 8
    if kind.profiles:
        assert kind.profiles[0].memory_bytes == smallest_bytes
        assert [p.starts for p in kind.profiles] == [
            (0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5, 6), (0, 2, 4, 6), (0, 2, 4), (0, 4), (0,), (0,)
        ]  # fmt: skip


KINDS = {name: described(name, resolve_chip(name)) for name in ("h100", "l4")}


def test_parts_in_units() -> None:
    assert part_of(PartSpec(profile="2g.20gb"), (), KINDS) == (DevicePart(2000, 0, "2g.20gb"), ("h100",))
    assert part_of(PartSpec(compute=0.25, memory_bytes=GIB), ("l4",), KINDS) == (
        DevicePart(1750, GIB),
        ("l4",),
    )
    # Time slices are equal fractions: a third of the time, and of the memory of the smallest kind.
    part, kinds = part_of(PartSpec(time_slices=3), (), KINDS)
    assert (part.units, kinds) == (333 * 7, ("h100", "l4"))
    assert part.memory_bytes == 24 * GIB * 333 // 1000
    assert fits(UNUSED, part, KINDS["l4"])


@pytest.mark.parametrize(
    ("part", "kinds", "field", "nearest"),
    [
        (PartSpec(profile="2g.10gb"), (), "device.part.profile", "2g.20gb"),
        (PartSpec(profile="1g.10gb"), ("l4",), "device.part.profile", None),
        (PartSpec(compute=0.5, memory_bytes=200 * GIB), (), "device.part.memory", None),
        (PartSpec(compute=0.5), ("tpu",), "device.part", None),
    ],
)
def test_parts_that_nobody_has(
    part: PartSpec, kinds: tuple[str, ...], field: str, nearest: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        part_of(part, kinds, KINDS)
    assert (caught.value.field, caught.value.nearest) == (field, nearest)
