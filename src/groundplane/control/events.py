"""Everything that can enter the control core. All integers, all frozen, all journalled before handling.

Ids, times and predictions are made outside and arrive here. Numbers out of range are refused when an event
is made. A *work* is anything that holds leases: an attempt of a job or a replica of a service; its id is
derived (`JOB.a1`, `SERVICE.r1`) and never used twice.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from msgspec import Struct, field

from groundplane.spec.errors import InputError

UNITS_PER_DEVICE = 7000
"""The integer unit of a part of a device: a MIG compute slice is 1,000 of them, one per mille is 7."""


class DevicePart(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of one device, beside other parts: a MIG instance if a `profile` is named, else a fraction.

    `units` is its compute in 1 / `UNITS_PER_DEVICE`, which is what quotas and accounts count. A fraction may
    use no more than `memory_bytes` of the device's memory (0 for any that is free); a profile has its own.
    """

    units: int
    memory_bytes: int = 0
    profile: str = ""

    def __post_init__(self) -> None:
        _at_least(self, 1, "units")
        _at_least(self, 0, "memory_bytes")
        if self.units > UNITS_PER_DEVICE:
            raise InputError(f"must be at most {UNITS_PER_DEVICE}", field="units", value=self.units)


class Gang(Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True):
    """All-or-nothing request: `num_ranks` processes, each on one node with its devices and host memory.

    `kinds` are the device kinds that will do, the best first; none named means any. With a `part` it is one
    rank on a part of one device.
    """

    num_ranks: int
    devices_per_rank: int
    memory_bytes_per_rank: int
    kinds: tuple[str, ...] = ()
    part: DevicePart | None = None

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_ranks", "devices_per_rank")
        _at_least(self, 0, "memory_bytes_per_rank")
        if self.part is not None and (self.num_ranks, self.devices_per_rank) != (1, 1):
            raise InputError("must be one rank on one device to take a part of it", field="part")


