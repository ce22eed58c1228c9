"""Published training runs, row by row, as cases that the model can price.

Reads rows with the columns of the reference table (one metric a row; rows of one run share all other
columns). Facts that a row states are taken; what it leaves open is filled by rules that hold for every
source alike and marks the run as inferred; a run that cannot be priced is listed with the reason. Does no
I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from groundplane.perfmodel.passes import Precision
from groundplane.perfmodel.published_cluster import published_cluster, published_precision
from groundplane.perfmodel.published_layout import published_layouts
from groundplane.perfmodel.published_model import published_model, whole
from groundplane.perfmodel.sources import stack_of
from groundplane.perfmodel.validation import table
from groundplane.perfmodel.validation.report import Excluded
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

COLUMNS: Final = (
    "source", "where", "model", "n_params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab",
    "experts", "topk", "seq_len", "chip", "n_chips", "precision", "tp", "sp", "cp", "pp", "vpp", "ep", "dp",
    "fsdp_or_zero", "recompute", "micro_batch", "global_batch", "metric", "value", "notes",
)  # fmt: skip
"""Columns that a table of training runs must have."""

TIME_METRICS: Final = ("step_time_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu_pct")
"""In this order: the first that a run has is what it is compared by."""


@dataclass
class Run:
    """All rows of one run: shared columns, metrics by name, line of its first row."""

    row: int
    shared: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A run that can be priced.

    `layouts` are the candidates: one where the run states its layout, several where it leaves something open.
    `open_fields` names what was left open. `measured_s` is the step's time as published or as it follows.
    """

    row: int
    source: str
    model: LlmSpec
    seq: int
    precision: Precision
    cluster: ClusterSpec
    num_chips: int
    stack: str
    layouts: tuple[dict[str, float], ...]
    global_batch: float
    measured_s: float
    metric: str
    open_fields: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the run states all that is needed."""
        return not self.open_fields


def runs_of(rows: Sequence[table.Row]) -> list[Run]:
    """Rows put together to runs: rows that agree in all but metric and value.

    Raises:
        InputError: a value that is no positive number, with its line.
    """
    found: dict[tuple[str, ...], Run] = {}
    for row in rows:
        shared = {name: row.text(name) for name in COLUMNS if name not in ("metric", "value")}
        run = found.setdefault(tuple(shared.values()), Run(row.line, shared))
        run.metrics[row.text("metric")] = row.positive("value")
        run.rows.append(row.line)
    return list(found.values())


def case_of(run: Run) -> Case | Excluded:
    """The case that a run makes, or why it makes none."""
    try:
        return _case(run)
    except InputError as error:
        return Excluded(run.row, str(error))


def _case(run: Run) -> Case:
    shared = run.shared
    metric = next((name for name in TIME_METRICS if name in run.metrics), None)
    if metric is None:
        raise InputError("no time metric (memory belongs to validate memory)")
    if "[QC]" in shared["notes"] or "[QC:" in shared["notes"]:
        raise InputError("marked as wrong in its source")
    if re.fullmatch(r"[\d .]+", shared["model"]):
        raise InputError("wrong in its source: the model's name is a number", value=shared["model"])
    if re.search(r"\bLoRA\b", shared["model"]):
        raise InputError("fine-tuning by LoRA, which has no weight gradients: not modelled")
    num_chips = whole(shared, "n_chips")
    if num_chips is None:
        raise InputError("states no number of chips")
    seq = whole(shared, "seq_len")
    if seq is None:
        raise InputError("states no sequence length")
    opened: list[str] = []
    model = published_model(shared, opened)
    cluster = published_cluster(shared, num_chips)
    stack = stack_of(shared["source"], shared["fsdp_or_zero"], shared["chip"], shared["notes"])
    precision = published_precision(shared["precision"], opened)
    global_batch, layouts = published_layouts(shared, model, num_chips, stack, opened)
    measured = _step_s(run, metric, model, seq, global_batch, num_chips, cluster, precision)
    return Case(
        run.row, shared["source"], model, seq, precision, cluster, num_chips, stack, tuple(layouts),
        global_batch, measured, metric, tuple(opened),
    )  # fmt: skip


# Time
# ----------------------------------------------------------------------------------------------------------


def _step_s(
    run: Run, metric: str, model: LlmSpec, seq: int, batch: float, num_chips: int, cluster: ClusterSpec,
    precision: Precision,
) -> float:  # fmt: skip
    value = run.metrics[metric]
    if value <= 0:
        raise InputError("must be positive", field=metric, value=value)
    tokens = batch * seq
    if metric == "step_time_s":
        return value
    if metric == "tokens_per_s_per_chip":
        return tokens / (value * num_chips)
    flops = 3.0 * model.forward_flops_per_token(seq, causal=False).total * tokens
    if re.search(r"includ\w* recompute|incl\.? recompute|HFU not MFU", run.shared["notes"], re.IGNORECASE):
        flops *= 4.0 / 3.0
    if metric == "tflops_per_chip":
        return flops / (value * 1e12 * num_chips)
    return flops / (value / 100.0 * cluster.chip.peak(precision.linear.removesuffix("_block")) * num_chips)
