"""The whole state of the control core: plain slotted structs, changed in place, private to the core.

Everything here is an integer, a text or a container of those, so that a snapshot is the msgpack of
`CoreState` and a digest the hash of it. Whatever can be derived (queue order, placement index) is not kept
here.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from groundplane.control.actions import PlacedPart, RankPlacement
from groundplane.control.events import (
    DevicePart,
    Gang,
    HealthSet,
    KindDescribed,
    OrderRules,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
)


class Accounts(Struct, forbid_unknown_fields=True, gc=False):
    """Where device-nanoseconds went; see `ledger.py` for the rule of each account."""

    busy_ns: int = 0
    allocated_idle_ns: int = 0
    wasted_by_failure_ns: int = 0
    fragmentation_ns: int = 0
    maintenance_ns: int = 0
    free_ns: int = 0


Closed = Literal["", "quarantine", "spare", "kept"]
"""Why a node takes no work, beside cordons."""


class NodeFailure(Struct, forbid_unknown_fields=True, gc=False):
    """An attempt or replica of `owner_id` failed on a node."""

    at_ns: int
    owner_id: str


class SharedDevice(Struct, forbid_unknown_fields=True):
    """One device that is cut into parts, with the part of each work; there is at least one."""

    device: int
    parts: dict[str, PlacedPart] = field(default_factory=dict)


class Node(Struct, forbid_unknown_fields=True, gc=False):
    """One node and its devices, which are numbered from 0 and are each other's equals.

    `closed_for` is why it takes no work beside cordons: in quarantine, a spare, or a spare kept for the owner
    of a work that lost its node (`closed_note` says which).

    `index` is its place in the order of joining, `topology` the domains around it, the widest first. `free`
    are the devices that nobody holds, ascending; `leases` the whole devices of each work here, `shared` those
    devices that are cut into parts, with the part of each work; `parts_accounts` are what is left of
    device-nanoseconds of parts, in units of them (see `part_books.py`). `accounts` are settled
    up to `since_ns` for free devices and up to its lease for a leased one; `since_fragmented_ns` is the
    reading of the kind's fragmentation clock at `since_ns`. `eras` carries what no 64-bit integer would hold
    (see `ledger.py`).
    """

    node_id: str
    index: int
    device_kind: str
    num_devices: int
    memory_bytes: int
    free_memory_bytes: int
    joined_ns: int
    boot: int
    since_ns: int
    since_fragmented_ns: int
    free: tuple[int, ...]
    topology: tuple[str, ...] = ()
    leases: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shared: list[SharedDevice] = field(default_factory=list)
    parts_accounts: Accounts = field(default_factory=Accounts)
    accounts: Accounts = field(default_factory=Accounts)
    eras: Accounts = field(default_factory=Accounts)
    state: str = "up"
    is_cordoned: bool = False
    is_draining: bool = False
    closed_for: Closed = ""
    closed_note: str = ""
    failures: list[NodeFailure] = field(default_factory=list)

    @property
    def num_free(self) -> int:
        """Devices that nobody holds."""
        return len(self.free)

    def parts_of(self, device: int) -> dict[str, PlacedPart]:
        """The parts of a device by work; none for one that is not shared."""
        return next((each.parts for each in self.shared if each.device == device), {})

    def holders(self) -> list[str]:
        """Ids of the works that hold devices or parts of them here, each once."""
        sharing = (work_id for each in self.shared for work_id in each.parts)
        return [*self.leases, *dict.fromkeys(sharing)]

    @property
    def is_open(self) -> bool:
        """Whether new work may be placed here."""
        return self.state == "up" and not self.is_cordoned and not self.closed_for


class Work(Struct, forbid_unknown_fields=True, gc=False):
    """An attempt or a replica that is not gone. Times since its lease, by what they will be booked as.

    Up to `mode_since_ns`: `idle_ns`, busy that can be lost no more (`safe_ns`), and busy that a failure
    would waste (`at_risk_ns`).
    """

    work_id: str
    kind: Literal["attempt", "replica"]
    owner_id: str
    number: int
    state: str
    gang: Gang
    queue: str = ""
    generation: int = 1
    fence: int = 0
    placement: tuple[RankPlacement, ...] = ()
    lost_nodes: list[str] = field(default_factory=list)
    leased_ns: int = 0
    is_busy: bool = False
    mode_since_ns: int = 0
    idle_ns: int = 0
    safe_ns: int = 0
    at_risk_ns: int = 0
    checkpoint_step: int = -1
    stop_intent: str = ""
    stop_reason: str = ""
    stop_grace_ns: int = 0


class Job(Struct, forbid_unknown_fields=True, gc=False):
    """One job. `sequence` is its place among all submissions and stays when it is queued again."""

    job_id: str
    name: str
    queue: str
    priority: int
    sequence: int
    gang: Gang
    restart: RestartPolicy
    stop_grace_ns: int
    time_limit_ns: int
    predicted_run_ns: int
    submitted_ns: int
    is_preemptible: bool = True
    larger_ranks: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    group: str = ""
    group_limit: int = 0
    deadline_ns: int = 0
    is_urgent: bool = False
    stops_at_checkpoint: bool = False
    num_preemptions: int = 0
    state: str = "queued"
    num_attempts: int = 0
    restarts_used: int = 0
    restarts_in_row: int = 0
    work_id: str = ""
    lost_work_id: str = ""
    lost_fence: int = 0
    first_started_ns: int = -1
    ended_ns: int = -1
    checkpoint_step: int = -1
    reason: str = ""


class Service(Struct, forbid_unknown_fields=True, gc=False):
    """One service. `replicas` are the ids of those that are not gone, oldest first."""

    service_id: str
    name: str
    queue: str
    priority: int
    sequence: int
    num_replicas: int
    gang: Gang
    restart: RestartPolicy
    drain_ns: int
    generation: int
    unready_limit_ns: int = 0
    state: Literal["active", "failed", "removing", "removed"] = "active"
    replicas: list[str] = field(default_factory=list)
    next_number: int = 1
    restarts_used: int = 0
    restarts_in_row: int = 0
    reason: str = ""


class Timer(Struct, forbid_unknown_fields=True, gc=False):
    """One timer that is set: when it is due, what it means and for whom."""

    at_ns: int
    kind: Literal[
        "job_backoff",
        "job_limit",
        "job_urgent",
        "window_begin",
        "window_end",
        "job_deadline",
        "replica_backoff",
        "replica_drain",
        "replica_unready",
        "yield",
        "preemption",
        "evict",
        "node_drain",
        "node_quarantine",
    ]
    target_id: str


class Window(Struct, forbid_unknown_fields=True, gc=False):
    """Nodes set aside; `closed` are those that the window itself has cordoned."""

    node_ids: tuple[str, ...]
    begin_ns: int
    end_ns: int
    queue: str
    has_begun: bool = False
    closed: list[str] = field(default_factory=list)


class Hold(Struct, forbid_unknown_fields=True, gc=False):
    """What the plan of the queue's head keeps on one node."""

    num_devices: int
    memory_bytes: int


