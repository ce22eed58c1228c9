"""Which software stack published a run: by the source's name, else by what the row says of sharding and
chip."""

from __future__ import annotations

import re
from typing import Final

_BY_SOURCE: Final = (
    (r"llm-foundry|MosaicML|Composer", "llm-foundry"),
    (r"vTrain", "megatron-deepspeed"),
    (r"BLOOM|BigScience|MT-NLG", "megatron-deepspeed-zero"),
    (r"DeepSpeed", "megatron-deepspeed-zero-3"),
    (r"DeepSeek", "megatron-core"),
    (r"InternEvo|InternLM", "internevo"),
    (r"torchtitan", "torchtitan"),
    (r"MaxText|AI-Hypercomputer tpu|TPU", "maxtext"),
    (r"MegaScale", "megascale"),
    (r"Korthikanti|SC21|Megatron-LM", "megatron-lm"),
    (r"SimuMax", "megatron-core-plain"),
    (r"RAPID|ml-engineering", "torchtitan-plain"),
    (r"Megatron-Core|Megatron-Bridge|NeMo|Megatron", "megatron-core"),
)


_PIPELINE_FIX: Final = {"True": "nanotron", "False": "nanotron-unfixed"}
"""nanotron after and before a repair of its pipelines, which rows of its sweep state (see decision 0009)."""


def stack_of(source: str, sharding: str, chip: str, notes: str = "") -> str:
    """Name of the stack profile for a published run."""
    if "nanotron" in source:
        fixed = re.search(r"after_pp_fix=(True|False)", notes)
        return _PIPELINE_FIX[fixed[1]] if fixed else "nanotron-either"
    for pattern, stack in _BY_SOURCE:
        if re.search(pattern, source, re.IGNORECASE):
            return stack
    if re.search(r"TPU", chip):
        return "maxtext"
    if re.search(r"FSDP2|FSDP", sharding):
        return "torchtitan"
    if re.search(r"ZeRO", sharding):
        return "megatron-deepspeed-zero"
    return "megatron-core"


def splits_sequence(stack: str) -> bool:
    """Whether a stack splits norms and residuals over the tensor ranks when a run does not say."""
    return stack in (
        "torchtitan",
        "megatron-core",
        "megatron-core-plain",
        "megascale",
        "maxtext",
        "internevo",
    )


def shards_optimizer(stack: str) -> bool:
    """Whether a stack shards the optimizer over replicas when a run does not say."""
    return stack in ("megatron-core", "megatron-core-plain", "megascale")


def batch_is_split(stack: str) -> bool:
    """Whether a stack states the batch of a replica, which its pipeline cuts into micro-batches of one."""
    return stack == "torchtitan"
