"""How long training waits for a checkpoint, against a plain copy of the same bytes in memory.

The state is float32 tensors. Copy and save take turns; both write to memory that was written before, as every
save but a run's first does.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

TENSOR_BYTES = 64 * 2**20


def checkpoint(work: Path, size: int, repeats: int) -> dict[str, Any]:
    """Times saves of `size` bytes to a folder tier."""
    import torch

    from groundplane.platform.storage.checkpoints import StoreCheckpoints
    from groundplane.platform.storage.spec import StoreSpec
    from groundplane.platform.storage.store import Store
    from storage import clean, in_turns

    clean(work)
    torch.manual_seed(1)
    state: dict[str, Any] = {
        f"layer.{number}": torch.rand(TENSOR_BYTES // 4) for number in range(size // TENSOR_BYTES)
    }
    copies = {name: torch.empty_like(tensor) for name, tensor in state.items()}

    def copy() -> float:
        begin_s = time.perf_counter()
        for name, tensor in state.items():
            copies[name].copy_(tensor)
        return time.perf_counter() - begin_s

    spec = StoreSpec(durable=f"file://{work}/durable", cache=str(work / "cache"), cache_limit_bytes=2 * size)
    whole: list[float] = []
    with Store(spec) as store:
        checkpoints = StoreCheckpoints(store, "bench", attempt="1", keep=1)
        steps = iter(range(10**6))

        def save() -> float:
            blocked_s = checkpoints.save(state, step=next(steps))
            whole.append(checkpoints.finish())
            return blocked_s

        taken = in_turns({"copy": copy, "save": save}, repeats, lambda: None)
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        begin_s = time.perf_counter()
        found = checkpoints.load(into)
        load_s = time.perf_counter() - begin_s
        if found is None or not all(torch.equal(into[name], state[name]) for name in state):
            raise SystemExit("a checkpoint did not come back as it was")
    clean(work)
    copy_s, save_s = statistics.median(taken["copy"]), statistics.median(taken["save"])
    return {
        "checkpoint_blocked_s": save_s,
        "checkpoint_copy_s": copy_s,
        "checkpoint_block_vs_memcpy": save_s / copy_s,
        "checkpoint_whole_s": statistics.median(whole),
        "checkpoint_load_s": load_s,
        "checkpoint_times_s": {name: [round(one, 3) for one in times] for name, times in taken.items()},
    }
