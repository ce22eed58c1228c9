"""The ranks of one run and how a model is spread over them: DDP or FSDP2, on gloo.

Knows nothing of data, checkpoints or steps.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from groundplane.platform.training.model import Llama

COLLECTIVE_LIMIT: Final = timedelta(minutes=10)
"""Longest wait for another rank: rank 0 may be tokenising a large corpus meanwhile."""


@dataclass(frozen=True)
class Ranks:
    """This process among its gang. `background` is a group of its own for collectives of the checkpoint
    thread."""

    rank: int
    world_size: int
    background: dist.ProcessGroup

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes what all share."""
        return self.rank == 0

    def share(self, value: Any, *, background: bool = False) -> Any:
        """Rank 0's value, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.background if background else None)
        return box[0]

    def gather(self, value: Any, *, background: bool = False) -> list[Any]:
        """Every rank's value in order of rank, on every rank."""
        boxes: list[Any] = [None] * self.world_size
        dist.all_gather_object(boxes, value, group=self.background if background else None)
        return boxes

    def sum(self, values: Tensor) -> Tensor:
        """Adds `values` over the ranks, in place."""
        dist.all_reduce(values)
        return values


def open_ranks(rank: int, world_size: int) -> Ranks:
    """Joins the gang at MASTER_ADDR:MASTER_PORT; a gang of one needs neither."""
    if os.environ.get("MASTER_ADDR", "127.0.0.1") in {"127.0.0.1", "localhost", "::1"}:
        # Else gloo binds to whatever the host's name resolves to, which may be no address at all.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store: Any = HashStore() if world_size == 1 else None
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=COLLECTIVE_LIMIT)
    background = dist.new_group(backend="gloo", timeout=COLLECTIVE_LIMIT)
    if not isinstance(background, dist.ProcessGroup):
        raise TypeError("every rank is a member of the group of all ranks")
    return Ranks(rank, world_size, background)


def close_ranks() -> None:
    """Leaves the gang, after all have come here."""
    dist.barrier()
    dist.destroy_process_group()


class SpreadModel:
    """A model on the gang's ranks, with the few calls that differ between DDP and FSDP2.

    Args:
        model: initialised alike on every rank; under FSDP2 its parameters become shards.
        kind: "ddp" or "fsdp2".
        precision: "fp32", or "bf16" for matrix products in bfloat16 with float32 parameters.
    """

    def __init__(
        self, model: Llama, kind: Literal["ddp", "fsdp2"], precision: Literal["fp32", "bf16"]
    ) -> None:
        self.model = model
        self._bf16 = precision == "bf16"
        self._kind = kind
        self._wrapped: nn.Module
        if kind == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            self._wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            self._wrapped = model

    def warm_up(self, micro_batch: int, seq: int) -> None:
        """One forward and backward pass whose gradients are dropped.

        DDP sorts its buckets anew after the first backward pass it sees, and with three or more ranks the
        order of a ring's sums depends on the buckets. After this pass a resumed run has the buckets of the
        undisturbed one.
        """
        tokens = torch.zeros((micro_batch, seq), dtype=torch.int64)
        for _ in range(2):
            self.loss(tokens, tokens).backward()  # type: ignore[no-untyped-call]
        for parameter in self.model.parameters():
            parameter.grad = None

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of one micro batch: int64 (micro_batch, seq) twice to a float32 scalar."""
        autocast: AbstractContextManager[Any] = (
            torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()
        )
        with autocast:
            loss: Tensor = self._wrapped(inputs, targets)
        return loss

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro step: gradients are exchanged in the last one only."""
        if self._kind == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            if isinstance(self._wrapped, DistributedDataParallel) and not last:
                return self._wrapped.no_sync()
        else:
            from torch.distributed.fsdp import FSDPModule

            if isinstance(self._wrapped, FSDPModule):
                self._wrapped.set_requires_gradient_sync(last)
        return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor behind a shard, or the tensor itself; every rank must call it."""
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        full: Tensor = tensor.full_tensor()
        return full.detach()
    return tensor.detach()


def now_ns() -> int:
    """The monotonic clock, for durations."""
    return time.monotonic_ns()
