"""Output tokens a second of saturated engines against published throughput tables.

Rows say how many requests were under way, or "max": as many as the cache holds, up to what engines allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_closed import ClosedLoad, closed_times
from groundplane.perfmodel.serving_layout import CacheCapacity, ServingLayout, cache_capacity, formats_of
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_profiles import EngineProfile, serving_calibration
from groundplane.perfmodel.serving_tables import EngineGrids, engine_grids, engine_seconds
from groundplane.perfmodel.validation.chip_names import chip_named
from groundplane.perfmodel.validation.report import Excluded, Outcome
from groundplane.perfmodel.validation.table import Row
from groundplane.spec.errors import InputError

COLUMNS: Final = ("source", "model", "precision", "gpu", "tp", "isl", "osl", "concurrency_or_batch", "metric",
                  "value")  # fmt: skip

_METRICS: Final = ("total_output_throughput", "output_throughput_per_gpu")
_WEIGHTS: Final = {"FP8": "fp8", "FP16": "bf16", "BF16": "bf16"}
ENGINE: Final = "trtllm-0"
"""Releases of TensorRT-LLM before 1.0, with engines built ahead of time."""

_CARDS: Final = 8
_MEMORY_SHARE: Final = 0.97
_RESERVED_BYTES: Final = 1.5e9
"""Those engines take 90 to 95 % of what weights and activations leave, not of the whole memory."""

MOST_SEQUENCES: Final = 2048.0
"""What TensorRT-LLM's benchmark lets run at the same time at most, where memory holds as many."""

_MODELS: Final = (
    (r"v3\.1 405B", "llama-3.1-405b"), (r"v3\.1 70B", "llama-3.1-70b"), (r"v3\.1 8B", "llama-3.1-8b"),
    (r"v3 70B", "llama-3-70b"), (r"LLaMA 70B", "llama-2-70b"), (r"LLaMA 7B", "llama-2-7b"),
    (r"Mistral 7B", "mistral-7b"), (r"Mixtral 8x7B", "mixtral-8x7b"), (r"GPT-J 6B", "gpt-j-6b"),
    (r"Falcon 180B", "falcon-180b"),
)  # fmt: skip


@dataclass(frozen=True)
class ThroughputCase:
    """One row: an engine under so many requests, and the output tokens a second that it gave."""

    row: int
    source: str
    model_name: str
    chip: str
    grids: EngineGrids
    capacity: CacheCapacity
    load: ClosedLoad
    measured: float

    def predicted(self, profile: EngineProfile) -> float:
        """Output tokens a second of the whole engine under a profile."""
        return closed_times(
            engine_seconds(self.grids, profile), profile, self.capacity, self.load
        ).output_tokens_per_s


def throughput_outcomes(rows: list[Row]) -> tuple[list[Outcome], list[Excluded]]:
    """Output tokens a second of a whole engine, measured and predicted; other metrics are left out."""
    cases, excluded = throughput_cases(rows)
    calibration = serving_calibration()
    profile, spread = calibration.profile(ENGINE), calibration.spreads[f"throughput/{ENGINE}"]
    outcomes = []
    for case in cases:
        rate = case.predicted(profile)
        outcomes.append(
            Outcome(
                row=case.row,
                source=case.source,
                measured=case.measured,
                predicted=rate,
                low=rate * spread.ratio_p10,
                high=rate * spread.ratio_p90,
            )
        )
    return outcomes, excluded


def throughput_cases(rows: list[Row]) -> tuple[list[ThroughputCase], list[Excluded]]:
    """Cases, and for each other row why it is none."""
    cases: list[ThroughputCase] = []
    excluded: list[Excluded] = []
    for row in rows:
        try:
            found = _case(row)
        except InputError as error:
            if error.file is not None:
                raise
            found = str(error)
        if isinstance(found, str):
            excluded.append(Excluded(row.line, found))
        else:
            cases.append(found)
    return cases, excluded


def _case(row: Row) -> ThroughputCase | str:
    if row.text("metric") not in _METRICS or "TensorRT" not in row.text("source"):
        return f"metric {row.text('metric')!r} of {row.text('source')[:30]!r} is not compared"
    name = next((known for pattern, known in _MODELS if re.search(pattern, row.text("model"))), None)
    weights = _WEIGHTS.get(row.text("precision"))
    chip = chip_named(row.text("gpu"))
    if name is None or weights is None or chip is None:
        return f"{row.text('model')} in {row.text('precision')} on {row.text('gpu')} is not known"
    cluster, model = resolve_cluster(f"{chip}x{_CARDS}"), resolve_llm(name)
    tp = int(row.positive("tp"))
    layout = ServingLayout(tp=tp, expert_tp=tp if model.is_moe else 1).checked(model)
    formats = formats_of(model, weights, "fp8" if weights == "fp8" else "bf16")
    capacity = cache_capacity(
        cluster.chip, model, layout, formats, memory_share=_MEMORY_SHARE, reserved_bytes=_RESERVED_BYTES
    )
    prompt, output = row.positive("isl"), row.positive("osl")
    load = min(capacity.num_sequences(prompt + output / 2.0), MOST_SEQUENCES)
    if row.text("concurrency_or_batch") != "max":
        load = row.positive("concurrency_or_batch")
    if load < 1:
        return "the cache holds no request"
    links = serving_links(cluster)
    pricer = IterationPricer(cluster.chip, links, model, layout, formats, engine=ENGINE)
    return ThroughputCase(
        row=row.line,
        source=row.text("source"),
        model_name=name,
        chip=chip,
        grids=engine_grids(pricer),
        capacity=capacity,
        load=ClosedLoad(prompt, output, load),
        measured=row.positive("value") * (tp if row.text("metric").endswith("per_gpu") else 1),
    )
