"""A training job as a person writes it: a gang of ranks, and either a command or the built-in trainer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.device import ANY_DEVICE, DeviceSpec, check_part
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


MOST_ELASTIC_RANKS = 65_536
"""The most ranks of a job whose number of ranks may vary."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="job"):
    """One job: `ranks` processes started together or not at all.

    Exactly one of `command` (run once a rank, with a torchrun-like environment) and `train` is given.

    An attempt that tells of no progress for `progress_limit` hangs, and is restarted (none given: never). A
    job that `stops_at_checkpoint`, as those of the built-in trainer do unless told otherwise, leaves a node
    that is drained at its next checkpoint. One that is not `preemptible` is never stopped for others.

    With `min_ranks` it also runs with fewer ranks: any divisor of `ranks` from there on. The jobs whose ids
    are in `after` must succeed before it. Of those that name the same `group` at most `group_limit` wait for
    devices or run at once (0: all). `deadline`, counted from submission, is when it is stopped at the latest.
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
    device: DeviceSpec = ANY_DEVICE
    progress_limit_s: Seconds | None = msgspec.field(default=None, name="progress_limit")
    preemptible: bool = True
    stops_at_checkpoint: bool | None = None
    min_ranks: PositiveInt | None = None
    after: tuple[str, ...] = ()
    group: str = ""
    group_limit: Count = 0
    deadline_s: Seconds | None = msgspec.field(default=None, name="deadline")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of ranks that it can run with, ascending."""
        least = self.ranks if self.min_ranks is None else self.min_ranks
        return tuple(num for num in range(least, self.ranks + 1) if self.ranks % num == 0)

    def __post_init__(self) -> None:
        if self.min_ranks is not None:
            most = min(self.ranks, MOST_ELASTIC_RANKS)
            if self.min_ranks > most:
                raise InputError(f"must be at most {most}", field="min_ranks", value=self.min_ranks)
            if self.ranks > MOST_ELASTIC_RANKS:
                raise InputError(f"must be at most {most} with min_ranks", field="ranks", value=self.ranks)
        if self.group_limit and not self.group:
            raise InputError("needs a group", field="group_limit", value=self.group_limit)
        if self.deadline_s == 0:
            raise InputError("must be more than 0", field="deadline", value=0)
        check_part(self.device, self.ranks, self.devices_per_rank, "ranks")
        if self.progress_limit_s == 0:
            raise InputError("must be more than 0", field="progress_limit", value=0)
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
