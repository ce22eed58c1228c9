"""Kernels of serving engines: products at few rows, grouped products of experts, decoding attention.

Each curve is a roofline with few fitted numbers, relative to the data sheet: a floor, shares of memory
bandwidth and of peak that are reached, how sharply the two roofs meet, and what narrow shapes lose.
`calibration/fit_serving_kernels.py` writes them to `catalog/calibration/serving_kernels.json`, by chip,
engine and number format. Knows neither models nor layouts.

All evaluations are vectorised over numpy arrays; results are float64 seconds of one kernel (or of the few
that one grouped product takes).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final, TypeVar

import msgspec
import numpy as np

from groundplane.perfmodel.curves import smooth_max
from groundplane.perfmodel.evidence import FloatArray, Numbers
from groundplane.spec.cluster import ChipSpec

STORED_BYTES: Final = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "fp4": 0.5625, "mxfp4": 0.53125,
    "int8_weight_only": 1.0, "int4_weight_only": 0.53,
}  # fmt: skip
"""Bytes of one weight, scales included: fp4 has a one-byte scale for 16 weights, mxfp4 one for 32, int4 two
bytes for 64."""

_COMPUTED_IN: Final = {"fp8": "fp8", "fp8_block": "fp8", "fp4": "fp4", "mxfp4": "fp8", "int8": "int8"}
"""Format whose peak bounds products with such weights; bf16 for those not named."""

_NEAREST: Final = {
    "fp16": ("bf16",), "fp8": ("fp8_block", "bf16"), "fp8_block": ("fp8", "bf16"), "int8": ("fp8", "bf16"),
    "fp4": ("mxfp4", "fp8_block", "fp8", "bf16"), "mxfp4": ("fp4", "fp8_block", "bf16"),
    "int4_weight_only": ("int8_weight_only", "bf16"), "int8_weight_only": ("int4_weight_only", "bf16"),
}  # fmt: skip
"""Formats whose curve stands in for one that was not timed."""

_ENGINES: Final = ("trtllm", "sglang", "vllm")
_FAMILIES: Final = ("b200-180gb-sxm", "h200-141gb-sxm", "a100-80gb-sxm")
"""Chips whose curves stand in for those of chips not timed: the first of them that has all the formats."""

_ELEMENT_BYTES: Final = 2.0
_EXPERT_PRODUCTS: Final = 3.0
"""Matrices of an expert with a gate: into it twice, out of it once."""


class ProductCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of a product (m, k) by (k, n): floor + (memory^p + compute^p)^(1/p), p = `sharpness`.

    memory = (k (n + `extra_columns`) weight bytes + m (n + k) activation bytes) / (`memory_share` x
    bandwidth): few columns leave cores without work. compute = 2 (m + `extra_rows`) (n + `fill_columns`) k /
    (`peak_share` x peak).
    """

    floor_s: float
    memory_share: float
    extra_columns: float
    peak_share: float
    extra_rows: float
    fill_columns: float
    sharpness: float

    def time_s(self, chip: ChipSpec, weights: str, m: Numbers, n: Numbers, k: Numbers) -> FloatArray:
        """Seconds; `weights` is their format."""
        rows, columns, depth = (np.asarray(value, dtype=np.float64) for value in (m, n, k))
        moved = depth * (columns + self.extra_columns) * STORED_BYTES[weights]
        moved = moved + rows * (columns + depth) * _ELEMENT_BYTES
        work = 2.0 * (rows + self.extra_rows) * (columns + self.fill_columns) * depth
        memory_s = moved / (chip.memory_bytes_per_s * self.memory_share)
        compute_s = work / (chip.peak(_COMPUTED_IN.get(weights, "bf16")) * self.peak_share)
        return np.asarray(self.floor_s + smooth_max(memory_s, compute_s, self.sharpness), dtype=np.float64)


class ExpertCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of the experts of one layer on one rank, from sorting rows by expert to adding them up again.

    With A = E/ep (1 - (1 - k/E)^t) active experts and R = t k / ep rows: memory = A 3 h (i/tp +
    `extra_columns`) weight bytes / (`memory_share` x bandwidth), compute = 6 h i/tp (R + A `extra_rows`) /
    (`peak_share` x peak), joined as in `ProductCurve`; rows are moved `passes` times.
    """

    floor_s: float
    memory_share: float
    extra_columns: float
    peak_share: float
    extra_rows: float
    sharpness: float
    passes: float

    def time_s(
        self, chip: ChipSpec, weights: str, tokens: Numbers, hidden: float, inner: float, top_k: float,
        experts: float, ranks: float,
    ) -> FloatArray:  # fmt: skip
        """Seconds.

        Args:
            chip, weights: and the weights' format.
            tokens: of all ranks that share the experts.
            hidden, inner: widths of the model and of this rank's part of an expert.
            top_k, experts: chosen of how many.
            ranks: that the experts are spread over.
        """
        count = np.asarray(tokens, dtype=np.float64)
        rows = count * (top_k / ranks)
        least = np.minimum(rows, 1.0)
        active = np.maximum(experts / ranks * (1.0 - (1.0 - top_k / experts) ** count), least)
        moved = active * _EXPERT_PRODUCTS * hidden * (inner + self.extra_columns) * STORED_BYTES[weights]
        work = 2.0 * _EXPERT_PRODUCTS * hidden * inner * (rows + active * self.extra_rows)
        memory_s = moved / (chip.memory_bytes_per_s * self.memory_share)
        compute_s = work / (chip.peak(_COMPUTED_IN.get(weights, "bf16")) * self.peak_share)
        sorting_s = rows * hidden * (_ELEMENT_BYTES * self.passes / chip.memory_bytes_per_s)
        joined = smooth_max(memory_s, compute_s, self.sharpness)
        return np.asarray(self.floor_s + joined + sorting_s, dtype=np.float64)


class DecodeCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of attention of one query a sequence over a paged cache, one layer on one rank.

    memory = the cache of context + `extra_tokens` tokens / (`memory_share` x bandwidth), compute = the
    products / (`peak_share` x bf16 peak), joined as in `ProductCurve`, and `head_s` for each sequence and
    key head.
    """

    floor_s: float
    memory_share: float
    head_s: float
    peak_share: float
    sharpness: float
    extra_tokens: float

    def time_s(
        self, chip: ChipSpec, sequences: Numbers, context: Numbers, heads: float, kv_heads: float,
        stored_bytes: float, width: float, queries: Numbers = 1.0,
    ) -> FloatArray:  # fmt: skip
        """Seconds.

        Args:
            chip: what computes.
            sequences, context: how many, and tokens each has in the cache.
            heads, kv_heads: of this rank.
            stored_bytes: of one token of one key head in the cache.
            width: of a key and a value together.
            queries: of each sequence, more than one with drafts.
        """
        count, seen = (np.asarray(value, dtype=np.float64) for value in (sequences, context))
        moved = count * kv_heads * (seen + self.extra_tokens) * stored_bytes
        work = count * heads * seen * (2.0 * width) * np.asarray(queries, dtype=np.float64)
        memory_s = moved / (chip.memory_bytes_per_s * self.memory_share)
        compute_s = work / (chip.peak("bf16") * self.peak_share)
        joined = smooth_max(memory_s, compute_s, self.sharpness)
        return np.asarray(self.floor_s + joined + count * kv_heads * self.head_s, dtype=np.float64)


class ServingKernelTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration file: curves keyed "CHIP/ENGINE/FORMAT"; decoding's format is the cache's."""

    source: str
    products: dict[str, ProductCurve]
    experts: dict[str, ExpertCurve]
    decode: dict[str, DecodeCurve]
    latent: dict[str, DecodeCurve]


_Curve = TypeVar("_Curve", ProductCurve, ExpertCurve, DecodeCurve)


@dataclass(frozen=True)
class ServingKernels:
    """The curves of one chip under one engine; those not timed are those of the nearest kin."""

    chip: ChipSpec
    engine: str

    def product(self, weights: str) -> ProductCurve:
        """Of dense products with weights in a format."""
        return _nearest(_tables().products, self.chip, self.engine, weights)

    def experts(self, weights: str) -> ExpertCurve:
        """Of experts with weights in a format."""
        return _nearest(_tables().experts, self.chip, self.engine, weights)

    def decode(self, cache: str, *, latent: bool) -> DecodeCurve:
        """Of decoding attention over a cache in a format, of keys and values or of latents."""
        return _nearest(_tables().latent if latent else _tables().decode, self.chip, self.engine, cache)


def _nearest(curves: Mapping[str, _Curve], chip: ChipSpec, engine: str, name: str) -> _Curve:
    """The chip's own curve under its engine, under another, of a kindred format, of a kindred chip."""
    plain = engine.partition("-")[0]
    for family in (chip.name, *_kin(chip)):
        for wanted in (name, *_NEAREST.get(name, ())):
            for one in (plain, *_ENGINES):
                found = curves.get(f"{family}/{one}/{wanted}")
                if found is not None:
                    return found
    return next(iter(curves.values()))


def _kin(chip: ChipSpec) -> Iterator[str]:
    """Chips to take curves from, the likest first: by the narrowest format that both compute in."""
    narrow = "fp4" in chip.peak_flops_per_s, "fp8" in chip.peak_flops_per_s
    first = 0 if narrow[0] else 1 if narrow[1] else 2
    yield _FAMILIES[first]
    yield from (name for name in _FAMILIES if name != _FAMILIES[first])


@functools.cache
def _tables() -> ServingKernelTables:
    text = resources.files("groundplane.catalog").joinpath("calibration", "serving_kernels.json").read_bytes()
    return msgspec.json.decode(text, type=ServingKernelTables)
