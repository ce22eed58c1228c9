"""Output tokens a second of saturated engines against published throughput tables.

Rows say how many requests were under way, or "max": as many as the cache holds, up to what engines allow.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_closed import ClosedLoad, closed_times
from groundplane.perfmodel.serving_layout import ServingLayout, cache_capacity, formats_of
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_profiles import serving_calibration
from groundplane.perfmodel.serving_tables import engine_grids, engine_seconds
from groundplane.perfmodel.validation.chip_names import chip_named
from groundplane.perfmodel.validation.report import Excluded, Outcome
from groundplane.perfmodel.validation.table import Row
from groundplane.spec.errors import InputError

COLUMNS: Final = ("source", "model", "precision", "gpu", "tp", "isl", "osl", "concurrency_or_batch", "metric",
                  "value")  # fmt: skip

_METRICS: Final = ("total_output_throughput", "output_throughput_per_gpu")
_WEIGHTS: Final = {"FP8": "fp8", "FP16": "bf16", "BF16": "bf16"}
_ENGINE: Final = "trtllm"
_CARDS: Final = 8
_MOST_SEQUENCES: Final = 2048.0
"""What TensorRT-LLM's benchmark lets run at the same time at most, where memory holds as many."""

_MODELS: Final = (
    (r"v3\.1 405B", "llama-3.1-405b"), (r"v3\.1 70B", "llama-3.1-70b"), (r"v3\.1 8B", "llama-3.1-8b"),
    (r"v3 70B", "llama-3-70b"), (r"LLaMA 70B", "llama-2-70b"), (r"LLaMA 7B", "llama-2-7b"),
    (r"Mistral 7B", "mistral-7b"), (r"Mixtral 8x7B", "mixtral-8x7b"), (r"GPT-J 6B", "gpt-j-6b"),
    (r"Falcon 180B", "falcon-180b"),
)  # fmt: skip


def throughput_outcomes(rows: list[Row]) -> tuple[list[Outcome], list[Excluded]]:
    """Output tokens a second of a whole engine, measured and predicted; other metrics are left out."""
    outcomes: list[Outcome] = []
    excluded: list[Excluded] = []
    for row in rows:
        try:
            found = _outcome(row)
        except InputError as error:
            if error.file is not None:
                raise
            found = str(error)
        if isinstance(found, str):
            excluded.append(Excluded(row.line, found))
        else:
            outcomes.append(found)
    return outcomes, excluded


def _outcome(row: Row) -> Outcome | str:
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
    capacity = cache_capacity(cluster.chip, model, layout, formats)
    prompt, output = row.positive("isl"), row.positive("osl")
    load = min(capacity.num_sequences(prompt + output / 2.0), _MOST_SEQUENCES)
    if row.text("concurrency_or_batch") != "max":
        load = row.positive("concurrency_or_batch")
    if load < 1:
        return "the cache holds no request"
    calibration = serving_calibration()
    profile = msgspec.structs.replace(calibration.profile(_ENGINE), max_sequences=_MOST_SEQUENCES)
    pricer = IterationPricer(cluster.chip, serving_links(cluster), model, layout, formats, engine=_ENGINE)
    seconds = engine_seconds(engine_grids(pricer), profile)
    predicted = closed_times(seconds, profile, capacity, ClosedLoad(prompt, output, load)).output_tokens_per_s
    measured = row.positive("value") * (tp if row.text("metric").endswith("per_gpu") else 1)
    spread = calibration.spreads[f"tpot/{_ENGINE}"]
    return Outcome(
        row=row.line,
        source=row.text("source"),
        measured=measured,
        predicted=predicted,
        low=predicted / spread.ratio_p90,
        high=predicted / spread.ratio_p10,
    )
