"""Published training runs, row by row, as cases that the model can price.

Reads rows with the columns of the reference table (one metric a row; rows of one run share all other
columns). Facts that a row states are taken; what it leaves open is filled by rules that hold for every
source alike and marks the run as inferred; a run that cannot be priced is listed with the reason. Does no
I/O.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from groundplane.catalog.resolve import model_names, resolve_llm, resolve_server
from groundplane.catalog.store import Catalog
from groundplane.perfmodel.operators import Precision
from groundplane.perfmodel.sources import batch_is_split, shards_optimizer, splits_sequence, stack_of
from groundplane.perfmodel.strategy import RECOMPUTE
from groundplane.perfmodel.validation import table
from groundplane.perfmodel.validation.report import Excluded
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, NormSpec

Row = Mapping[str, str]

COLUMNS: Final = (
    "source", "where", "model", "n_params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab",
    "experts", "topk", "seq_len", "chip", "n_chips", "precision", "tp", "sp", "cp", "pp", "vpp", "ep", "dp",
    "fsdp_or_zero", "recompute", "micro_batch", "global_batch", "metric", "value", "notes",
)  # fmt: skip
"""Columns that a table of training runs must have."""

TIME_METRICS: Final = ("step_time_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu_pct")
"""In this order: the first that a run has is what it is compared by."""

PADDED_VOCAB: Final = 51200
"""Vocabulary of GPT-2's tokenizer as Megatron pads it, for GPT runs that do not state theirs."""


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
    if re.search(r"\bLoRA\b", shared["model"]):
        raise InputError("fine-tuning by LoRA, which has no weight gradients: not modelled")
    num_chips = _whole(shared, "n_chips")
    if num_chips is None:
        raise InputError("states no number of chips")
    seq = _whole(shared, "seq_len")
    if seq is None:
        raise InputError("states no sequence length")
    opened: list[str] = []
    model = _model(shared, opened)
    cluster = _cluster(shared, num_chips)
    stack = stack_of(shared["source"], shared["fsdp_or_zero"], shared["chip"], shared["notes"])
    precision = _precision(shared["precision"], opened)
    fixed = _fixed_layout(shared, num_chips, stack, opened)
    batch = _batch(shared, fixed, num_chips)
    layouts = _candidates(shared, fixed, batch, model, stack, opened)
    global_batch = batch if batch is not None else layouts[0]["micro_batch"] * layouts[0]["dp"]
    measured = _step_s(run, metric, model, seq, global_batch, num_chips, cluster, precision)
    return Case(
        run.row, shared["source"], model, seq, precision, cluster, num_chips, stack, tuple(layouts),
        float(global_batch), measured, metric, tuple(opened),
    )  # fmt: skip


# Model
# ---------------------------------------------------------------------------------------------------------


def _model(shared: Row, opened: list[str]) -> LlmSpec:
    named = _named_model(shared["model"])
    layers, hidden = _whole(shared, "layers"), _whole(shared, "hidden")
    params = _number(shared, "n_params_b")
    ffn, heads = _whole(shared, "ffn"), _whole(shared, "heads")
    if named is not None and (hidden is None or named.hidden == hidden):
        cut = layers if layers is not None else _cut(shared["model"])
        if layers is None and hidden is None:
            opened.append("model shape")
        return named if cut is None or cut == named.num_layers else _shortened(named, cut)
    if hidden is None:
        if params is None:
            raise InputError("states neither the model's shape nor a known model", value=shared["model"])
        opened.append("model shape")
        hidden, layers = _usual_shape(params, _whole(shared, "pp") or 1)
        ffn = 4 * hidden
    if shared["experts"]:
        raise InputError("a mixture of experts that the catalogue does not know", value=shared["model"])
    vocab = _whole(shared, "vocab") or PADDED_VOCAB
    ffn = ffn or 4 * hidden
    if layers is None:
        if params is None:
            raise InputError("states neither layers nor parameters")
        layers = max(1, round((params * 1e9 - vocab * hidden) / (4 * hidden**2 + 2 * hidden * ffn)))
        stages = _whole(shared, "pp") or 1
        layers = max(stages, round(layers / stages) * stages)
    heads = heads or _usual_heads(hidden)
    kv_heads = _whole(shared, "kv_heads") or heads
    gated = _gated(shared["model"], layers, hidden, ffn, heads, kv_heads, vocab, params)
    model = _plain_model(shared["model"], layers, hidden, ffn, heads, kv_heads, vocab, gated)
    return _with_parallel_blocks(model) if _PARALLEL_BLOCKS.search(shared["notes"]) else model


