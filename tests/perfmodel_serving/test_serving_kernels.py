"""Kernel curves of serving engines: by hand, in bounds of physics, and which stands in for which."""

from __future__ import annotations

import numpy as np
import pytest

from groundplane.catalog.resolve import resolve_chip, resolve_cluster, resolve_llm
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_kernels import (
    DecodeCurve,
    ExpertCurve,
    ProductCurve,
    ServingKernels,
)
from groundplane.perfmodel.serving_layout import ServingLayout, formats_of
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_profiles import Correction, correction_in, serving_calibration

CHIPS = ("h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "mi300x", "tpu-v5e", "l40s")


def test_a_product_of_few_rows_is_the_reading_of_its_weights() -> None:
    chip = resolve_chip("h200")
    curve = ProductCurve(0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 8.0)
    read_s = (4096 * 8192 + 1 * (4096 + 8192) * 2) / (0.5 * chip.memory_bytes_per_s)
    assert float(curve.time_s(chip, "fp8", 1, 8192, 4096)) == pytest.approx(read_s, rel=1e-3)


def test_experts_read_the_weights_of_those_that_are_active() -> None:
    chip = resolve_chip("h200")
    curve = ExpertCurve(0.0, 1.0, 0.0, 1.0, 0.0, 8.0, 0.0)
    # Two tokens to one of four experts each: 4 (1 - (3/4)^2) = 1.75 of them.
    read_s = 1.75 * 3 * 4096 * 8192 * 2.0 / chip.memory_bytes_per_s
    assert float(curve.time_s(chip, "bf16", 2, 4096, 8192, 1, 4, 1)) == pytest.approx(read_s, rel=1e-3)


def test_decoding_reads_the_cache_once() -> None:
    chip = resolve_chip("h200")
    curve = DecodeCurve(1e-6, 0.5, 0.0, 1.0, 8.0, 0.0)
    read_s = 32 * 8 * 10_000 * 512.0 / (0.5 * chip.memory_bytes_per_s)
    found = float(curve.time_s(chip, 32, 10_000, 64, 8, 512.0, 256.0))
    assert found == pytest.approx(1e-6 + read_s, rel=0.02)


@pytest.mark.parametrize("chip_name", CHIPS)
@pytest.mark.parametrize("weights", ["bf16", "fp8", "fp8_block", "fp4", "mxfp4", "int4_weight_only"])
def test_no_curve_breaks_through_the_roofs(chip_name: str, weights: str) -> None:
    chip = resolve_chip(chip_name)
    kernels = ServingKernels(chip, "vllm")
    rows = np.array([1.0, 64.0, 1024.0, 16384.0])
    seconds = kernels.product(weights).time_s(chip, weights, rows, 8192, 8192)
    assert (np.diff(seconds) >= 0).all()
    narrowest = max(chip.peak_flops_per_s.values())
    assert (seconds > 2.0 * rows * 8192 * 8192 / narrowest).all()
    grouped = kernels.experts(weights).time_s(chip, weights, rows, 4096, 1536, 8, 128, 1)
    assert (np.diff(grouped) >= 0).all()


def test_a_chip_that_was_not_timed_has_the_shares_of_its_kin() -> None:
    twin = ServingKernels(resolve_chip("h20"), "vllm").product("fp8")
    assert twin == ServingKernels(resolve_chip("h200"), "vllm").product("fp8")


def test_cards_of_one_server_meet_over_pcie() -> None:
    cluster, model = resolve_cluster("l40sx8"), resolve_llm("llama-3.1-70b")
    links = serving_links(cluster)
    assert links.chips_per_domain == 8
    assert serving_links(resolve_cluster("h100x8")).chips_per_domain == 8
    pricer = IterationPricer(cluster.chip, links, model, ServingLayout(tp=8), formats_of(model, "fp8", "fp8"))
    # Two all-reduces a layer; the tables of eight L40S show 5.7 ms for 32 MiB, which 2,048 rows of 8,192 are.
    each_s = float(pricer.price(0.0, 1.0, 2048.0).reduce) / 160
    assert each_s == pytest.approx(5.7e-3, rel=0.1)


def test_corrections_of_both_levels_multiply() -> None:
    known = {"vllm/m": Correction(1.1, 0.9, 9), "vllm/m/c/fp8": Correction(2.0, 0.5, 3)}
    assert correction_in(known, "vllm", "m", "c", "fp8") == Correction(pytest.approx(2.2), 0.45, 3)
    assert correction_in(known, "vllm", "m", "c", "bf16") == Correction(1.1, 0.9, 9)
    assert correction_in(known, "vllm", "m", "other", "fp8") == Correction(1.0, 1.0, 0)
    assert correction_in(known, "sglang", "m", "c", "fp8") == Correction(1.0, 1.0, 0)


def test_a_slow_host_takes_longer_for_each_sequence() -> None:
    calibration = serving_calibration()
    usual, slow = calibration.profile("vllm"), calibration.profile("vllm", "rtx-pro-6000-server")
    assert slow.host_sequence_s > usual.host_sequence_s
    assert calibration.profile("vllm", "h100-80gb-sxm") == usual


def test_what_was_not_measured_has_the_wider_interval() -> None:
    calibration = serving_calibration()
    seen = calibration.spread("tpot", "vllm", "minimax-m2.5", "b200-180gb-sxm", "fp8_block")
    unseen = calibration.spread("tpot", "vllm", "minimax-m2.5", "mi300x", "fp8_block")
    assert seen.ratio_p90 / seen.ratio_p10 < unseen.ratio_p90 / unseen.ratio_p10
    assert (seen.grade, unseen.grade) == ("measured", "family")
