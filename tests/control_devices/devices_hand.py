"""A control core with a hand on it for the tests of devices, parts and health; kinds with NVIDIA's tables."""

from __future__ import annotations

from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, RankPlacement, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import DevicePart, Gang, KindDescribed, PartProfile, RestartPolicy
from groundplane.control.state import Accounts

S = 1_000_000_000
GIB = 1 << 30
STARTS = {
    "1g.10gb": (1, 1, (0, 1, 2, 3, 4, 5, 6), 0),
    "1g.10gb+me": (1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.20gb": (1, 2, (0, 2, 4, 6), 0),
    "2g.20gb": (2, 2, (0, 2, 4), 0),
    "3g.40gb": (3, 4, (0, 4), 0),
    "4g.40gb": (4, 4, (0,), 0),
    "7g.80gb": (7, 8, (0,), 0),
}
H100 = KindDescribed(
    "h100",
    80 * GIB,
    tuple(
        PartProfile(name, 1000 * compute, slots * 10 * GIB, slots, starts, most)
        for name, (compute, slots, starts, most) in STARTS.items()
    ),
)
PLAIN = KindDescribed("plain", 24 * GIB)
MIG_UNITS = {profile.name: profile.units for profile in H100.profiles}


def mig(name: str) -> Gang:
    return Gang(1, 1, 0, (), DevicePart(MIG_UNITS[name], 0, name))


def fraction(per_mille: int, gib: int = 0, *, kinds: tuple[str, ...] = ()) -> Gang:
    return Gang(1, 1, 0, kinds, DevicePart(per_mille * 7, gib * GIB))


class Hand:
    """Feeds events in seconds; after each one a restored snapshot must be the same core."""

    def __init__(self, *kinds: KindDescribed) -> None:
        self.core = ControlCore()
        self.now_s = 0.0
        for kind in kinds:
            self.tell(kind)

    def tell(self, event: ev.AnyEvent, at_s: float | None = None) -> list[AnyAction]:
        if at_s is not None:
            self.now_s = at_s
        actions = self.core.handle(int(self.now_s * S), event)
        restored = ControlCore.restore(self.core.snapshot())
        assert restored.digest() == self.core.digest()
        for node in self.core.state.nodes.values():
            books = self.core.ledger.read_node(node, self.core.state.now_ns)
            total_ns = sum(getattr(books, name) for name in Accounts.__struct_fields__)
            assert total_ns == (self.core.state.now_ns - node.joined_ns) * node.num_devices
        return actions

    def node(self, node_id: str, devices: int = 1, at_s: float | None = None, *, kind: str = "h100") -> None:
        self.tell(ev.NodeJoined(node_id, kind, devices, 1000), at_s)

    def submit(
        self,
        job_id: str,
        gang: Gang,
        at_s: float | None = None,
        *,
        queue: str = "default",
        priority: int = 0,
        predicted_s: int = 0,
        budget: int = 2,
        **more: int | bool,
    ) -> list[AnyAction]:
        job = ev.JobSubmitted(
            job_id=job_id,
            name=job_id,
            queue=queue,
            priority=priority,
            gang=gang,
            restart=RestartPolicy(budget, 1 * S, 8 * S),
            stop_grace_ns=5 * S,
            predicted_run_ns=predicted_s * S,
            **more,
        )
        return self.tell(job, at_s)

    def deploy(
        self, service_id: str, gang: Gang, replicas: int = 1, at_s: float | None = None
    ) -> list[AnyAction]:
        service = ev.ServiceDeployed(
            service_id=service_id,
            name=service_id,
            queue="default",
            priority=100,
            num_replicas=replicas,
            gang=gang,
            restart=RestartPolicy(10, 1 * S, 8 * S),
            drain_ns=30 * S,
        )
        return self.tell(service, at_s)

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

    def timer(self, timer_id: str, at_s: float) -> list[AnyAction]:
        return self.tell(ev.TimerFired(timer_id), at_s)

    def state(self, job_id: str) -> str:
        return self.core.state.jobs[job_id].state

    def place(self, job_id: str) -> RankPlacement:
        return self.core.state.works[f"{job_id}.a1"].placement[0]

    def accounts(self, node_id: str) -> dict[str, float]:
        """Non-zero accounts of a node in device-seconds."""
        node = self.core.state.nodes[node_id]
        books = self.core.ledger.read_node(node, int(self.now_s * S))
        return {n[:-3]: v / S for n in Accounts.__struct_fields__ if (v := getattr(books, n))}


def starts(actions: list[AnyAction]) -> list[str]:
    return [action.work_id for action in actions if isinstance(action, StartWork)]