class HeadPlan(Struct, forbid_unknown_fields=True, gc=False):
    """Where the blocked head of the queue will run, and from when; `start_ns` is -1 where it is not known.

    `victims` are the attempts that are stopped for its sake, if any; with a `service_id` also for the other
    replicas of the service that wait, to whom the plan goes on.
    """

    owner_id: str
    start_ns: int
    holds: dict[str, Hold]
    victims: tuple[str, ...] = ()
    service_id: str = ""


class FragmentationClock(Struct, forbid_unknown_fields=True, gc=False):
    """Runs while the devices of one kind are free, enough by count, and yet the head cannot be placed."""

    total_ns: int = 0
    running_since_ns: int = -1

    def reading_ns(self, now_ns: int) -> int:
        """Time it has run up to `now_ns`."""
        return self.total_ns + (now_ns - self.running_since_ns if self.running_since_ns >= 0 else 0)


class Demand(Struct, forbid_unknown_fields=True, gc=False):
    """How often one shape of rank was asked for of late; see `fragmentation.py`."""

    num_devices: int
    part: DevicePart | None
    kinds: tuple[str, ...]
    count: int


class QueueUsage(Struct, forbid_unknown_fields=True, gc=False):
    """What the works of a queue and of those below it hold, and its average share up to `since_ns`.

    `num_devices` and `devices` are whole devices, `units` those of parts of devices, by kind.
    """

    since_ns: int
    num_devices: int = 0
    devices: dict[str, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    memory_bytes: int = 0
    average: int = 0


class CoreState(Struct, forbid_unknown_fields=True, gc=False):
    """All that the core knows. Dicts keep the order of insertion, which snapshots keep too.

    `jobs` holds those that have not ended and the newest that have, whose ids are in `ended_jobs`, oldest
    first; `num_ended` counts all that ever ended, by final state. `yielding` are the attempts that will stop
    at their next checkpoint, each with the job or replica that takes their place. `refused_id` is the head
    for which no victims were found at `refused_ns`.
    """

    now_ns: int = 0
    num_events: int = 0
    next_fence: int = 1
    next_sequence: int = 1
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    ended_jobs: list[str] = field(default_factory=list)
    num_ended: dict[str, int] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    kinds: dict[str, KindDescribed] = field(default_factory=dict)
    demands: list[Demand] = field(default_factory=list)
    health: HealthSet | None = None
    evicting: dict[str, str] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=dict)
    clocks: dict[str, FragmentationClock] = field(default_factory=dict)
    queues: dict[str, QueueRule] = field(default_factory=dict)
    half_life_ns: int = 0
    order: OrderRules = field(default_factory=OrderRules)
    preemption: PreemptionRules | None = None
    usage: dict[str, QueueUsage] = field(default_factory=dict)
    yielding: dict[str, str] = field(default_factory=dict)
    refused_id: str = ""
    refused_ns: int = 0
    windows: dict[str, Window] = field(default_factory=dict)
    head_id: str = ""
    head_plan: HeadPlan | None = None
    ignored: dict[str, int] = field(default_factory=dict)
