"""From rows of a table of memory to questions that the memory model can answer.

Two kinds of table: runs of training (one metric a row; rows with `memory_gb` are taken), and a sweep of
layouts with what ran and what ran out of memory. What a row leaves open is inferred where it can be, or the
row is excluded with its reason. Knows the words, not the model.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from groundplane.perfmodel.memory_profile import memory_profile
from groundplane.perfmodel.published import Run, case_of, runs_of
from groundplane.perfmodel.sources import stack_of
from groundplane.perfmodel.validation.report import Excluded
from groundplane.perfmodel.validation.table import Row
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec

GIB: Final = 2.0**30
"""What the tables call GB: memory tools count in units of 2**30."""

FIT_COLUMNS: Final = (
    "source", "model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len", "n_chips",
    "chip_mem_gb", "tp", "pp", "dp", "zero", "micro_batch", "grad_accum", "status", "mem_reserved_gb",
)  # fmt: skip
RAN, RAN_OUT = "success", "oom"

_NANOTRON_RELEASES: Final = ((14_018_000, "nanotron-2024-12"), (14_097_148, "nanotron-2025-01"))
"""The nanotron sweep ran on three releases one after another: job numbers below which the first and the
second were in use. The third begins with the pipeline's fix that the table of training runs marks as
after_pp_fix."""

_BF16_DATE: Final = "02-28"
"""From this day on the BLOOM sweep ran with gradients accumulated in float32."""

_COMPILED_LOSS_MONTH: Final = 202501
"""From this month on torchtitan compiles its loss: logits are not copied to float32 more than once."""

_SETTLED: Final = ("recompute", "model shape", "precision")
"""What a run may leave open: recompute follows from what fits, a shape from the model's name."""


@dataclass(frozen=True)
class MemoryCase:
    """One run: what it was, what memory it took or that it ran out.

    `stack` names a memory profile, `layout` are fields of `Layouts`. `chip_bytes` is None where it does not
    matter; `measured_bytes` is None where the run ran out of memory. With `open_recompute` the run does not
    say what is recomputed: as little as fits.
    """

    row: int
    source: str
    stack: str
    model: LlmSpec
    seq: int
    layout: tuple[tuple[str, float], ...]
    measured_bytes: float | None
    chip_bytes: float | None
    inferred: bool
    open_recompute: bool = False

    @property
    def ran_out(self) -> bool:
        """Whether the run ran out of memory."""
        return self.measured_bytes is None

    def with_layout(self, layout: dict[str, float]) -> MemoryCase:
        """The case under another layout, with nothing left open."""
        return dataclasses.replace(self, layout=tuple(layout.items()), open_recompute=False)


def sweep_cases(rows: list[Row]) -> tuple[list[MemoryCase], list[Excluded]]:
    """Cases of a table with `FIT_COLUMNS`.

    Raises:
        InputError: a cell that should be a positive number and is none.
    """
    cases: list[MemoryCase] = []
    excluded: list[Excluded] = []
    for row in rows:
        status = row.text("status").lower()
        if status not in (RAN, RAN_OUT):
            excluded.append(
                Excluded(row.line, f"status {row.text('status')!r}: neither ran nor ran out of memory")
            )
        elif status == RAN and row.number("mem_reserved_gb") is None:
            excluded.append(Excluded(row.line, "ran, but states no memory"))
        else:
            cases.append(_sweep_case(row, ran=status == RAN))
    return cases, excluded


def training_cases(rows: list[Row]) -> tuple[list[MemoryCase], list[Excluded]]:
    """Cases of a table of training runs: those that state their memory. Other runs are passed over: they
    belong to the validation of time.

    Raises:
        InputError: a cell that should be a positive number and is none.
    """
    cases: list[MemoryCase] = []
    excluded: list[Excluded] = []
    for run in runs_of(rows):
        if "memory_gb" not in run.metrics:
            continue
        found = _training_case(run)
        if isinstance(found, Excluded):
            excluded.append(found)
        else:
            cases.append(found)
    return cases, excluded


