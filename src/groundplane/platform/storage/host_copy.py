"""A copy of a state in host memory, into buffers that are kept from one copy to the next.

The first copy makes the buffers; every later one costs what moving the bytes costs. The copy has the same
shape of nested dictionaries and lists, and shards stay shards of the same layout, so that Distributed
Checkpoint writes it as it would the original.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class HostCopy:
    """One state's buffers. The copy is valid until the next `take`."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """Copies all of a state and returns the copy; the bytes are there when it returns."""
        with torch.no_grad():
            copied: dict[str, Any] = self._copied("", state)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copied(self, path: str, value: Any) -> Any:
        if isinstance(value, DTensor):
            return DTensor.from_local(
                self._buffered(path, value.to_local()),
                value.device_mesh,
                value.placements,
                run_check=False,
                shape=value.size(),
                stride=value.stride(),
            )
        if isinstance(value, Tensor):
            return self._buffered(path, value)
        if isinstance(value, dict):
            return {key: self._copied(f"{path}/{key}", one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(f"{path}/{at}", one) for at, one in enumerate(value))
        return copy.deepcopy(value)

    def _buffered(self, path: str, value: Tensor) -> Tensor:
        value = value.detach()
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            on_device = value.device.type == "cuda"
            buffer = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=on_device)
            self._buffers[path] = buffer
        buffer.copy_(value, non_blocking=True)
        return buffer