_PARALLEL_BLOCKS: Final = re.compile(r"parallel transformer block|cumulative: \+")
"""Remarks of MegaScale's runs: attention and feed-forward from one input, kept in all later steps of its
ablation."""


@functools.cache
def _with_parallel_blocks(model: LlmSpec) -> LlmSpec:
    layers = tuple(msgspec.structs.replace(layer, parallel=True) for layer in model.layers)
    return msgspec.structs.replace(model, layers=layers)


@functools.cache
def _plain_model(
    name: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, gated: bool
) -> LlmSpec:
    width = hidden // heads
    attention = AttentionSpec(heads, kv_heads, width, width)
    layer = LayerSpec(attention, MlpSpec(ffn, gated, "silu" if gated else "gelu"))
    return LlmSpec(
        name=name,
        architecture="published run",
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * layers,
        norm=NormSpec("rmsnorm" if gated else "layernorm", not gated),
        position="rope" if gated else "learned",
        tied_embeddings=not gated,
    )


def _gated(
    name: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, params: float | None
) -> bool:
    """Two or three feed-forward matrices: by the name of the family, else whichever meets the stated
    parameters."""
    if re.search(r"llama|mistral|qwen|internlm|gemma|phi-3|yi-", name, re.IGNORECASE):
        return True
    if re.search(r"gpt|mpt|opt|bloom|megatron|mt-nlg|falcon|pythia|neox|nemotron", name, re.IGNORECASE):
        return False
    if params is None:
        return ffn < 3.9 * hidden

    def gap(gated: bool) -> float:
        model = _plain_model(name, layers, hidden, ffn, heads, kv_heads, vocab, gated)
        return abs(model.parameters().total / (params * 1e9) - 1.0)

    return gap(True) < gap(False)


def _usual_shape(params_b: float, stages: int) -> tuple[int, int]:
    """(hidden, layers) of a GPT of a size: a hidden width about 128 times its layers, layers a multiple of
    `stages`."""
    best = (0.0, 1024, 24)
    for hidden in range(1024, 32769, 512):
        layers = max(stages, round(params_b * 1e9 / (12 * hidden**2) / stages) * stages)
        fits = abs(layers * 12 * hidden**2 / (params_b * 1e9) - 1.0)
        aspect = abs(hidden / layers / 128 - 1.0)
        score = -(3 * fits + 0.2 * aspect)
        if best[0] == 0.0 or score > best[0]:
            best = (score, hidden, layers)
    return best[1], best[2]


