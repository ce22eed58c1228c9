"""One small world full of misfortune, picked by a seed: nodes, jobs, services, and all that can go wrong.

Randomness comes from the seed's generator only, in the order of the agenda, so that a seed is always the same
world. What must hold in it is the checker's business; how messages, the journal and nodes suffer stands in
`rough_network.py`, `rough_control.py` and `rough_mishaps.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from msgspec import structs

from groundplane.control.actions import AnyAction, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    DevicePart,
    Gang,
    HealthSet,
    JobCancelRequested,
    JobSubmitted,
    KindDescribed,
    NodeBack,
    NodeJoined,
    NodeUncordoned,
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
from groundplane.sim.agenda import LAST, Agenda
from groundplane.sim.checker import Checker, ViolationError
from groundplane.sim.dice import Dice
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine
from groundplane.sim.rough_control import ControlRates, RoughControl
from groundplane.sim.rough_mishaps import Mishaps
from groundplane.sim.rough_network import NetworkRates, RoughNetwork

MS: Final = 1_000_000
S: Final = 1_000_000_000
FAULTS_END_NS: Final = 60 * S
"""Misfortunes happen before this time; then the world heals."""
HEALED_END_NS: Final = 3600 * S
"""By this time all must be over."""
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
MAX_DEEDS: Final = 20_000
"""A world that does more than this is going round in circles."""


class RoughWorld:
    """Everything of one seed.

    Plans are thrown with the generator `random`, in their order; all that happens later with dice of its own
    (`dice.py`), so that a part can be left out and the rest stays.

    Args:
        kept: the plans and faults that happen; all of the seed's, if not given.
    """

    def __init__(
        self,
        seed: int,
        new_core: Callable[[], ControlCore],
        restore_core: Callable[[bytes], ControlCore],
        kept: Collection[str] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.dice = Dice(seed, kept)
        self.agenda = Agenda()
        self.engine = SimEngine(self.agenda, self._script, self._reported, self._conflict)
        self.checker = Checker(self.engine)
        self.driver = SimDriver(
            self.agenda,
            self.engine,
            new_core=new_core,
            restore_core=restore_core,
            watch=self._watch,
            send=self._send,
        )
        self.num_events = 0
        self.log: list[str] = []
        self.is_healed = False
        self._offers: dict[str, NodeJoined] = {}
        self._services: list[str] = []
        self._shared_kinds: dict[str, KindDescribed] = {}
        self._largest_gang = 0
        # How rough this world is: some seeds are all about one kind of misfortune.
        pick = self.random
        lost, repeated = pick.choice([0.0, 0.0, 0.1, 0.4]), pick.choice([0.0, 0.1, 0.3])
        forged, killed = pick.choice([0.0, 0.05, 0.2]), pick.choice([0.0, 0.02, 0.1])
        self._rate_failing = pick.choice([0.0, 0.2, 0.6])
        delay_ns = pick.choice([1 * MS, 200 * MS, 3 * S])
        slow, slow_ns = pick.choice([0.0, 0.0, 0.1, 0.5]), pick.choice([20 * MS, 2 * S])
        self.control = RoughControl(
            self.agenda, self.driver, self.dice, ControlRates(killed, slow, slow_ns), self._say
        )
        self.network = RoughNetwork(
            self.agenda,
            self.engine,
            self.dice,
            NetworkRates(lost, repeated, forged, delay_ns),
            hear=self._take,
            tell=self._told,
        )
        self.mishaps = Mishaps(
            self.agenda,
            self.engine,
            self.driver,
            self.control,
            self.network,
            self.dice,
            self._offers,
            tell=self._plan,
            log=self._say,
        )

    @property
    def num_faults(self) -> int:
        """Faults that happened."""
        return self.dice.num_faults

    # The run ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Plans the world, lets it happen, heals it, and demands progress."""
        self._plan_nodes()
        self._plan_jobs()
        self._plan_services()
        self._plan_policies()
        self._plan_windows()
        self._plan_health()
        self._plan_misfortunes()
        self.agenda.at(FAULTS_END_NS, self._heal, LAST)
        while self.agenda.step():
            if self.agenda.num_done > MAX_DEEDS or self.agenda.now_ns > HEALED_END_NS:
                break
        self.checker.check_over(self.driver.core)
        self._compare_replay()

    def _plan_nodes(self) -> None:
        pick = self.random
        num_kinds = pick.choice([1, 1, 1, 2])
        for number in range(pick.randint(1, 5)):
            num_devices = pick.choice([1, 2, 4, 8])
            node_id = f"n{number}"
            offer = NodeJoined(node_id, f"kind{number % num_kinds}", num_devices, 16 * num_devices)
            self._offers[node_id] = offer
            self.engine.add_node(node_id, num_devices)
            self._tell(offer, pick.choice([0, 0, pick.randrange(5 * S)]))
        if pick.random() < 0.4:
            self._shared_kinds = {f"kind{number}": pick.choice(KINDS) for number in range(num_kinds)}
            for kind, described in self._shared_kinds.items():
                self._tell(
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
            self._tell(job, at_ns)
            if pick.random() < 0.2:
                self._tell(job, at_ns + pick.randrange(20 * S))
            if pick.random() < 0.2:
                self._tell(JobCancelRequested(job.job_id), at_ns + pick.randrange(15 * S))

    def _plan_services(self) -> None:
        pick = self.random
        for number in range(pick.choice([0, 0, 1, 2])):
            service_id = f"s{number}"
            self._services.append(service_id)
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
                self._tell(deployed, at_ns)
                if pick.random() < 0.2:
                    self._tell(deployed, at_ns + pick.randrange(40 * S))
            for _ in range(pick.randint(0, 2)):
                self._tell(ServiceScaled(service_id, pick.randint(0, 3)), pick.randrange(50 * S))
            if pick.random() < 0.3:
                self._tell(ServiceRemoved(service_id), pick.randrange(20 * S, 50 * S))

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
            policy = PolicySet(tuple(rules), pick.choice([0, 5 * S]), preemption=preemption)
            self._tell(policy, pick.choice([0, pick.randrange(30 * S)]))

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
            self._tell(rules, pick.choice([0, pick.randrange(50 * S)]))

    def _plan_windows(self) -> None:
        """Some worlds have maintenance windows or reservations; some of those are taken back."""
        pick = self.random
        for number in range(pick.choice([0, 0, 1, 2])):
            nodes = pick.sample(list(self._offers), pick.randint(1, len(self._offers)))
            begin_ns = pick.randrange(50 * S)
            end_ns = begin_ns + pick.randrange(1, 40 * S)
            window = WindowSet(f"w{number}", tuple(nodes), begin_ns, end_ns, pick.choice(["", "a", "above"]))
            self._tell(window, pick.randrange(begin_ns + 1))
            if pick.random() < 0.3:
                self._tell(WindowRemoved(window.window_id), pick.randrange(60 * S))

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
        kind = pick.choice([offer.device_kind for offer in self._offers.values()])
        sizes = [offer.num_devices for offer in self._offers.values() if offer.device_kind == kind]
        per_rank = pick.choice([size for size in (1, 1, 2, 4) if size <= max(sizes)])
        ranks = pick.randint(1, sum(size // per_rank for size in sizes))
        self._largest_gang = max(self._largest_gang, ranks * per_rank)
        if kind in self._shared_kinds and pick.random() < 0.6:
            return self._part(kind)
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

    def _script(self, action: StartWork) -> Script:
        pick = self.dice.of("script", action.work_id)
        script = Script(start_ns=pick.randrange(1, 2 * S), ready_ns=pick.randrange(2 * S))
        script.stop_ns = pick.choice([1 * MS, pick.randrange(1, 4 * S)])
        if pick.random() < 0.5:
            script.orphans_end_ns = pick.randrange(5 * S)
        fails = pick.random() < self._rate_failing and not self.is_healed
        if action.kind == "attempt":
            script.run_ns = pick.randrange(1, 15 * S)
            script.checkpoint_every_ns = pick.choice([-1, 1 * S, 3 * S])
            script.outcome = "failed" if fails else "succeeded"
        else:
            script.drain_ns = pick.choice([-1, 1, pick.randrange(1, 4 * S)])
            if fails:
                script.run_ns = pick.randrange(1, 20 * S)
                script.outcome = pick.choice(["failed", "succeeded"])
            elif pick.random() < 0.3 and not self.is_healed:
                script.unready_after_ns = pick.randrange(1, 10 * S)
        return script

    # Between the parts --------------------------------------------------------------------------------------

    def _tell(self, event: AnyEvent, at_ns: int) -> None:
        """A part of the plan: something that a person or an agent says at a time."""
        if self.dice.plans(self.dice.name_of_next("plan", type(event).__name__)):
            self._plan(event, at_ns)

    def _plan(self, event: AnyEvent, at_ns: int) -> None:
        self.agenda.at(at_ns, lambda: self._told(event))

    def _told(self, event: AnyEvent) -> None:
        """Said again and again until a control plane takes it."""
        self.control.take(event, lambda: self.agenda.after(500 * MS, lambda: self._told(event)))

    def _take(self, event: AnyEvent) -> None:
        """Said once, whether anybody listens or not."""
        self.control.take(event, _forgotten)

    def _watch(self, now_ns: int, event: AnyEvent, actions: list[AnyAction]) -> None:
        self.num_events += 1
        self.log.append(f"{now_ns / S:.3f} s: {event}")
        self.log += [f"    {action}" for action in actions]
        self.checker.check(now_ns, event, actions, self.driver.core)

    def _say(self, words: str) -> None:
        self.log.append(f"{self.driver.now_ns() / S:.3f} s: ({words})")

    def _conflict(self, message: str) -> None:
        self.checker.conflict(message)

    def _send(self, name: str, nodes: tuple[str, ...], message: Callable[[], None]) -> None:
        self.network.send(name, nodes, message)

    def _reported(self, event: AnyEvent, nodes: tuple[str, ...]) -> None:
        self.network.report(event, nodes)

    def _plan_misfortunes(self) -> None:
        pick = self.random
        names = [name for name, _ in self.mishaps.kinds()]
        for number in range(pick.randint(0, 40)):
            at_ns, name = pick.randrange(FAULTS_END_NS), pick.choice(names)
            self.agenda.at(at_ns, partial(self.mishaps.happen, f"mishap/{number}/{name}", name))

    # Healing ---------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """From now on nothing goes wrong. Nodes come back, services are removed, engines are asked again."""
        self.is_healed = self.control.is_healed = self.network.is_healed = True
        self._say("all is well from now on")
        self.control.restart()
        for node_id in self._offers:
            self.mishaps.node_boots(node_id)
            self.mishaps.node_back(node_id)
        self._plan(HealthSet(max_failures=0, replaces_stragglers=False), self.agenda.now_ns)
        self._keep_asking()
        for service_id in self._services:
            self._plan(ServiceRemoved(service_id), self.agenda.now_ns + 30 * S)

    def _keep_asking(self) -> None:
        """What a platform does all the time: nodes that answer are not silent, and works are looked after."""
        core = self.driver.core
        for node in list(core.state.nodes.values()):
            if node.state == "silent":
                self._take(NodeBack(node.node_id))
            if node.is_cordoned or node.closed_for == "quarantine":
                self._take(NodeUncordoned(node.node_id))
        if core.state.works or self.checker.open_jobs:
            self.driver.ask_engine()
            self.agenda.after(5 * S, self._keep_asking, LAST)

    def _compare_replay(self) -> None:
        self.driver.snapshot = None
        if self.driver.recovered().digest() != self.driver.core.digest():
            raise ViolationError("a replay of the whole journal gives another state")


def _forgotten() -> None:
    """Nobody says it again."""
