"""Speed by placement: stated factors, and the performance model where a job says what it trains."""

from __future__ import annotations

import msgspec
import pytest

from groundplane.catalog import resolve_cluster
from groundplane.catalog.reliability import reliability_names, resolve_reliability
from groundplane.control.actions import RankPlacement
from groundplane.sim.faults import FaultRates
from groundplane.sim.physics import SLOWDOWN_BY_LEVEL, PlacedPhysics
from groundplane.sim.site import equal_site, site_of
from groundplane.sim.training_speed import TrainingSpeed
from groundplane.sim.workload import SimJob, Training, gang_of
from groundplane.spec.errors import InputError

S = 10**9
ALL = tuple(range(8))


def on(*numbers: int) -> tuple[RankPlacement, ...]:
    return tuple(RankPlacement(f"n{number}", ALL) for number in numbers)


def job(devices: int, training: Training | None = None) -> SimJob:
    return SimJob("j", 0, gang_of(devices, 8), 100 * S, 100 * S, training=training)


def test_a_gang_is_slower_the_more_levels_it_spreads_over() -> None:
    physics = PlacedPhysics(equal_site(16, 8, nodes_per_leaf=2, leaves_per_spine=2))
    two = job(16)
    assert [physics.slowdown(two, on(*nodes)) for nodes in ((0, 1), (1, 2), (3, 4))] == list(
        SLOWDOWN_BY_LEVEL[:3]
    )
    assert physics.run_ns(100 * S, two, on(3, 4)) == 110 * S
    assert physics.slowdown(job(8), on(5)) == 1.0


def test_what_must_spread_by_its_size_is_not_slowed() -> None:
    physics = PlacedPhysics(equal_site(16, 8, nodes_per_leaf=2, leaves_per_spine=2))
    four = job(32)
    assert physics.slowdown(four, on(0, 1, 2, 3)) == 1.0
    assert physics.slowdown(four, on(0, 2, 4, 6)) == SLOWDOWN_BY_LEVEL[2]


def test_a_known_model_has_the_speed_that_the_performance_model_says() -> None:
    """Above thin leaves a scattered gang is slower; how much depends on what it trains."""
    spec = resolve_cluster("dgx-h100x16")
    fabric = msgspec.structs.replace(spec.fabric, nodes_per_leaf=4, oversubscription=4.0)
    spec = msgspec.structs.replace(spec, fabric=fabric)
    physics = PlacedPhysics(site_of(spec), TrainingSpeed(spec))
    work = job(32, Training("llama-3-8b", 32, 4096, 100))
    assert physics.slowdown(work, on(0, 1, 2, 3)) == 1.0
    scattered = physics.slowdown(work, on(0, 4, 8, 12))
    assert 1.0 < physics.slowdown(work, on(0, 1, 4, 5)) <= scattered < 3.0
    step_s = TrainingSpeed(spec).step_s(work, 4, (1,))
    assert physics.ideal_run_ns(work) == int(100 * step_s * S)
    parameters = 8.03e9
    assert physics.checkpoint_ns(work) / S == pytest.approx(14 * parameters / (2e9 * 4), rel=0.01)


def test_a_model_that_cannot_fit_is_refused() -> None:
    speed = TrainingSpeed(resolve_cluster("dgx-h100x4"))
    with pytest.raises(InputError, match=r"llama-3.1-405b does not fit 8 x"):
        speed.step_s(job(8, Training("llama-3.1-405b", 8, 4096)), 1, ())
    with pytest.raises(InputError, match="did you mean"):
        speed.step_s(job(8, Training("lama-3-8b", 8, 4096)), 1, ())


def test_reliability_is_data() -> None:
    assert reliability_names() == ["llama-3", "rsc-1", "rsc-2"]
    llama = FaultRates.of(resolve_reliability("llama-3"))
    per_day = llama.ranks_per_device_day * 16_384 + llama.nodes_per_node_day * 2_048
    assert per_day * 54 == pytest.approx(419, rel=0.001)
    assert FaultRates.of(resolve_reliability("rsc-2")).nodes_per_node_day == 2.34e-3
    assert llama.scaled(2.0).mean_repair_s == llama.mean_repair_s
