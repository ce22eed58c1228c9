"""A control core with a hand on it: short ways to say what happens, and a check of every snapshot."""

from __future__ import annotations

from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, JobEnded, SetTimer, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, RestartPolicy
from groundplane.control.state import Accounts

S = 1_000_000_000


class Hand:
    """Feeds events in seconds; after each one a restored snapshot must be the same core."""

    def __init__(self) -> None:
        self.core = ControlCore()
        self.now_s = 0.0

    def tell(self, event: ev.AnyEvent, at_s: float | None = None) -> list[AnyAction]:
        if at_s is not None:
            self.now_s = at_s
        actions = self.core.handle(int(self.now_s * S), event)
        restored = ControlCore.restore(self.core.snapshot())
        assert restored.digest() == self.core.digest()
        assert [e.waiting_id for e in restored.queue.entries] == [
            e.waiting_id for e in self.core.queue.entries
        ]
        return actions

    def node(
        self,
        node_id: str,
        devices: int = 4,
        at_s: float | None = None,
        *,
        memory: int = 1000,
        kind: str = "gpu",
        boot: int = 1,
        topology: tuple[str, ...] = (),
    ) -> list[AnyAction]:
        return self.tell(ev.NodeJoined(node_id, kind, devices, memory, boot, topology), at_s)

    def submit(
        self,
        job_id: str,
        ranks: int = 1,
        devices: int = 1,
        at_s: float | None = None,
        *,
        memory: int = 1,
        priority: int = 0,
        budget: int = 2,
        backoff_s: int = 1,
        limit_s: int = 0,
        predicted_s: float = 0,
    ) -> list[AnyAction]:
        return self.tell(
            ev.JobSubmitted(
                job_id=job_id,
                name=job_id,
                queue="default",
                priority=priority,
                gang=Gang(ranks, devices, memory),
                restart=RestartPolicy(budget, backoff_s * S, 8 * S),
                stop_grace_ns=5 * S,
                time_limit_ns=limit_s * S,
                predicted_run_ns=int(predicted_s * S),
            ),
            at_s,
        )

    def deploy(
        self,
        service_id: str,
        replicas: int,
        at_s: float | None = None,
        *,
        devices: int = 1,
        generation: int = 1,
        budget: int = 3,
        priority: int = 100,
    ) -> list[AnyAction]:
        return self.tell(
            ev.ServiceDeployed(
                service_id=service_id,
                name=service_id,
                queue="default",
                priority=priority,
                num_replicas=replicas,
                gang=Gang(1, devices, 1),
                restart=RestartPolicy(budget, 1 * S, 8 * S),
                drain_ns=30 * S,
                generation=generation,
            ),
            at_s,
        )

    def fence(self, work_id: str) -> int:
        return self.core.state.works[work_id].fence

    def started(self, work_id: str, at_s: float | None = None) -> list[AnyAction]:
        return self.tell(ev.WorkStarted(work_id, self.fence(work_id)), at_s)

    def ready(self, work_id: str, at_s: float | None = None) -> list[AnyAction]:
        return self.tell(ev.WorkReady(work_id, self.fence(work_id)), at_s)

    def checkpoint(self, work_id: str, step: int, at_s: float | None = None) -> list[AnyAction]:
        return self.tell(ev.CheckpointCommitted(work_id, self.fence(work_id), step), at_s)

    def gone(self, work_id: str, outcome: str, at_s: float | None = None) -> list[AnyAction]:
        return self.tell(ev.WorkGone(work_id, self.fence(work_id), outcome), at_s)  # type: ignore[arg-type]

    def state(self, job_id: str) -> str:
        return self.core.state.jobs[job_id].state

    def accounts(self, node_id: str) -> dict[str, float]:
        """Non-zero accounts of a node in device-seconds."""
        node = self.core.state.nodes[node_id]
        books = self.core.ledger.read_node(node, int(self.now_s * S))
        return {n[:-3]: v / S for n in Accounts.__struct_fields__ if (v := getattr(books, n))}


def starts(actions: list[AnyAction]) -> list[str]:
    return [a.work_id for a in actions if isinstance(a, StartWork)]


def places(actions: list[AnyAction]) -> list[tuple[str, tuple[int, ...]]]:
    return [(r.node_id, r.devices) for a in actions if isinstance(a, StartWork) for r in a.placement]


def stops(actions: list[AnyAction]) -> list[tuple[str, str]]:
    return [(a.work_id, a.reason) for a in actions if isinstance(a, StopWork)]


def timers(actions: list[AnyAction]) -> dict[str, float]:
    return {a.timer_id: a.at_ns / S for a in actions if isinstance(a, SetTimer)}


def ends(actions: list[AnyAction]) -> list[tuple[str, str]]:
    return [(a.job_id, a.outcome) for a in actions if isinstance(a, JobEnded)]
