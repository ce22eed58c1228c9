"""Which software stack published a run: by the source's name, else by what the row says of sharding and chip."""

from __future__ import annotations

import re
from typing import Final

_BY_SOURCE: Final = (
    (r"llm-foundry|MosaicML|Composer", "llm-foundry"),
    (r"nanotron", "nanotron"),
    (r"vTrain", "megatron-deepspeed"),
    (r"BLOOM|BigScience|DeepSpeed|MT-NLG", "megatron-deepspeed-zero"),
    (r"InternEvo|InternLM", "internevo"),
    (r"torchtitan", "torchtitan"),
    (r"MaxText|AI-Hypercomputer tpu|TPU", "maxtext"),
    (r"MegaScale", "megascale"),
    (r"Korthikanti|SC21|Megatron-LM", "megatron-lm"),
    (r"Megatron-Core|Megatron-Bridge|NeMo|SimuMax|Megatron", "megatron-core"),
)


def stack_of(source: str, sharding: str, chip: str) -> str:
    """Name of the stack profile for a published run."""
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
