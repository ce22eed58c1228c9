"""What a rough world begins with and what people want of it: nodes, jobs, services, rules, windows.

All is thrown in a fixed order with one generator, whether it is kept or not (`dice.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from groundplane.control.events import (
    AnyEvent,
    DevicePart,
    Gang,
    HealthSet,
    JobCancelRequested,
    JobSubmitted,
    KindDescribed,
    NodeJoined,
    OrderRules,
    PartProfile,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    ServiceDeployed,
    ServiceRemoved,
    ServiceScaled,
    SpareRule,
    WindowRemoved,
    WindowSet,
)

S: Final = 1_000_000_000
KINDS: Final = (
    KindDescribed("", 0),
    KindDescribed("", 10),
    KindDescribed(
        "",
        8,
        (
            PartProfile("1g", 1000, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
            PartProfile("1g+me", 1000, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
            PartProfile("2g", 2000, 2, 2, (0, 2, 4)),
            PartProfile("3g", 3000, 4, 4, (0, 4)),
            PartProfile("4g", 4000, 4, 4, (0,)),
            PartProfile("7g", 7000, 8, 8, (0,)),
        ),
    ),
)
"""Kinds of devices that can be shared: by time, by time and memory, and cut into instances."""


@dataclass
class RoughPlan:
    """The plan of one world.

    Attributes:
        random: throws all of it.
        tell: plans an event for a time, if the world keeps it.
        add_node: makes a node with so many devices.
        offers: what each node says when it joins.
        services: ids of all services.
    """

    random: random.Random
    tell: Callable[[AnyEvent, int], None]
    add_node: Callable[[str, int], object]
    offers: dict[str, NodeJoined]
    services: list[str] = field(default_factory=list)
    _largest_gang: int = 0
    _shared_kinds: dict[str, KindDescribed] = field(default_factory=dict)

    def make(self) -> None:
        """Plans everything."""
        self._plan_nodes()
        self._plan_jobs()
        self._plan_services()
        self._plan_policies()
        self._plan_windows()
        self._plan_health()

    def _plan_nodes(self) -> None:
        pick = self.random
        num_kinds, is_flat = pick.choice([1, 1, 1, 2]), pick.random() < 0.5
        for number in range(pick.randint(1, 5)):
            num_devices = pick.choice([1, 2, 4, 8])
            node_id = f"n{number}"
            kind, topology = (
                f"kind{number % num_kinds}",
                () if is_flat else (f"s{number // 4}", f"l{number // 2}"),
            )
            offer = NodeJoined(node_id, kind, num_devices, 16 * num_devices, 1, topology)
            self.offers[node_id] = offer
            self.add_node(node_id, num_devices)
            self.tell(offer, pick.choice([0, 0, pick.randrange(5 * S)]))
        if pick.random() < 0.4:
            self._shared_kinds = {f"kind{number}": pick.choice(KINDS) for number in range(num_kinds)}
            for kind, described in self._shared_kinds.items():
                self.tell(
                    structs.replace(described, device_kind=kind), pick.choice([0, pick.randrange(9 * S)])
                )

    def _plan_jobs(self) -> None:
        pick = self.random
        busy_ns = pick.choice([2 * S, 40 * S])
        for number in range(pick.randint(1, 20)):
            gang = self._gang()
            num_needed = pick.choice([0, 0, 0, 0, 0, 0, 1, 2]) if number else 0
            job = JobSubmitted(
                job_id=f"j{number}",
                name="job",
                queue=pick.choice(["a", "b", "c"]),
                priority=pick.choice([0, 0, 0, 10, -5]),
                gang=gang,
                restart=RestartPolicy(pick.randint(0, 4), pick.choice([0, 1 * S, 3 * S]), 5 * S),
                stop_grace_ns=pick.choice([0, 2 * S]),
                time_limit_ns=pick.choice([0, 0, 0, 20 * S]),
                predicted_run_ns=pick.choice([0, 5 * S, 20 * S]),
                is_preemptible=pick.random() < 0.9,
                larger_ranks=self._larger_ranks(gang),
                after=tuple(f"j{pick.randrange(number)}" for _ in range(num_needed)),
                group=pick.choice(["", "", "", "", "g"]),
                group_limit=pick.randint(0, 3),
                deadline_ns=pick.choice([0, 0, 0, 0, 0, 0, pick.randrange(1, 60 * S)]),
                stops_at_checkpoint=pick.random() < 0.5,
            )
            at_ns = pick.randrange(busy_ns)
            self.tell(job, at_ns)
            if pick.random() < 0.2:
                self.tell(job, at_ns + pick.randrange(20 * S))
            if pick.random() < 0.2:
                self.tell(JobCancelRequested(job.job_id), at_ns + pick.randrange(15 * S))

    def _plan_services(self) -> None:
        pick = self.random
        for number in range(pick.choice([0, 0, 1, 2])):
            service_id = f"s{number}"
            self.services.append(service_id)
            generations = pick.randint(1, 2)
            for generation in range(1, generations + 1):
                deployed = ServiceDeployed(
                    service_id=service_id,
                    name="service",
                    queue="default",
                    priority=pick.choice([0, 100]),
                    num_replicas=pick.randint(0, 2),
                    gang=self._gang(),
                    restart=RestartPolicy(pick.choice([1, 3, 10]), 1 * S, 4 * S),
                    drain_ns=pick.choice([0, 2 * S]),
                    generation=generation,
                    unready_limit_ns=pick.choice([0, 1 * S, 5 * S]),
                )
                at_ns = (generation - 1) * 20 * S + pick.randrange(20 * S)
                self.tell(deployed, at_ns)
                if pick.random() < 0.2:
                    self.tell(deployed, at_ns + pick.randrange(40 * S))
            for _ in range(pick.randint(0, 2)):
                self.tell(ServiceScaled(service_id, pick.randint(0, 3)), pick.randrange(50 * S))
            if pick.random() < 0.3:
                self.tell(ServiceRemoved(service_id), pick.randrange(20 * S, 50 * S))

    def _plan_policies(self) -> None:
        """Some worlds have rules for queues; they change on the way, and allow every gang to run alone."""
        pick = self.random
        for _ in range(pick.choice([0, 1, 1, 2])):
            limits = [-1, self._largest_gang, self._largest_gang + pick.randint(0, 4)]
            rules = [
                QueueRule("above", "", pick.randint(1, 3), pick.randint(0, 8), pick.choice(limits)),
                QueueRule("a", "above", pick.randint(1, 3), pick.randint(0, 8), pick.choice(limits)),
                QueueRule("b", pick.choice(["", "above"]), 1, 0, pick.choice(limits)),
            ]
            preemption = pick.choice([None, self._preemption()])
            if pick.random() < 0.1:
                rules = []
            policy = PolicySet(tuple(rules), pick.choice([0, 5 * S]), self._order(), preemption)
            self.tell(policy, pick.choice([0, pick.randrange(30 * S)]))

    def _plan_health(self) -> None:
        """Some worlds put nodes into quarantine and keep spares; what they close is opened in the end."""
        pick = self.random
        for _ in range(pick.choice([0, 0, 1, 2])):
            rules = HealthSet(
                max_failures=pick.choice([0, 1, 2, 3]),
                min_owners=pick.choice([1, 2]),
                window_ns=pick.choice([5 * S, 60 * S]),
                quarantine_ns=pick.choice([0, 5 * S]),
                most_per_mille=pick.choice([100, 500, 1000]),
                replaces_stragglers=pick.random() < 0.7,
                straggler_wait_ns=pick.choice([0, 3 * S]),
                spares=tuple(SpareRule(f"kind{number}", pick.randint(0, 2)) for number in range(2)),
            )
            self.tell(rules, pick.choice([0, pick.randrange(50 * S)]))

    def _plan_windows(self) -> None:
        """Some worlds have maintenance windows or reservations; some of those are taken back."""
        pick = self.random
        for number in range(pick.choice([0, 0, 1, 2])):
            nodes = pick.sample(list(self.offers), pick.randint(1, len(self.offers)))
            begin_ns = pick.randrange(50 * S)
            end_ns = begin_ns + pick.randrange(1, 40 * S)
            window = WindowSet(f"w{number}", tuple(nodes), begin_ns, end_ns, pick.choice(["", "a", "above"]))
            self.tell(window, pick.randrange(begin_ns + 1))
            if pick.random() < 0.3:
                self.tell(WindowRemoved(window.window_id), pick.randrange(60 * S))

    def _order(self) -> OrderRules:
        pick = self.random
        return OrderRules(
            is_backfilling=pick.random() < 0.8,
            patience_percent=pick.choice([0, 100, 400]),
            unpredicted_run_ns=pick.choice([0, 10 * S]),
            packs_by_end=pick.random() < 0.5,
        )

    def _preemption(self) -> PreemptionRules:
        pick = self.random
        return PreemptionRules(
            reclaims=pick.random() < 0.7,
            priority_gap=pick.choice([0, 1, 10]),
            checkpoint_wait_ns=pick.choice([0, 2 * S, 10 * S]),
            min_run_ns=pick.choice([0, 2 * S]),
            max_preemptions=pick.choice([1, 3]),
        )

    def _gang(self) -> Gang:
        """A gang that fits the nodes of one kind when all are well and empty."""
        pick = self.random
        kind = pick.choice([offer.device_kind for offer in self.offers.values()])
        sizes = [offer.num_devices for offer in self.offers.values() if offer.device_kind == kind]
        per_rank = pick.choice([size for size in (1, 1, 2, 4) if size <= max(sizes)])
        ranks = pick.randint(1, sum(size // per_rank for size in sizes))
        if kind in self._shared_kinds and pick.random() < 0.6:
            self._largest_gang = max(self._largest_gang, 1)
            return self._part(kind)
        self._largest_gang = max(self._largest_gang, ranks * per_rank)
        return Gang(ranks, per_rank, 16 * per_rank if pick.random() < 0.8 else 1)

    def _part(self, kind: str) -> Gang:
        """A part of a device of this kind: an instance where it can be cut, or a fraction."""
        pick = self.random
        described = self._shared_kinds[kind]
        profile = pick.choice([None, *described.profiles, *described.profiles])
        if profile is None:
            part = DevicePart(pick.choice([7, 1750, 2331, 4900, 7000]), pick.choice([0, 1, 4, 8]))
        else:
            part = DevicePart(profile.units, 0, profile.name)
        return Gang(1, 1, pick.choice([0, 1, 4]), pick.choice([(kind,), ()]), part)

    def _larger_ranks(self, gang: Gang) -> tuple[int, ...]:
        """Now and then a job can run with more ranks than it needs."""
        pick = self.random
        if gang.part is not None or pick.random() < 0.7:
            return ()
        return tuple(sorted({gang.num_ranks + pick.randint(1, 4) for _ in range(pick.randint(1, 3))}))