class RestartPolicy(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """At most `budget` restarts; the n-th in a row without progress waits min(backoff * 2**(n-1), limit)."""

    budget: int
    backoff_ns: int
    backoff_limit_ns: int

    def __post_init__(self) -> None:
        _at_least(self, 0, "budget", "backoff_ns", "backoff_limit_ns")


class Event(Struct, frozen=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all events; the tag is the class name."""


# Devices -------------------------------------------------------------------------------------------------


class PartProfile(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One way to cut a device in hardware: `num_slots` memory slices from one of `starts` on.

    `max_instances` at once on a device; 0 for as many as find room.
    """

    name: str
    units: int
    memory_bytes: int
    num_slots: int
    starts: tuple[int, ...]
    max_instances: int = 0

    def __post_init__(self) -> None:
        _at_least(self, 1, "units", "num_slots")
        _at_least(self, 0, "memory_bytes", "max_instances")


class KindDescribed(Event, frozen=True):
    """What the devices of a kind are, which is needed before one of them can be shared.

    Parts that are held stay as they are: a description that they contradict is ignored.
    """

    device_kind: str
    memory_bytes: int = 0
    profiles: tuple[PartProfile, ...] = ()

    def __post_init__(self) -> None:
        _at_least(self, 0, "memory_bytes")


# Nodes ---------------------------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True):
    """A node offers its devices. A node that comes again under the same id must offer the same ones.

    `topology` names the domains around it, the widest first (zone, spine, rack): gangs are kept together in
    the narrowest of them that has room.

    `boot` counts the lives of a node from 1. A fenced node joins again with a greater one; a greater one from
    a node that was not fenced is itself the proof that nothing of its earlier life runs any more.
    """

    node_id: str
    device_kind: str
    num_devices: int
    memory_bytes: int
    boot: int = 1
    topology: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_devices", "boot")
        _at_least(self, 0, "memory_bytes")


class NodeSilent(Event, frozen=True):
    """Nothing was heard of a node for too long. Its leases stay: silence proves nothing."""

    node_id: str


class NodeBack(Event, frozen=True):
    """A silent node is heard again. Reports on its works follow as their own events."""

    node_id: str


class NodeFenced(Event, frozen=True):
    """Proof that nothing of the node's life `boot` can run any more (power cut, or its boot id changed).

    The driver lets the node take no work before it has joined again with a greater `boot`. Proof of an
    earlier life than the one that the core knows is old news and ignored.
    """

    node_id: str
    boot: int = 1


class NodeCordoned(Event, frozen=True):
    """An operator takes the node out of placement; what runs there goes on."""

    node_id: str


class NodeUncordoned(Event, frozen=True):
    """An operator lets the node take placements again, whether it was cordoned, drained or in quarantine."""

    node_id: str


class NodeDrainRequested(Event, frozen=True):
    """An operator wants the node empty: it is cordoned, and what runs there goes elsewhere.

    Replicas are replaced one at a time a service. Jobs that stop at checkpoints do so at their next one. What
    is left after `wait_ns` is stopped (-1: never).
    """

    node_id: str
    wait_ns: int = -1

    def __post_init__(self) -> None:
        _at_least(self, -1, "wait_ns")


class SpareRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """So many nodes of a kind are kept back to take the place of others that are lost."""

    device_kind: str
    num_nodes: int

    def __post_init__(self) -> None:
        _at_least(self, 0, "num_nodes")


class HealthSet(Event, frozen=True):
    """Rules for nodes that fail, in place of those before.

    A node on which `max_failures` attempts or replicas of at least `min_owners` jobs and services failed
    within `window_ns` goes into quarantine (0: never) for `quarantine_ns` (0: until an operator opens it),
    but never more than `most_per_mille` of the nodes of a kind, or one if that is less. A node that slows a
    gang down goes there at once if `replaces_stragglers`, and the gang has `straggler_wait_ns` for its next
    checkpoint.
    """

    max_failures: int = 3
    min_owners: int = 2
    window_ns: int = 3_600_000_000_000
    quarantine_ns: int = 0
    most_per_mille: int = 100
    replaces_stragglers: bool = True
    straggler_wait_ns: int = 600_000_000_000
    spares: tuple[SpareRule, ...] = ()

    def __post_init__(self) -> None:
        _at_least(self, 0, "max_failures", "window_ns", "quarantine_ns", "most_per_mille")
        _at_least(self, 0, "straggler_wait_ns")
        _at_least(self, 1, "min_owners")


# Jobs ----------------------------------------------------------------------------------------------------


class JobSubmitted(Event, frozen=True):
    """A job enters the queue. `predicted_run_ns` is 0 where nothing was predicted; a time limit then stands
    for it.

    `larger_ranks` are numbers of ranks beyond those of `gang` that it can run with too, ascending. The jobs
    in `after` must succeed before it. Of those that name the same `group` at most `group_limit` wait for
    devices or run at once (0: all). It is stopped at `deadline_ns` (0: never), and before that goes first
    within its priority once twice its predicted run time is left.
    """

    job_id: str
    name: str
    queue: str
    priority: int
    gang: Gang
    restart: RestartPolicy
    stop_grace_ns: int
    time_limit_ns: int = 0
    predicted_run_ns: int = 0
    is_preemptible: bool = True
    larger_ranks: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    group: str = ""
    group_limit: int = 0
    deadline_ns: int = 0
    stops_at_checkpoint: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 0, "stop_grace_ns", "time_limit_ns", "predicted_run_ns")
        _at_least(self, 0, "group_limit", "deadline_ns")
        if self.job_id in self.after:
            raise InputError("must not name the job itself", field="after", value=self.job_id)
        sizes = (self.gang.num_ranks, *self.larger_ranks)
        if any(after <= before for before, after in pairwise(sizes)):
            raise InputError("must ascend from the gang's", field="larger_ranks", value=self.larger_ranks)
        if self.larger_ranks and self.gang.part is not None:
            raise InputError("must be empty for a part of a device", field="larger_ranks")


class JobCancelRequested(Event, frozen=True):
    """Somebody wants the job gone. Not an error for a job that has ended."""

    job_id: str


# Works: attempts and replicas, as their engine reports them -----------------------------------------------


class WorkStarted(Event, frozen=True):
    """Every process of the gang runs."""

    work_id: str
    fence: int


class WorkReady(Event, frozen=True):
    """A replica answers its readiness probe; for an attempt: the first step was made."""

    work_id: str
    fence: int


class WorkUnready(Event, frozen=True):
    """A replica that was ready does not answer. It keeps its leases and gets no new requests."""

    work_id: str
    fence: int


class WorkStalled(Event, frozen=True):
    """The work has made no progress for longer than it may: it hangs. Once it is gone it has failed."""

    work_id: str
    fence: int
    detail: str = ""


class WorkSlowed(Event, frozen=True):
    """One node of a gang is so much slower than the others that it slows all of them down: a straggler."""

    work_id: str
    fence: int
    node_id: str
    detail: str = ""


class CheckpointCommitted(Event, frozen=True):
    """A complete checkpoint of this attempt is durable: what came before it cannot be lost any more."""

    work_id: str
    fence: int
    step: int


class WorkGone(Event, frozen=True):
    """Proof: no process of the work is left, or none was ever started. Only this releases its leases.

    outcome: `succeeded` (every rank exited 0), `failed` (a rank exited otherwise), `stopped` (ended on our
    request or, where it ran and we asked for nothing, by the platform's operator: no failure of the job,
    which is queued again at once), `start_failed` (nothing was started). `node_id` is where the first rank
    failed, if that is known.
    """

    work_id: str
    fence: int
    outcome: Literal["succeeded", "failed", "stopped", "start_failed"]
    exit_code: int = 0
    detail: str = ""
    node_id: str = ""


# Services ------------------------------------------------------------------------------------------------


class ServiceDeployed(Event, frozen=True):
    """A service is created, or an existing one gets a new generation of its description.

    A replica that was ready and has not answered for `unready_limit_ns` is replaced (0: never).
    """

    service_id: str
    name: str
    queue: str
    priority: int
    num_replicas: int
    gang: Gang
    restart: RestartPolicy
    drain_ns: int
    generation: int = 1
    unready_limit_ns: int = 0

    def __post_init__(self) -> None:
        _at_least(self, 0, "num_replicas", "drain_ns", "unready_limit_ns")


class ServiceScaled(Event, frozen=True):
    """The number of replicas wanted changes."""

    service_id: str
    num_replicas: int

    def __post_init__(self) -> None:
        _at_least(self, 0, "num_replicas")


class ServiceRemoved(Event, frozen=True):
    """The service goes: its replicas drain, stop, and are gone."""

    service_id: str


class WorkDrained(Event, frozen=True):
    """A draining replica has no request in flight any more."""

    work_id: str
    fence: int


# Policy --------------------------------------------------------------------------------------------------


class QueueRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One queue below `parent` ("" for the root).

    `weight` is its part beside its siblings; of `guaranteed_devices` it is served before those who have had
    theirs; it never holds more than `limit_devices` (-1 for no limit). All count with the queues below it.
    """

    queue_id: str
    parent: str = ""
    weight: int = 1
    guaranteed_devices: int = 0
    limit_devices: int = -1

    def __post_init__(self) -> None:
        _at_least(self, 1, "weight")
        _at_least(self, 0, "guaranteed_devices")
        _at_least(self, -1, "limit_devices")


class OrderRules(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Who goes first within a queue, and where it is put.

    With `patience_percent` jobs of one priority go in the order of their due times instead of their
    submission: submission plus so many percent of the predicted run time, over the number of the gang's
    devices (`unpredicted_run_ns` where nothing is predicted). Without `is_backfilling` nothing passes the
    head. With `packs_by_end` a gang smaller than a node goes where it least delays the moment at which the
    node is empty, as far as ends are predicted.
    """

    is_backfilling: bool = True
    patience_percent: int = 0
    unpredicted_run_ns: int = 0
    packs_by_end: bool = False

    def __post_init__(self) -> None:
        _at_least(self, 0, "patience_percent", "unpredicted_run_ns")


class PreemptionRules(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Who may take devices from jobs that run; only the head of the queue ever does.

    With `reclaims` a queue below its guarantee takes back what others hold beyond theirs. With
    `priority_gap` (0 for never) an entry takes from jobs whose priority is lower by so much. A victim has
    `checkpoint_wait_ns` to reach its next checkpoint and stops right after it. Who has held its devices for
    less than `min_run_ns`, or was preempted `max_preemptions` times, is no victim.
    """

    reclaims: bool = True
    priority_gap: int = 1
    checkpoint_wait_ns: int = 300_000_000_000
    min_run_ns: int = 60_000_000_000
    max_preemptions: int = 5

    def __post_init__(self) -> None:
        _at_least(self, 0, "priority_gap", "checkpoint_wait_ns", "min_run_ns", "max_preemptions")


class PolicySet(Event, frozen=True):
    """All queues and their rules, in place of what was before; works that run go on.

    `half_life_ns` is how long it takes until past usage counts half; 0 for no memory of the past. Without
    `preemption` what runs is never stopped for the sake of others.
    """

    queues: tuple[QueueRule, ...]
    half_life_ns: int = 0
    order: OrderRules = field(default_factory=OrderRules)
    preemption: PreemptionRules | None = None

    def __post_init__(self) -> None:
        _at_least(self, 0, "half_life_ns")
        parent_of: dict[str, str] = {}
        for rule in self.queues:
            if not rule.queue_id or rule.queue_id in parent_of:
                raise InputError("must be named, and once", field="queues", value=rule.queue_id)
            parent_of[rule.queue_id] = rule.parent
        for rule in self.queues:
            above, num_steps = rule.parent, 0
            while above:
                num_steps += 1
                if above not in parent_of or num_steps > len(parent_of):
                    text = "must be a queue of the policy, not below this one"
                    raise InputError(text, field=f"queues.{rule.queue_id}.parent", value=rule.parent)
                above = parent_of[above]


# Windows -------------------------------------------------------------------------------------------------


class WindowSet(Event, frozen=True):
    """Nodes are set aside from `begin_ns` to `end_ns`: for works of `queue`, or, if that is "", for nobody.

    A window that is over, is known, or overlaps another on a node is ignored.
    """

    window_id: str
    node_ids: tuple[str, ...]
    begin_ns: int
    end_ns: int
    queue: str = ""

    def __post_init__(self) -> None:
        _at_least(self, 0, "begin_ns")
        if self.end_ns <= self.begin_ns:
            raise InputError("must be after the beginning", field="end_ns", value=self.end_ns)
        if not self.node_ids or len(set(self.node_ids)) < len(self.node_ids):
            raise InputError("must name nodes, each once", field="node_ids", value=self.node_ids)


class WindowRemoved(Event, frozen=True):
    """A window is taken back, or ends early."""

    window_id: str


# Time ----------------------------------------------------------------------------------------------------


class TimerFired(Event, frozen=True):
    """A timer set by a `SetTimer` action is due. Late and repeated firings are harmless."""

    timer_id: str


AnyEvent = (
    KindDescribed
    | NodeJoined
    | NodeSilent
    | NodeBack
    | NodeFenced
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainRequested
    | HealthSet
    | JobSubmitted
    | JobCancelRequested
    | WorkStarted
    | WorkReady
    | WorkUnready
    | WorkStalled
    | WorkSlowed
    | CheckpointCommitted
    | WorkGone
    | ServiceDeployed
    | ServiceScaled
    | ServiceRemoved
    | WorkDrained
    | PolicySet
    | WindowSet
    | WindowRemoved
    | TimerFired
)


def _at_least(struct: Struct, least: int, *fields: str) -> None:
    """What no event may carry is refused where it is made, so that the core never meets it."""
    for name in fields:
        value = getattr(struct, name)
        if value < least:
            raise InputError(f"must be at least {least}", field=name, value=value)