def _sweep_case(row: Row, *, ran: bool) -> MemoryCase:
    sizes = {name: row.positive(name) for name in ("tp", "pp", "dp", "micro_batch")}
    layout = sizes | {
        "num_micro": row.positive("grad_accum"),
        "zero": row.number("zero") or 0.0,
        "sequence_parallel": float(sizes["tp"] > 1),
    }
    source = row.text("source")
    stack = memory_profile(_release(stack_of(source, "ZeRO", ""), source, f"job {row.text('job_id')}")).name
    return MemoryCase(
        row=row.line,
        source=source,
        stack=stack,
        model=_llama(row),
        seq=int(row.positive("seq_len")),
        layout=tuple(layout.items()),
        measured_bytes=row.positive("mem_reserved_gb") * GIB if ran else None,
        chip_bytes=row.positive("chip_mem_gb") * GIB,
        inferred=False,
    )


def _llama(row: Row) -> LlmSpec:
    shape = [int(row.positive(name)) for name in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")]
    size = re.search(r"([\d.]+)G", row.text("model"))
    layers, hidden, ffn, heads, kv_heads, vocab = shape
    return _llama_of(layers, hidden, ffn, heads, kv_heads, vocab, float(size[1]) * 1e9 if size else None)


@functools.cache
def _llama_of(
    layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, size: float | None
) -> LlmSpec:
    """A Llama of a shape."""
    width = hidden // heads
    layer = LayerSpec(AttentionSpec(heads, kv_heads, width, width), MlpSpec(ffn))
    return _tied_if(LlmSpec("llama", "published run", hidden, vocab, (layer,) * layers), size)


@functools.cache
def _tied_if(model: LlmSpec, size: float | None) -> LlmSpec:
    """The model with a tied head, where only that meets the parameters stated for it."""
    if size is None or model.tied_embeddings:
        return model
    total, head = model.parameters().total, model.parameters().head
    if abs(total - head - size) < abs(total - size):
        return msgspec.structs.replace(model, tied_embeddings=True)
    return model


def _release(stack: str, source: str, notes: str) -> str:
    """The release of a stack that a run used, by its job number or date: what it kept in memory differs."""
    job = re.search(r"\bjob (\d+)", notes)
    if stack.startswith("nanotron") and job:
        return next((name for last, name in _NANOTRON_RELEASES if int(job[1]) < last), "nanotron")
    date = re.search(r"\brun date (\d\d-\d\d)", notes)
    if stack == "megatron-deepspeed-zero" and date and date[1] >= _BF16_DATE:
        return "megatron-deepspeed-bf16"
    month = re.search(r"_(20\d{4})", source)
    if stack == "torchtitan" and month and int(month[1]) >= _COMPILED_LOSS_MONTH:
        return "torchtitan-2025"
    return stack


def _training_case(run: Run) -> MemoryCase | Excluded:
    # Only the layout is asked for here, so that any time makes the run a case.
    case = case_of(dataclasses.replace(run, metrics={"step_time_s": 1.0}))
    if isinstance(case, Excluded):
        return case
    if any(name not in _SETTLED for name in case.open_fields):
        return Excluded(run.row, f"leaves open: {', '.join(case.open_fields)}")
    profile = memory_profile(_release(case.stack, case.source, run.shared["notes"]))
    return MemoryCase(
        row=run.row,
        source=case.source,
        stack=profile.name,
        model=_tied_if(case.model, _parameters(run.shared["n_params_b"])),
        seq=case.seq,
        layout=tuple(case.layouts[0].items()),
        measured_bytes=run.metrics["memory_gb"] * GIB,
        chip_bytes=_chip_bytes(run.shared["chip"], float(case.cluster.chip.memory_bytes)),
        inferred=not case.complete,
        open_recompute="recompute" in case.open_fields,
    )


def _parameters(text: str) -> float | None:
    """Stated billions of parameters, exact enough to tell by them whether a head is tied."""
    return float(text) * 1e9 if re.fullmatch(r"\d+\.\d\d+", text) else None


def _chip_bytes(text: str, usual: float) -> float:
    """Memory of a chip: as its name states it (some variants are in no catalogue), else the usual."""
    stated = re.search(r"(\d+) ?GB", text)
    return float(stated[1]) * GIB if stated else usual
