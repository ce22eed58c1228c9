"""Services and their replicas: as many as wanted, of the newest generation, replaced when they fail.

A replica that failed is replaced by a new one after a back-off; being ready resets the count in a row. A new
generation replaces replicas one at a time, without surplus: those that are not ready at once, the next that
is only when all others are. When the restart budget is used up the service is `failed` and keeps what still
runs, until it is deployed with a new generation.
"""

from __future__ import annotations

from groundplane.control.actions import DrainWork, RankPlacement, StartWork
from groundplane.control.context import Context
from groundplane.control.events import ServiceDeployed, ServiceRemoved, ServiceScaled
from groundplane.control.jobs import STALLED, backoff_ns
from groundplane.control.lifecycle.replica import REPLICA
from groundplane.control.plan import LEAVING
from groundplane.control.state import Service, Timer, Work

REPLICA_STOP_GRACE_NS = 10_000_000_000
"""Time that a replica without requests has for a polite end."""
_WAITING = ("queued", "backing_off")


class Services:
    """Decides about services; called by the core for each event that concerns one."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def deployed(self, event: ServiceDeployed) -> None:
        """A new service, or a new generation of one. An old generation is ignored."""
        state = self._context.state
        service = state.services.get(event.service_id)
        if service is None:
            service = Service(
                service_id=event.service_id,
                name=event.name,
                queue=event.queue,
                priority=event.priority,
                sequence=state.next_sequence,
                num_replicas=event.num_replicas,
                gang=event.gang,
                restart=event.restart,
                drain_ns=event.drain_ns,
                generation=event.generation,
                unready_limit_ns=event.unready_limit_ns,
            )
            state.next_sequence += 1
            state.services[service.service_id] = service
        elif event.generation <= service.generation:
            self._context.ignore("old generation of a service")
            return
        else:
            for replica in self._replicas(service, _WAITING):
                self._drop(service, replica)
            service.name, service.queue, service.priority = event.name, event.queue, event.priority
            service.num_replicas, service.gang, service.restart = (
                event.num_replicas,
                event.gang,
                event.restart,
            )
            service.drain_ns, service.generation, service.state = event.drain_ns, event.generation, "active"
            service.unready_limit_ns = event.unready_limit_ns
            service.restarts_used = service.restarts_in_row = 0
            service.reason = ""
        self._context.mix.note(event.gang)
        self._reconcile(service)

    def scaled(self, event: ServiceScaled) -> None:
        """Another number of replicas is wanted."""
        service = self._context.state.services.get(event.service_id)
        if service is None or service.state in {"removing", "removed"}:
            self._context.ignore("scale of a service that is not there")
            return
        service.num_replicas = event.num_replicas
        self._reconcile(service)

    def removed(self, event: ServiceRemoved) -> None:
        """The service goes. Its record stays, so that no replica id is ever used again."""
        service = self._context.state.services.get(event.service_id)
        if service is None or service.state in {"removing", "removed"}:
            self._context.ignore("removal of a service that is not there")
            return
        service.state = "removing"
        service.num_replicas = 0
        self._reconcile(service)

    def start(self, replica: Work, placement: tuple[RankPlacement, ...]) -> None:
        """A queued replica, on leased devices."""
        context = self._context
        service = context.state.services[replica.owner_id]
        context.remove_replica(service, replica)
        context.lease(replica, placement)
        replica.state = REPLICA.after(replica.state, "placed")
        context.actions.append(
            StartWork(
                replica.work_id, "replica", service.service_id, replica.fence, placement, replica.generation
            )
        )

    def replica_ready(self, replica: Work) -> None:
        """It answers: from now on its devices are busy, and the next failure is the first in a row."""
        service = self._context.state.services[replica.owner_id]
        service.restarts_in_row = 0
        self._context.drop_timer(_unready_timer(replica))
        self._context.ledger.set_busy(replica, True, self._context.now_ns)
        self._reconcile(service)

    def replica_unready(self, replica: Work) -> None:
        """It does not answer: it keeps its leases, which are idle until it does or is replaced."""
        context = self._context
        context.ledger.set_busy(replica, False, context.now_ns)
        limit_ns = context.state.services[replica.owner_id].unready_limit_ns
        if limit_ns:
            at_ns = context.now_ns + limit_ns
            context.set_timer(_unready_timer(replica), Timer(at_ns, "replica_unready", replica.work_id))

    def unready_too_long(self, replica: Work) -> None:
        """It has not answered for as long as its service allows."""
        limit_ms = self._context.state.services[replica.owner_id].unready_limit_ns // 10**6
        self.give_up(replica, f"did not answer for {limit_ms} ms")

    def give_up(self, replica: Work, reason: str) -> None:
        """Stops a replica that hangs: it has failed, and a new one takes its place when it is gone."""
        replica.stop_intent = STALLED
        self._context.drop_timer(_unready_timer(replica))
        self._request_stop(replica, reason)

    def move(self, replica: Work, reason: str) -> None:
        """Lets a replica end its requests and go; a new one takes its place elsewhere."""
        if replica.state not in LEAVING:
            service = self._context.state.services[replica.owner_id]
            self._let_go(service, replica, "drain", reason)
            self._reconcile(service)

    def review(self, service_id: str) -> None:
        """Nodes of its replicas are to be emptied: they move one at a time, the others stay ready."""
        self._reconcile(self._context.state.services[service_id])

    def replica_drained(self, replica: Work) -> None:
        """No request is in flight any more, or the time for draining is over."""
        self._context.drop_timer(_drain_timer(replica))
        self._request_stop(replica, replica.stop_reason)

    def replica_lost_node(self, replica: Work, node_id: str) -> None:
        """A part of it is gone with its node: the rest must end before a replacement starts."""
        if replica.state == "stopping":
            return
        if replica.state != "draining":
            replica.stop_intent = "node_lost"
        self._context.drop_timer(_drain_timer(replica))
        self._context.drop_timer(_unready_timer(replica))
        self._request_stop(replica, f"node {node_id} was lost")

    def replica_gone(self, replica: Work, fence: int, outcome: str, detail: str) -> None:
        """No process of it is left. Unless we wanted it gone, it failed and is replaced."""
        service = self._context.state.services[replica.owner_id]
        # An operator's stop is no failure; one that came before it ran is a start that failed.
        was_interrupted = outcome == "stopped" and not replica.stop_intent and replica.state != "starting"
        self._context.drop_timer(_drain_timer(replica))
        self._context.drop_timer(_unready_timer(replica))
        self._context.remove_work(replica, fence=fence, is_failure=False)
        service.replicas.remove(replica.work_id)
        if not was_interrupted and replica.stop_intent not in {"drain", "surplus"}:
            self._failed(service, replica.stop_reason or detail or outcome)
        self._reconcile(service)

    def backed_off(self, replica: Work) -> None:
        """The wait before a replacement is over."""
        service = self._context.state.services[replica.owner_id]
        replica.state = REPLICA.after(replica.state, "backed_off")
        self._context.add_replica(service, replica)

    def _failed(self, service: Service, detail: str) -> None:
        service.reason = detail
        if service.state != "active" or len(self._staying(service)) >= service.num_replicas:
            self._context.release_kept(service.service_id)
            return
        if service.restarts_used >= service.restart.budget:
            service.state = "failed"
            self._context.release_kept(service.service_id)
            service.reason = f"failed after {service.restarts_used} restarts: {detail}"
            return
        service.restarts_used += 1
        service.restarts_in_row += 1
        replica = self._add(service, "backing_off")
        at_ns = self._context.now_ns + backoff_ns(service.restart, service.restarts_in_row)
        self._context.set_timer(_backoff_timer(replica), Timer(at_ns, "replica_backoff", replica.work_id))

    def _awaits_replacement(self, service: Service) -> bool:
        """Whether a replica that was lost with its node is yet to be queued again."""
        works = self._context.state.works
        replicas = [works[work_id] for work_id in service.replicas]
        return service.state == "active" and any(
            replica.state == "backing_off" or replica.stop_intent == "node_lost" for replica in replicas
        )

    def _reconcile(self, service: Service) -> None:
        """Brings the replicas nearer to what is wanted. Looks at this service's replicas only."""
        staying = self._staying(service)
        while len(staying) > service.num_replicas:
            surplus = max(staying, key=lambda replica: _dispensable(service, replica))
            staying.remove(surplus)
            self._let_go(service, surplus, "surplus", "no longer wanted")
        if service.state == "active":
            while len(staying) < service.num_replicas:
                replica = self._add(service, "queued")
                self._context.add_replica(service, replica)
                staying.append(replica)
            self._roll(service, staying)
        if service.service_id in self._context.state.kept and not self._awaits_replacement(service):
            self._context.release_kept(service.service_id)
        if service.state == "removing" and not service.replicas:
            service.state = "removed"

    def _roll(self, service: Service, staying: list[Work]) -> None:
        """Lets the oldest replica go that is of an old generation or on a node that is to be emptied.

        At once if it is not ready, else when all others are.
        """
        nodes = self._context.state.nodes
        old = [
            replica
            for replica in staying
            if replica.generation < service.generation
            or any(nodes[rank.node_id].is_draining for rank in replica.placement)
        ]
        if not old:
            return
        first = min(old, key=lambda replica: (replica.state == "ready", replica.number))
        is_calm = len(staying) == len(service.replicas) and all(each.state == "ready" for each in staying)
        if first.state != "ready" or is_calm:
            is_old = first.generation < service.generation
            reason = "replaced by a new generation" if is_old else "its node is drained"
            self._let_go(service, first, "drain", reason)
            self._reconcile(service)

    def _let_go(self, service: Service, replica: Work, intent: str, reason: str) -> None:
        if replica.state in _WAITING:
            self._drop(service, replica)
            return
        replica.stop_intent, replica.stop_reason = intent, reason
        self._context.drop_timer(_unready_timer(replica))
        if not REPLICA.allows(replica.state, "drain"):
            self._request_stop(replica, reason)
            return
        replica.state = REPLICA.after(replica.state, "drain")
        self._context.is_leaving(replica)
        self._context.actions.append(DrainWork(replica.work_id, replica.fence))
        at_ns = self._context.now_ns + service.drain_ns
        self._context.set_timer(_drain_timer(replica), Timer(at_ns, "replica_drain", replica.work_id))

    def _request_stop(self, replica: Work, reason: str) -> None:
        self._context.request_stop(
            replica, intent=replica.stop_intent, reason=reason, grace_ns=REPLICA_STOP_GRACE_NS
        )

    def _drop(self, service: Service, replica: Work) -> None:
        """Forgets a replica that holds nothing."""
        if replica.state == "queued":
            self._context.remove_replica(service, replica)
        self._context.drop_timer(_backoff_timer(replica))
        replica.state = REPLICA.after(replica.state, "dropped")
        service.replicas.remove(replica.work_id)
        del self._context.state.works[replica.work_id]

    def _add(self, service: Service, replica_state: str) -> Work:
        replica = Work(
            work_id=f"{service.service_id}.r{service.next_number}",
            kind="replica",
            owner_id=service.service_id,
            number=service.next_number,
            state=replica_state,
            gang=service.gang,
            generation=service.generation,
            queue=service.queue,
        )
        service.next_number += 1
        service.replicas.append(replica.work_id)
        self._context.state.works[replica.work_id] = replica
        return replica

    def _staying(self, service: Service) -> list[Work]:
        works = self._context.state.works
        return [works[work_id] for work_id in service.replicas if works[work_id].state not in LEAVING]

    def _replicas(self, service: Service, states: tuple[str, ...]) -> list[Work]:
        works = self._context.state.works
        return [works[work_id] for work_id in service.replicas if works[work_id].state in states]


def _dispensable(service: Service, replica: Work) -> tuple[bool, bool, bool, int]:
    """Greatest for the replica that is missed least: one that waits, is old, is not ready, is the newest."""
    return (
        replica.state in _WAITING,
        replica.generation < service.generation,
        replica.state != "ready",
        replica.number,
    )


def _drain_timer(replica: Work) -> str:
    return f"{replica.work_id}.drain"


def _unready_timer(replica: Work) -> str:
    return f"{replica.work_id}.unready"


def _backoff_timer(replica: Work) -> str:
    return f"{replica.work_id}.backoff"
