"""A training job as a person writes it: a gang of ranks, and either a command or the built-in trainer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Bytes, Count, Name, PositiveInt, Seconds


class RestartSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after a failure: the whole gang restarts from its last complete checkpoint.

    The n-th restart in a row without progress waits `backoff * 2**(n-1)`, at most `backoff_limit`;
    a committed checkpoint resets the count of restarts in a row, never the budget.
    """

    budget: Count = 5
    backoff_s: Seconds = msgspec.field(default=1.0, name="backoff")
    backoff_limit_s: Seconds = msgspec.field(default=60.0, name="backoff_limit")


class LlamaShape(Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a Llama-style model that the built-in trainer builds.

    `vocab` counts 256 bytes, 5 special tokens and the merges that are learnt.
    """

    layers: PositiveInt = 4
    hidden: PositiveInt = 256
    ffn: PositiveInt = 704
    heads: PositiveInt = 8
    kv_heads: PositiveInt = 4
    vocab: Annotated[int, Meta(ge=261)] = 4096
    tied_embeddings: bool = True
    rope_theta: Annotated[float, Meta(gt=0.0)] = 10_000.0
    norm_epsilon: Annotated[float, Meta(gt=0.0)] = 1e-5

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError("must be divisible by heads", field="hidden", value=self.hidden)
        if self.hidden // self.heads % 2:
            raise InputError("must be an even multiple of heads", field="hidden", value=self.hidden)
        if self.heads % self.kv_heads:
            raise InputError("must divide heads", field="kv_heads", value=self.kv_heads)


class TrainSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What the built-in trainer does. `data` lists files, folders or globs (text, .jsonl, .parquet)."""

    model: LlamaShape = LlamaShape()
    data: tuple[str, ...] = ("python-sources",)
    text_field: str = "text"
    seq: PositiveInt = 256
    global_batch: PositiveInt = 16
    micro_batch: PositiveInt = 8
    steps: PositiveInt = 200
    learning_rate: Annotated[float, Meta(gt=0.0)] = 1e-3
    warmup_steps: Count = 20
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.1
    clip_norm: Annotated[float, Meta(gt=0.0)] = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    seed: Count = 0
    checkpoint_every: PositiveInt = 25
    keep_checkpoints: PositiveInt = 2


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="job"):
    """One job: `ranks` processes started together or not at all.

    Exactly one of `command` (run once a rank, with a torchrun-like environment) and `train` is given.
    """

    name: Name
    ranks: PositiveInt = 1
    devices_per_rank: PositiveInt = 1
    memory_per_rank_bytes: Bytes = msgspec.field(default=1 << 30, name="memory_per_rank")
    queue: Name = "default"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    command: tuple[str, ...] = ()
    train: TrainSpec | None = None
    env: dict[str, str] = {}
    restart: RestartSpec = RestartSpec()
    time_limit_s: Seconds | None = msgspec.field(default=None, name="time_limit")
    stop_grace_s: Seconds = msgspec.field(default=10.0, name="stop_grace")

    def __post_init__(self) -> None:
        if bool(self.command) == (self.train is not None):
            raise InputError("exactly one of command and train must be given", field="command")
        for index, word in enumerate(self.command):
            if "\0" in word:
                raise InputError("must not contain a zero byte", field=f"command[{index}]")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                rule = "needs names without '=' that are not empty, and no zero byte"
                raise InputError(rule, field="env", value=name)
        if self.train is not None and self.train.global_batch % (self.train.micro_batch * self.ranks):
            raise InputError(
                f"must be divisible by micro_batch x ranks ({self.train.micro_batch} x {self.ranks})",
                field="train.global_batch",
                value=self.train.global_batch,
            )
