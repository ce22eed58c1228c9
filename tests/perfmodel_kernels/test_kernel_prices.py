"""Prices of kernels on real chips: which evidence is used, and that limits and order hold on every chip."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from groundplane.catalog.resolve import resolve_chip
from groundplane.perfmodel.curves import MatmulCurve
from groundplane.perfmodel.kernel_catalogue import base_curve, calibration
from groundplane.perfmodel.kernel_fit import fit_matmul
from groundplane.perfmodel.kernels import (
    attention_time_s,
    kernel_evidence,
    launch_overhead_s,
    matmul_curve,
    matmul_time_s,
    memory_bound_time_s,
)
from groundplane.spec.cluster import BandwidthPoint, ChipSpec, MatmulPoint, MeasuredChip, OverheadPoint
from groundplane.spec.errors import InputError

CHIPS = (
    "h100",
    "h800",
    "a100",
    "v100",
    "b200",
    "gb300",
    "mi300x",
    "l40s",
    "tpu-v5p",
    "gaudi2",
    "trn2-chip",
    "grace",
)
SIDES = 2.0 ** np.arange(4, 16)


def probed(points: list[MatmulPoint]) -> ChipSpec:
    """A CPU with measured points, as the probe writes it."""
    measured = MeasuredChip(
        matmuls=tuple(points),
        bandwidths=(
            BandwidthPoint(2**20, 40e9),
            BandwidthPoint(2**28, 10e9, processes=2),
            BandwidthPoint(2**30, 8e9, processes=2),
        ),
        overheads=(OverheadPoint("add", 3e-6), OverheadPoint("relu", 5e-6)),
    )
    return ChipSpec(
        name="this-cpu",
        vendor="x",
        kind="cpu",
        peak_flops_per_s={"fp32": 100e9},
        memory_bytes=2**34,
        memory_bytes_per_s=12e9,
        num_cores=1,
        measured=measured,
    )


def timed(curve: MatmulCurve, shapes: list[tuple[int, int, int]]) -> list[MatmulPoint]:
    return [MatmulPoint("fp32", m, n, k, float(curve.time_s(m, n, k)), 2) for m, n, k in shapes]


SHAPES = [
    (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 256, 64), (64, 1024, 1024),
    (2048, 512, 512), (512, 2048, 512), (128, 512, 2048), (32, 512, 512), (256, 64, 4096), (1024, 1024, 1024),
]  # fmt: skip


def test_fit_finds_the_curve_that_made_the_points() -> None:
    start = base_curve(probed([]), "fp32")
    truth = msgspec.structs.replace(start, efficiency=0.7, floor_s=2e-6, fill_k=20.0, memory_efficiency=0.9)
    fitted = fit_matmul(timed(truth, SHAPES), start)
    m, n, k = np.array([(200, 300, 400), (2000, 100, 900), (48, 48, 3000)], dtype=float).T
    assert fitted.time_s(m, n, k) == pytest.approx(truth.time_s(m, n, k), rel=0.03)


def test_one_disturbed_timing_does_not_bend_the_fit() -> None:
    start = base_curve(probed([]), "fp32")
    truth = msgspec.structs.replace(start, efficiency=0.7, floor_s=2e-6, fill_k=20.0)
    points = timed(truth, SHAPES)
    points[5] = msgspec.structs.replace(points[5], time_s=points[5].time_s * 20)
    fitted = fit_matmul(points, start)
    assert float(fitted.time_s(512, 512, 512)) == pytest.approx(float(truth.time_s(512, 512, 512)), rel=0.05)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3"):
        fit_matmul(timed(base_curve(probed([]), "fp32"), SHAPES[:2]), base_curve(probed([]), "fp32"))


def test_probed_chip_is_priced_from_its_own_points() -> None:
    truth = msgspec.structs.replace(base_curve(probed([]), "fp32"), efficiency=0.4, floor_s=1e-6)
    chip = probed(timed(truth, SHAPES))
    assert kernel_evidence(chip, "matmul", "fp32").grade == "measured"
    assert float(matmul_time_s(chip, "fp32", 700, 700, 700)) == pytest.approx(
        float(truth.time_s(700, 700, 700)), rel=0.05
    )
    # Only the largest working sets, as many processes at once as were tried: the median of 8 and 10 GB/s.
    assert float(memory_bound_time_s(chip, 9e9)) == pytest.approx(1.0, rel=1e-3)
    assert launch_overhead_s(chip) == pytest.approx(4e-6)


def test_evidence_grades() -> None:
    assert kernel_evidence(resolve_chip("h100"), "matmul").grade == "measured"
    assert kernel_evidence(resolve_chip("h100"), "attention", "fp8").grade == "measured"
    assert kernel_evidence(resolve_chip("h800"), "matmul").grade == "family"
    assert kernel_evidence(resolve_chip("mi300x"), "matmul").grade == "family"
    assert kernel_evidence(resolve_chip("trn2-chip"), "matmul").grade == "data-sheet"
    assert kernel_evidence(resolve_chip("grace"), "attention").grade == "data-sheet"


def test_less_evidence_means_a_wider_interval() -> None:
    def width(chip: str) -> float:
        evidence = kernel_evidence(resolve_chip(chip), "matmul")
        assert evidence.ratio_p10 <= evidence.ratio_p50 <= evidence.ratio_p90
        return evidence.ratio_p90 / evidence.ratio_p10

    assert width("h100") < width("mi300x") < width("trn2-chip")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in CHIPS for dtype in resolve_chip(name).peak_flops_per_s],
)
def test_no_chip_beats_its_roofline_and_more_work_is_never_quicker(name: str, dtype: str) -> None:
    chip = resolve_chip(name)
    peak = chip.peak(dtype)
    m, n, k = np.meshgrid(SIDES, SIDES, SIDES, indexing="ij")
    seconds = matmul_time_s(chip, dtype, m, n, k)
    assert np.all(2.0 * m * n * k / seconds <= peak * (1 + 1e-9))
    # A correction may dip by some per cent a doubling where physics is level: along tokens where only weights
    # are streamed, along columns where the loop's latency is all there is.
    slopes = [np.diff(np.log(seconds), axis=axis) for axis in range(3)]
    assert slopes[0].min() >= -0.1
    assert slopes[1].min() >= -0.03
    assert slopes[2].min() >= -1e-9


@pytest.mark.parametrize("name", CHIPS)
def test_attention_stays_under_the_roof(name: str) -> None:
    chip = resolve_chip(name)
    seq = 2.0 ** np.arange(5, 17)
    seconds = attention_time_s(chip, "bf16", 2, seq, seq, 32, 8, 128)
    assert np.all(2.0 * 2 * 32 * seq**2 * 128 / seconds <= chip.peak("bf16"))
    assert np.all(np.diff(seconds) > 0)
    backward = attention_time_s(chip, "bf16", 2, seq, seq, 32, 8, 128, backward=True)
    assert np.all(backward > seconds)


def test_shape_of_each_pass() -> None:
    chip = resolve_chip("h100")
    curve = matmul_curve(chip, "bf16")
    assert matmul_time_s(chip, "bf16", 8192, 4096, 1024, which="data_gradient") == curve.time_s(
        8192, 1024, 4096
    )
    forward = float(curve.time_s(1024, 4096, 8192))
    weights = float(matmul_time_s(chip, "bf16", 8192, 4096, 1024, which="weight_gradient"))
    assert forward < weights < 1.25 * forward


def test_format_a_chip_lacks_runs_as_the_one_it_has() -> None:
    chip = resolve_chip("a100")
    assert matmul_time_s(chip, "fp8", 8192, 8192, 8192) == pytest.approx(
        matmul_time_s(chip, "bf16", 8192, 8192, 8192), rel=0.01
    )


def test_spellings_of_formats_and_unknown_ones() -> None:
    chip = resolve_chip("h100")
    assert matmul_time_s(chip, "bfloat16", 64, 64, 64) == matmul_time_s(chip, "bf16", 64, 64, 64)
    with pytest.raises(InputError, match="bf17") as error:
        matmul_time_s(chip, "bf17", 64, 64, 64)
    assert error.value.nearest == "bf16"


def test_what_if_twice_the_memory_bandwidth() -> None:
    chip = resolve_chip("h100")
    faster = msgspec.structs.replace(chip, memory_bytes_per_s=2 * chip.memory_bytes_per_s)
    thin = float(matmul_time_s(chip, "bf16", 16, 16384, 16384))
    assert 0.45 * thin < float(matmul_time_s(faster, "bf16", 16, 16384, 16384)) < 0.7 * thin


def test_slow_cores_of_a_family_lose_less() -> None:
    h100, h20 = resolve_chip("h100"), resolve_chip("h20")

    def share(chip: ChipSpec) -> float:
        return 2 * 8192.0**3 / float(matmul_time_s(chip, "bf16", 8192, 8192, 8192)) / chip.peak("bf16")

    assert share(h100) < 0.85 < share(h20)


def test_known_numbers_of_large_products() -> None:
    # Best of the table on H100: 839 TFLOP/s, typical large ones 767.
    assert 2 * 8192.0**3 / float(
        matmul_time_s(resolve_chip("h100"), "bf16", 8192, 8192, 8192)
    ) == pytest.approx(780e12, rel=0.05)
    # Maximum achievable product measured on MI300X: 668 TFLOP/s of 1307.
    assert 2 * 8192.0**3 / float(
        matmul_time_s(resolve_chip("mi300x"), "bf16", 8192, 8192, 8192)
    ) == pytest.approx(640e12, rel=0.05)


def test_shipped_calibration_is_complete() -> None:
    for kind in ("matmul", "attention"):
        table = calibration(kind)
        nodes = int(np.prod([len(axis) for axis in table.axes]))
        assert all(len(curve.correction) == nodes for curve in table.chips)
        assert all(curve.residuals.num_points >= 100 for curve in table.chips)
        assert {curve.name for curve in table.family_curves} >= {"hopper", "blackwell", "any"}
