"""The model that a published run trained: by name from the catalogue, else from the shape in its row.

What a row leaves open is filled by the usual proportions of a GPT and marked. Does no I/O.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from groundplane.catalog.resolve import model_names, resolve_llm
from groundplane.spec.errors import InputError
from groundplane.spec.llm import AttentionSpec, LayerSpec, LlmSpec, MlpSpec, NormSpec

Row = Mapping[str, str]
"""Columns that the rows of one run share."""

PADDED_VOCAB: Final = 51200
"""Vocabulary of GPT-2's tokenizer as Megatron pads it, for GPT runs that do not state theirs."""


def published_model(shared: Row, opened: list[str]) -> LlmSpec:
    """The model of a run; `opened` gets what the row leaves open.

    Raises:
        InputError: neither a known model nor a shape.
    """
    if _STATE_SPACES.search(shared["model"]):
        raise InputError(
            "mixes state-space (Mamba-2) layers in, which are not modelled", value=shared["model"]
        )
    named = _named_model(shared["model"])
    layers, hidden = whole(shared, "layers"), whole(shared, "hidden")
    params = number(shared, "n_params_b")
    ffn, heads = whole(shared, "ffn"), whole(shared, "heads")
    if named is not None and (hidden is None or named.hidden == hidden):
        cut = layers if layers is not None else _cut(shared["model"])
        if layers is None and hidden is None:
            opened.append("model shape")
        return named if cut is None or cut == named.num_layers else _shortened(named, cut)
    if hidden is None:
        if params is None:
            raise InputError("states neither the model's shape nor a known model", value=shared["model"])
        opened.append("model shape")
        hidden, layers = _usual_shape(params, whole(shared, "pp") or 1)
        ffn = 4 * hidden
    if shared["experts"]:
        raise InputError("a mixture of experts that the catalogue does not know", value=shared["model"])
    vocab = whole(shared, "vocab") or PADDED_VOCAB
    ffn = ffn or 4 * hidden
    if layers is None:
        if params is None:
            raise InputError("states neither layers nor parameters")
        layers = max(1, round((params * 1e9 - vocab * hidden) / (4 * hidden**2 + 2 * hidden * ffn)))
        stages = whole(shared, "pp") or 1
        layers = max(stages, round(layers / stages) * stages)
    heads = heads or _usual_heads(hidden)
    kv_heads = whole(shared, "kv_heads") or heads
    gated = _gated(shared["model"], layers, hidden, ffn, heads, kv_heads, vocab, params)
    model = _plain_model(shared["model"], layers, hidden, ffn, heads, kv_heads, vocab, gated)
    return _with_parallel_blocks(model) if _PARALLEL_BLOCKS.search(shared["notes"]) else model


_STATE_SPACES: Final = re.compile(r"nemotron[-_ ]?(3|h)\b|nemotron_3_|mamba|jamba", re.IGNORECASE)
"""Models whose layers are not all attention."""

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


def whole(shared: Row, name: str) -> int | None:
    """A column that holds a whole number, else None."""
    value = number(shared, name)
    return int(value) if value is not None and value == int(value) else None


def number(shared: Row, name: str) -> float | None:
    """A column that holds a number, else None."""
    try:
        return float(shared[name])
    except ValueError:
        return None
