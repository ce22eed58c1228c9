"""Jobs that run with more or fewer ranks: how large they start, and when they grow. Knows no queues.

The queue waits for the smallest gang of such a job. It starts with more ranks when nothing else waits, as
many as fit. When nothing waits and there is room for more, it stops right after a checkpoint and starts again
larger. What it holds beyond its smallest gang is lent: for anybody who waits it is the first to be taken back
(`victims.py`), where the policy allows preemption at all.
"""

from __future__ import annotations

from msgspec import structs

from groundplane.control.events import Gang
from groundplane.control.placement import Pools
from groundplane.control.shares import Shares
from groundplane.control.state import CoreState, Job, Work

RESIZED = "resized"
"""How the reason of a `StopWork` begins where the job goes on with another number of ranks."""
MIN_RUN_BEFORE_GROWTH_NS = 600_000_000_000
"""What a job must have run before it is stopped to grow: a restart has to pay."""


def gang_with(gang: Gang, num_ranks: int) -> Gang:
    """The same gang with another number of ranks."""
    return gang if num_ranks == gang.num_ranks else structs.replace(gang, num_ranks=num_ranks)


def is_enlarged(job: Job, work: Work) -> bool:
    """Whether an attempt holds more than its job needs."""
    return work.gang.num_ranks > job.gang.num_ranks


def larger_gangs(job: Job) -> list[Gang]:
    """The gangs beyond the smallest that the job can run with, the largest first."""
    return [gang_with(job.gang, num_ranks) for num_ranks in reversed(job.larger_ranks)]


def ranks_to_grow_to(state: CoreState, shares: Shares, pools: Pools, work: Work) -> int:
    """With how many ranks a job would rather start again, now that its checkpoint is made; 0 to go on.

    Nothing may wait when this is asked.
    """
    job = state.jobs[work.owner_id]
    if work.stop_intent or state.now_ns - work.leased_ns < MIN_RUN_BEFORE_GROWTH_NS:
        return 0
    kind = state.nodes[work.placement[0].node_id].device_kind
    leaf = shares.leaf_of(job.queue)
    for gang in larger_gangs(job):
        num_more = gang.num_ranks - work.gang.num_ranks
        if num_more <= 0:
            return 0
        more = structs.replace(gang, num_ranks=num_more, kinds=(kind,))
        if shares.limit_reached(leaf, more) is None and pools.have_room(more):
            return gang.num_ranks
    return 0
