"""What every engine does, whatever it runs on: start, watch, stop with proof, find again.

An engine knows nothing of queues, quotas or recovery. It carries out what the control core decided and
reports what it sees; it says that a work is gone only when it can prove it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from groundplane.control.actions import RankPlacement


class NodeOffer(Struct, frozen=True):
    """What one node can lease: devices of one kind (cores of a machine without accelerators) and memory."""

    node_id: str
    device_kind: str
    num_devices: int
    memory_bytes: int


class Launch(Struct, frozen=True):
    """One gang to start. `commands[r]` and `envs[r]` belong to rank r, placed by `placement[r]`.

    Ranks inherit the engine's own environment under `envs[r]`, and its current folder. The engine adds
    GROUNDPLANE_WORK_DIR: the work's folder, where rank 0 appends progress.jsonl.
    """

    work_id: str
    fence: int
    kind: Literal["attempt", "replica"]
    placement: tuple[RankPlacement, ...]
    commands: tuple[tuple[str, ...], ...]
    envs: tuple[dict[str, str], ...]
    memory_bytes_per_rank: int
    ready_url: str = ""
    """For a replica: the URL that answers 200 once it is ready; empty for an attempt."""


class Report(Struct, frozen=True):
    """One thing seen. `position` orders the reports of a work and lets a restarted driver skip old ones.

    Positions of a work and fence rise from 1, `gone` is the last, and whoever reattaches gets the same ones
    again. `exit_code` is that of the first failing rank, or minus the number of the signal that ended it.
    """

    work_id: str
    fence: int
    position: int
    what: Literal["started", "ready", "unready", "checkpoint", "gone"]
    outcome: Literal["", "succeeded", "failed", "stopped", "start_failed"] = ""
    exit_code: int = 0
    step: int = 0
    detail: str = ""


class Engine(Protocol):
    """The contract. All methods return at once; results come as reports to the callback given to `open`.

    An OSError of `start`, `stop` or `reattach` says nothing of what runs: the call is to be made again.
    """

    name: str

    async def open(self, on_report: Callable[[Report], None]) -> list[NodeOffer]:
        """Begins to watch and says what the engine's nodes offer. Called once."""

    async def start(self, launch: Launch) -> None:
        """Starts a work. A second call with the same id and fence does nothing; an older fence is refused.

        What cannot start, or is refused, is reported as gone with outcome `start_failed`.
        """

    async def stop(self, work_id: str, fence: int, grace_ns: int) -> None:
        """Ends every process of a work; `gone` is reported when none is left. Unknown works are gone."""

    async def reattach(self, work_id: str, fence: int) -> None:
        """Watches a work that an earlier control plane started; reports from its beginning again.

        Of a work that never started nothing is reported: a start or a stop of it may still follow.
        """

    def log_path(self, work_id: str, rank: int) -> Path:
        """Where a rank's standard output and error are."""

    async def close(self) -> None:
        """Stops watching. Works go on."""