def _usual_heads(hidden: int) -> int:
    """Heads where a run states none: of the multiples of 16 that divide the width, that with heads nearest
    to 128 wide."""
    fitting = [heads for heads in range(16, hidden // 16 + 1, 16) if hidden % heads == 0]
    return min(fitting, key=lambda heads: abs(hidden / heads - 128), default=max(1, hidden // 128))


def _shortened(model: LlmSpec, layers: int) -> LlmSpec:
    """The model cut to so many layers: leading layers of a kind of their own keep their share, at least
    one."""
    first = model.layers[0]
    leading = next((place for place, layer in enumerate(model.layers) if layer != first), 1)
    kept = max(1, round(leading * layers / model.num_layers))
    cut = model.layers[:kept] + model.layers[leading : leading + layers - kept]
    return msgspec.structs.replace(model, layers=cut[:layers])


def _cut(name: str) -> int | None:
    match = re.search(r"(\d+)[- ]layer", name)
    return int(match[1]) if match else None


_LEAST_NAME: Final = 10


@functools.cache
def _known_names() -> dict[str, str]:
    return {re.sub(r"[^a-z0-9]", "", name): name for name in model_names()}


@functools.cache
def _named_model(name: str) -> LlmSpec | None:
    """The model of the catalogue that goes by a name, whatever its punctuation; a cut or remark is left
    aside."""
    plain = re.sub(r"\(.*?\)|\d+[- ]layers?( cut)?|-base|-instruct|-pretrain", " ", name.lower())
    key = re.sub(r"[^a-z0-9]", "", plain)
    known = _known_names()
    for candidate in (key, key.replace("meta", ""), re.sub(r"(llama3)(?=70b|8b)", "llama31", key)):
        if candidate in known:
            return resolve_llm(known[candidate])
    # "Llama4-Maverick-17B-128E" says more than the name; a short beginning would say too little.
    longest = max((name for name in known if key.startswith(name)), key=len, default="")
    return resolve_llm(known[longest]) if len(longest) >= _LEAST_NAME else None


# Cluster
# -------------------------------------------------------------------------------------------------------


def _cluster(shared: Row, num_chips: int) -> ClusterSpec:
    catalog = Catalog.shipped()
    chip = _chip_name(shared["chip"], catalog)
    server_name = "jean-zay-a100" if "Omni-Path" in shared["notes"] else catalog.default_server(chip)
    if server_name is None:
        raise InputError("a chip that comes in no server of the catalogue", value=shared["chip"])
    return _cluster_of(server_name, num_chips, _node_bytes_per_s(shared["notes"]))


@functools.cache
def _cluster_of(server_name: str, num_chips: int, node_bytes_per_s: float | None) -> ClusterSpec:
    from groundplane.catalog.resolve import resolve_cluster

    server = resolve_server(server_name)
    nodes = max(1, -(-num_chips // server.num_chips))
    cluster = resolve_cluster(f"{server_name}x{nodes}")
    if node_bytes_per_s is None or cluster.server.nics is None:
        return cluster
    nics = cluster.server.nics
    cards = msgspec.structs.replace(nics, rate_bytes_per_s=node_bytes_per_s / nics.count)
    name = f"{cluster.name}-{node_bytes_per_s:.3g}"
    return msgspec.structs.replace(
        cluster, name=name, server=msgspec.structs.replace(cluster.server, nics=cards)
    )


def _node_bytes_per_s(notes: str) -> float | None:
    """Network rate of a server, where the remarks of a row state it."""
    match = re.search(r"(\d+)\s*x\s*(\d+)\s*Gb(?:ps|/s)?\s*(?:RoCE|IB|HDR|EDR)?\s*(?:per node|/node)", notes)
    if match:
        return int(match[1]) * int(match[2]) * 1e9 / 8
    match = re.search(r"(\d+)x(\d+)Gb \w+ per node", notes)
    if match:
        return int(match[1]) * int(match[2]) * 1e9 / 8
    match = re.search(r"(\d+)\s*Gb(?:ps|/s) inter-node", notes)
    return int(match[1]) * 1e9 / 8 if match else None


def _chip_name(text: str, catalog: Catalog) -> str:
    """The chip of the catalogue; remarks in brackets are left aside.

    Raises:
        InputError: no such chip.
    """
    plain = re.sub(r"\(.*?\)", "", text).strip()
    tries = [plain, text, plain.replace(" ", "-"), re.sub(r"\s\d+GB.*$", "", plain)]
    for name in tries:
        if catalog.has("chips", name):
            return name
    raise InputError("a chip that the catalogue does not know", value=text)


def _precision(text: str, opened: list[str]) -> Precision:
    low = text.lower()
    if not low:
        opened.append("precision")
        return Precision()
    if "fp4" in low:
        return Precision("fp4")
    if "mxfp8" in low or "fp8-mx" in low or "32x32" in low or "blockwise" in low:
        return Precision("fp8_block")
    if "fp8" in low or "float8" in low:
        return Precision("fp8")
    if "fp16" in low:
        return Precision("fp16", "fp16")
    return Precision()


# Layout
# --------------------------------------------------------------------------------------------------------


def _fixed_layout(shared: Row, num_chips: int, stack: str, opened: list[str]) -> dict[str, float]:
    """What the row states of the layout; data parallelism follows from the rest."""
    given = {name: _whole(shared, name) for name in ("tp", "cp", "pp", "vpp", "ep", "dp")}
    if given["tp"] is None or given["pp"] is None:
        if shared["fsdp_or_zero"].upper().startswith("FSDP") and given["dp"] is None:
            given["tp"], given["pp"] = given["tp"] or 1, given["pp"] or 1
        else:
            opened.append("layout")
    fixed = {name: float(value) for name, value in given.items() if value is not None}
    model_ranks = fixed.get("tp", 1.0) * fixed.get("cp", 1.0) * fixed.get("pp", 1.0)
    if "layout" not in opened:
        if num_chips % model_ranks:
            raise InputError(f"tp x cp x pp = {model_ranks:.0f} does not divide its {num_chips} chips")
        stated = fixed.get("dp")
        fixed["dp"] = num_chips / model_ranks
        if stated is not None and stated != fixed["dp"]:
            raise InputError(f"tp x cp x pp x dp is not its {num_chips} chips")
    zero = shared["fsdp_or_zero"].lower()
    if "fsdp" in zero or "zero-3" in zero:
        fixed["zero"] = 2.0 if "shard_grad_op" in zero else 3.0
    elif "zero-2" in zero:
        fixed["zero"] = 2.0
    elif "zero-1" in zero or "distributed optimizer" in zero or (not zero and shards_optimizer(stack)):
        fixed["zero"] = 1.0
    group = re.search(r"(?:group|within|fsdp=)\s*(\d+)", zero)
    if group and "layout" not in opened:
        fixed["shard"] = min(float(group[1]), fixed["dp"] * fixed.get("cp", 1.0))
    sp = shared["sp"].lower()
    if sp == "yes" or (not sp and splits_sequence(stack)):
        fixed["sequence_parallel"] = 1.0
    return fixed


def _batch(shared: Row, fixed: Mapping[str, float], num_chips: int) -> float | None:
    """Sequences a step: stated, or micro-batch x replicas x accumulation."""
    stated = _whole(shared, "global_batch")
    micro = _whole(shared, "micro_batch")
    match = re.search(r"(?:grad accum|micro_num|mbc=)\s*(\d+)", shared["notes"])
    if stated is not None:
        return float(stated)
    if micro is None:
        raise InputError("states no batch")
    replicas = fixed.get("dp", num_chips / (fixed.get("tp", 1.0) * fixed.get("pp", 1.0)))
    return micro * replicas * (int(match[1]) if match else 1)


def _candidates(
    shared: Row, fixed: dict[str, float], batch: float | None, model: LlmSpec, stack: str, opened: list[str]
) -> list[dict[str, float]]:
    """All layouts that the row allows."""
    if "layout" in opened:
        raise InputError("states no layout")
    replicas = fixed["dp"]
    total = batch or 0.0
    micro = _whole(shared, "micro_batch")
    if batch_is_split(stack) and micro is not None and total == micro * replicas and fixed.get("pp", 1.0) > 1:
        micro = 1
    sizes: list[float]
    if micro is not None:
        sizes = [float(micro)]
    else:
        opened.append("micro_batch")
        sizes = [float(size) for size in (1, 2, 4, 8, 16) if total % (size * replicas) == 0]
    if not sizes or total < sizes[0] * replicas:
        raise InputError(f"a global batch of {total:.0f} does not feed {replicas:.0f} replicas")
    recompute = _recompute(shared["recompute"])
    if recompute is None:
        opened.append("recompute")
    ways = _RECOMPUTE_WAYS if recompute is None else ({"recompute": float(recompute)},)
    if model.is_moe and "ep" not in fixed:
        raise InputError("a mixture of experts that states no expert parallelism")
    return [
        fixed | {"micro_batch": size, "num_micro": total / (size * replicas)} | way
        for size in sizes
        for way in ways
    ]


_RECOMPUTE_WAYS: Final = (
    {"recompute": float(RECOMPUTE.index("none"))},
    {"recompute": float(RECOMPUTE.index("selective"))},
    *(
        {"recompute": float(RECOMPUTE.index("block")), "recompute_share": eighths / 8}
        for eighths in range(1, 8)
    ),
    {"recompute": float(RECOMPUTE.index("full"))},
)
"""What a publisher who tuned may have tried: as little as fits."""


def _recompute(text: str) -> int | None:
    low = text.lower()
    if low.startswith("full"):
        return 2
    if low.startswith("selective"):
        return 1
    return 0 if low in ("none", "no") else None


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


def _whole(shared: Row, name: str) -> int | None:
    value = _number(shared, name)
    return int(value) if value is not None and value == int(value) else None


def _number(shared: Row, name: str) -> float | None:
    try:
        return float(shared[name])
    except ValueError:
        return None
