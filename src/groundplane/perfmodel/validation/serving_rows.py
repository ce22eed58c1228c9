"""Rows of measured serving runs as cases that can be priced, and why others cannot.

Knows the habits of the tables: who multiplied degrees, which runs drew lengths at random. Prices nothing.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from groundplane.catalog.resolve import resolve_cluster
from groundplane.perfmodel.serving_layout import (
    ServingFormats,
    ServingLayout,
    formats_of,
    weight_bytes_per_chip,
)
from groundplane.perfmodel.serving_models import serving_llm
from groundplane.perfmodel.validation.report import Excluded
from groundplane.perfmodel.validation.table import Row
from groundplane.spec.errors import InputError
from groundplane.spec.llm import LlmSpec

COLUMNS: Final = (
    "silicon_data_source", "backend", "model_path", "system", "precision", "mode", "isl", "osl",
    "gemm_quant_mode", "moe_quant_mode", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip

SYSTEMS: Final = {
    "h100_sxm": "h100x8", "h200_sxm": "h200x8", "b200_sxm": "b200x8", "b300_sxm": "b300x8",
    "gb200": "gb200x72", "gb300": "gb300x72", "a100_sxm": "a100x8",
}  # fmt: skip

_MODELS: Final = (
    (r"DeepSeek-R1", "deepseek-r1"), (r"DeepSeek-V3", "deepseek-v3"), (r"MiniMax-M2", "minimax-m2.5"),
    (r"gpt-oss-120b", "gpt-oss-120b"), (r"gpt-oss-20b", "gpt-oss-20b"), (r"Qwen3-32B", "qwen3-32b"),
    (r"Qwen3-8B", "qwen3-8b"), (r"Qwen3-30B-A3B", "qwen3-30b-a3b"), (r"Qwen3-235B", "qwen3-235b-a22b"),
    (r"Qwen3\.5-397B", "qwen3.5-397b-a17b"), (r"Llama-3\.\d-70B", "llama-3.1-70b"),
    (r"Llama-3\.1-8B", "llama-3.1-8b"), (r"Llama-3\.1-405B", "llama-3.1-405b"), (r"Kimi-K2", "kimi-k2.5"),
    (r"GLM-5", "glm-5"), (r"GLM-4\.5-Air", "glm-4.5-air"), (r"GLM-4\.5", "glm-4.5"),
)  # fmt: skip

_WEIGHTS: Final = {
    "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "fp4", "fp4": "fp4", "int4_wo": "int4_weight_only",
    "int4": "int4_weight_only", "int8_wo": "int8_weight_only", "bf16": "bf16", "bfloat16": "bf16", "": "bf16",
}  # fmt: skip

_BLOCK_SCALED: Final = re.compile(r"deepseek|kimi|minimax|glm-5|qwen3-235b|qwen3.5")
"""Models whose 8-bit checkpoints have a scale for each block, whatever the table calls them."""

_RANDOM_LENGTHS: Final = re.compile(r"^(db-dump|source_file=\d{4}-\d\d-\d\d\.csv)")
_DRAFTED: Final = re.compile(r"^1\.2\.0rc6\.post3$")
"""TensorRT-LLM image that InferenceMAX runs DeepSeek with multi-token prediction on: the table does not say
so, but those runs decode twice as fast as others of the same release at few requests."""

_FIRST_RELEASE: Final = re.compile(r"^(1\.0\.|gpt-oss-dev)")
"""Releases of TensorRT-LLM around 1.0, whose host work is that of another scheduler."""

_FULL: Final = 0.95
"""Share of memory beyond which weights leave no room: such a row states its layout wrongly."""

_RANK_REQUESTS: Final = 128.0
_ENGINE_REQUESTS: Final = 8.0
_FEW_ENGINES: Final = 4.0
_MOST_ENGINES: Final = 9.0
_LARGEST_TP: Final = 8
_RANDOM_SHARE: Final = 0.9
_RANDOM_SPREAD: Final = 1.0 / 9.0
"""InferenceMAX draws lengths between 0.8 and 1 of those it states (its `random-range-ratio`)."""


class Stage(msgspec.Struct, frozen=True):
    """Engines of one kind: their layout and how many there are."""

    layout: ServingLayout
    num_workers: int = 1


class ServingCase(msgspec.Struct, frozen=True):
    """One run: what ran where, its load and what was measured.

    `prefill` is None where one engine does both. `inferred` names what the row leaves open.
    """

    row: int
    source: str
    model_name: str
    model: LlmSpec
    system: str
    engine: str
    precision: str
    formats: ServingFormats
    decode: Stage
    prefill: Stage | None
    prompt: float
    output: float
    concurrency: float
    ttft_s: float
    tpot_s: float
    spread: float = 0.0
    drafts: float = 0.0
    inferred: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, str, str]:
        """Model, chip and format of most weights: what corrections are kept by."""
        weights = self.formats.experts if self.model.is_moe else self.formats.linear
        return self.model.name, resolve_cluster(self.system).chip.name, weights


def cases_of(rows: list[Row]) -> tuple[list[ServingCase], list[Excluded]]:
    """Cases, and for each other row why it is none."""
    cases: list[ServingCase] = []
    excluded: list[Excluded] = []
    for row in rows:
        try:
            cases.append(_case(row))
        except _Left as left:
            excluded.append(Excluded(row.line, str(left)))
        except InputError as error:
            if error.file is not None:
                raise
            excluded.append(Excluded(row.line, str(error)))
    return cases, excluded


class _Left(Exception):
    """Why a row is left out."""


def _case(row: Row) -> ServingCase:
    model_name = next((name for pattern, name in _MODELS if re.search(pattern, row.text("model_path"))), None)
    if model_name is None:
        raise _Left(f"model {row.text('model_path')!r} is not in the catalogue")
    system = SYSTEMS.get(row.text("system"))
    if system is None:
        raise _Left(f"system {row.text('system')!r} is not known")
    model = serving_llm(model_name)
    weights, experts = (_WEIGHTS.get(row.text(c)) for c in ("gemm_quant_mode", "moe_quant_mode"))
    if weights is None or experts is None:
        raise _Left(f"weights in {row.text('gemm_quant_mode')!r} are not known")
    weights, experts = _as_published(model_name, weights), _as_published(model_name, experts)
    open_fields: list[str] = []
    dp = row.number("attention_dp_size") or 1.0
    found = re.search(r"silicon_concurrency=([0-9.]+)", row.text("silicon_data_source"))
    concurrency = float(found[1]) if found else (row.number("batch_size") or 0.0) * dp
    if concurrency <= 0:
        raise _Left("concurrency is not stated")
    prefill: Stage | None = None
    if row.text("mode") == "disagg":
        prefill = _stage(row, "prefill_", model, open_fields)
        decode = _stage(row, "decode_", model, open_fields)
        if "decode_num_workers" in open_fields:
            decode = msgspec.structs.replace(decode, num_workers=_usual_engines(decode.layout, concurrency))
    else:
        decode = _stage(row, "", model, open_fields)
        # A batch is that of one rank: what is left of the concurrency are other engines.
        each = (row.number("batch_size") or concurrency / dp) * dp
        decode = msgspec.structs.replace(decode, num_workers=max(1, round(concurrency / each)))
    is_random = _RANDOM_LENGTHS.match(row.text("silicon_data_source")) is not None
    share = _RANDOM_SHARE if is_random else 1.0
    engine = _engine(row)
    formats = formats_of(model, weights, _cache(engine, weights, system), experts)
    chip = resolve_cluster(system).chip
    if weight_bytes_per_chip(model, decode.layout, formats) > _FULL * chip.memory_bytes:
        open_fields.append("tp_size")
    return ServingCase(
        row=row.line,
        source=_source(row.text("silicon_data_source")),
        model_name=model_name,
        model=model,
        system=system,
        engine=engine,
        precision=row.text("precision") or "bf16",
        formats=formats,
        decode=decode,
        prefill=prefill,
        prompt=row.positive("isl") * share,
        output=row.positive("osl") * share,
        concurrency=concurrency,
        ttft_s=row.positive("silicon_ttft_ms") * 1e-3,
        tpot_s=row.positive("silicon_tpot_ms") * 1e-3,
        spread=_RANDOM_SPREAD,
        drafts=3.0 if _DRAFTED.search(row.text("backend_version")) and "deepseek" in model_name else 0.0,
        inferred=tuple(dict.fromkeys(open_fields)),
    )


def _as_published(model_name: str, weights: str) -> str:
    """The format of a checkpoint's weights, where the table's name for it is coarser."""
    if weights == "fp4" and model_name.startswith("gpt-oss"):
        return "mxfp4"
    return "fp8_block" if weights == "fp8" and _BLOCK_SCALED.search(model_name) else weights


def _engine(row: Row) -> str:
    """The engine and its class of versions."""
    name = row.text("backend")
    return "trtllm-1.0" if name == "trtllm" and _FIRST_RELEASE.match(row.text("backend_version")) else name


def _cache(engine: str, weights: str, system: str) -> str:
    """An 8-bit cache beside 8- and 4-bit weights, as InferenceMAX has it; SGLang on Hopper bf16."""
    hopper = system.startswith(("h100", "h200"))
    return "bf16" if weights == "bf16" or (engine == "sglang" and hopper) else "fp8"


def _stage(row: Row, prefix: str, model: LlmSpec, open_fields: list[str]) -> Stage:
    tp, dp, expert_tp, expert_ep = (
        int(row.number(prefix + name) or 1)
        for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    workers = row.number(prefix + "num_workers")
    if prefix and workers is None:
        open_fields.append(prefix + "num_workers")
    layout = plain_layout(model, tp, dp, expert_tp, expert_ep)
    if tp > _LARGEST_TP and not _squared(tp, dp, expert_tp, expert_ep):
        open_fields.append(prefix + "tp_size")
    return Stage(layout, int(workers or 1))


def _usual_engines(layout: ServingLayout, concurrency: float) -> int:
    """Engines that decode, where the row does not say: as in rows that do.

    Ranks with their own requests hold up to 128 each on one or two engines; tensor-parallel engines are there
    for short times, so that each of up to nine gets one request, later eight and more.
    """
    if layout.attention_dp > 1:
        return max(1, round(concurrency / (layout.attention_dp * _RANK_REQUESTS)))
    return int(min(max(concurrency / _ENGINE_REQUESTS, min(concurrency, _FEW_ENGINES)), _MOST_ENGINES))


def _squared(tp: int, dp: int, expert_tp: int, expert_ep: int) -> bool:
    ranks = tp * dp
    both = expert_tp == expert_ep and ranks == expert_tp * expert_ep
    alone = expert_tp == 1 and tp == dp and ranks == expert_ep
    return ranks > 1 and (both or alone)


def plain_layout(model: LlmSpec, tp: int, dp: int, expert_tp: int, expert_ep: int) -> ServingLayout:
    """The layout that ran, from degrees as the tables state them.

    A source that multiplied the tensor degree with that of experts states a square: "dp 64, experts 8 x 8"
    ran on 8 chips with 8 attention ranks, "tp 4, dp 4, experts 16" on 4 with one, as the same measurements
    show that are stated plainly elsewhere. Any other tensor degree above 8 counts the chips of a deployment.
    """
    ranks = tp * dp
    if _squared(tp, dp, expert_tp, expert_ep):
        edge = round(ranks**0.5)
        if tp == 1:
            return ServingLayout(tp=1, attention_dp=edge, expert_ep=edge)
        return ServingLayout(tp=edge, expert_ep=edge)
    if tp > _LARGEST_TP:
        return ServingLayout(tp=1, attention_dp=ranks, expert_ep=ranks if model.is_moe else 1)
    if not model.is_moe:
        return ServingLayout(tp=tp, attention_dp=dp)
    if expert_tp * expert_ep != ranks:
        expert_ep = ranks // expert_tp if ranks % expert_tp == 0 else 1
        expert_tp = ranks // expert_ep
    return ServingLayout(tp=tp, attention_dp=dp, expert_tp=expert_tp, expert_ep=expert_ep)


def _source(text: str) -> str:
    """The name of a source: the table's file, without where someone kept it."""
    first = text.partition(";")[0].removeprefix("source_file=")
    return "/".join(first.split("/")[-4:])
