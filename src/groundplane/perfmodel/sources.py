"""Which software stack published a run: by the source's name, else by what the row says of sharding and
chip."""

from __future__ import annotations

import re
from typing import Final

_BY_SOURCE: Final = (
    (r"llm-foundry|MosaicML|Composer", "llm-foundry"),
    (r"nanotron", "nanotron"),
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


_STALLING_JOBS: Final = range(13_800_000, 14_050_000)
"""Jobs of the nanotron sweep in which every micro-batch stood still for more than a second, whatever was
run: a fault of that installation in those weeks, which earlier and later jobs do not show."""

_LATE_JOBS: Final = range(14_050_000, 15_000_000)
"""Later jobs of it: gathers over tensor ranks cost a third of a millisecond a rank once a job spans nodes."""


def stack_of(source: str, sharding: str, chip: str, notes: str = "") -> str:
    """Name of the stack profile for a published run."""
    job = re.search(r"\bjob (\d+)", notes)
    if job and "nanotron" in source:
        if int(job[1]) in _STALLING_JOBS:
            return "nanotron-stalling"
        return "nanotron-late" if int(job[1]) in _LATE_JOBS else "nanotron"
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
