"""One small world full of misfortune, picked by a seed: nodes, jobs, services, and all that can go wrong.

Randomness comes from the seed's generator only, in the order of the agenda, so that a seed is always the same
world. What must hold in it is the checker's business.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from groundplane.control.actions import AnyAction, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    Gang,
    JobCancelRequested,
    JobSubmitted,
    NodeBack,
    NodeCordoned,
    NodeFenced,
    NodeJoined,
    NodeSilent,
    NodeUncordoned,
    PolicySet,
    PreemptionRules,
    QueueRule,
    RestartPolicy,
    ServiceDeployed,
    ServiceRemoved,
    ServiceScaled,
    WorkGone,
)
from groundplane.sim.agenda import LAST, Agenda
from groundplane.sim.checker import Checker, ViolationError
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine

MS: Final = 1_000_000
S: Final = 1_000_000_000
FAULTS_END_NS: Final = 60 * S
"""Misfortunes happen before this time; then the world heals."""
HEALED_END_NS: Final = 3600 * S
"""By this time all must be over."""
MAX_DEEDS: Final = 20_000
"""A world that does more than this is going round in circles."""


class RoughWorld:
    """Everything of one seed. Randomness comes from the seed's generator only, in the order of the agenda."""

    def __init__(
        self, seed: int, new_core: Callable[[], ControlCore], restore_core: Callable[[bytes], ControlCore]
    ) -> None:
        self.random = random.Random(seed)
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
        self.num_faults = 0
        self.num_events = 0
        self.last_events: deque[tuple[int, AnyEvent, list[AnyAction]]] = deque(maxlen=12)
        self.is_healed = False
        self._held: dict[str, list[AnyEvent]] = {}
        self._offers: dict[str, NodeJoined] = {}
        self._services: list[str] = []
        self._largest_gang = 0
        self._recovered: ControlCore | None = None
        # How rough this world is: some seeds are all about one kind of misfortune.
        self._rate_lost = self.random.choice([0.0, 0.0, 0.1, 0.4])
        self._rate_repeated = self.random.choice([0.0, 0.1, 0.3])
        self._rate_forged = self.random.choice([0.0, 0.05, 0.2])
        self._rate_killed = self.random.choice([0.0, 0.02, 0.1])
        self._rate_failing = self.random.choice([0.0, 0.2, 0.6])
        self._max_delay_ns = self.random.choice([1 * MS, 200 * MS, 3 * S])

    # The run ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Plans the world, lets it happen, heals it, and demands progress."""
        self._plan_nodes()
        self._plan_jobs()
        self._plan_services()
        self._plan_policies()
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

    def _plan_jobs(self) -> None:
        pick = self.random
        busy_ns = pick.choice([2 * S, 40 * S])
        for number in range(pick.randint(1, 20)):
            gang = self._gang()
            num_needed = pick.choice([0, 0, 0, 1, 2]) if number else 0
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
                group=pick.choice(["", "", "g"]),
                group_limit=pick.randint(0, 3),
                deadline_ns=pick.choice([0, 0, 0, pick.randrange(1, 60 * S)]),
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
        return Gang(ranks, per_rank, 16 * per_rank if pick.random() < 0.8 else 1)

    def _larger_ranks(self, gang: Gang) -> tuple[int, ...]:
        """Now and then a job can run with more ranks than it needs."""
        pick = self.random
        if gang.part is not None or pick.random() < 0.7:
            return ()
        return tuple(sorted({gang.num_ranks + pick.randint(1, 4) for _ in range(pick.randint(1, 3))}))

    def _script(self, action: StartWork) -> Script:
        pick = self.random
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
        """Something that a person or an agent says, again and again until a control plane takes it."""
        self.agenda.at(at_ns, lambda: self._told(event))

    def _told(self, event: AnyEvent) -> None:
        if not self._take(event):
            self.agenda.after(500 * MS, lambda: self._told(event))

    def _take(self, event: AnyEvent) -> bool:
        """Gives an event to the driver, which may be killed at any point. True if it became durable."""
        driver = self.driver
        if not driver.is_up:
            return False
        if self.is_healed or self.random.random() >= self._rate_killed:
            driver.take(event)
            return True
        self.num_faults += 1
        before = driver.core.digest()
        if self.random.random() < 0.3:
            # Handled in memory, killed before the record was durable: it never happened.
            driver.core.handle(driver.now_ns(), event)
            self._kill(before)
            return False
        actions = driver.decide(event)
        driver.carry_out(actions[: self.random.randint(0, len(actions))])
        self._kill(driver.core.digest())
        return True

    def _kill(self, digest: str) -> None:
        self.driver.kill()
        self._recovered = self.driver.recovered()
        if self._recovered.digest() != digest:
            raise ViolationError("a replay of the journal gives another state")
        self.agenda.after(self.random.randrange(1, 5 * S), self._restart)

    def _restart(self) -> None:
        if not self.driver.is_up:
            self.driver.restart(self._recovered)
            if self.random.random() < 0.5:
                self.driver.take_snapshot()

    def _watch(self, now_ns: int, event: AnyEvent, actions: list[AnyAction]) -> None:
        self.num_events += 1
        self.last_events.append((now_ns, event, actions))
        self.checker.check(now_ns, event, actions, self.driver.core)

    def _conflict(self, message: str) -> None:
        self.checker.conflict(message)

    def _send(self, message: Callable[[], None]) -> None:
        """From the driver to the engine: in order where there is no delay, otherwise late and reordered."""
        self.agenda.after(self._delay_ns(), message)

    def _reported(self, event: AnyEvent, nodes: tuple[str, ...]) -> None:
        """From the engine to the driver, through a network that loses, delays, repeats and reorders."""
        for node_id in nodes:
            if not self.engine.nodes[node_id].is_reachable:
                self._held.setdefault(node_id, []).append(event)
                return
        if self.is_healed:
            self.agenda.after(1 * MS, lambda: self._told(event))
            return
        if self.random.random() < self._rate_lost:
            self.num_faults += 1
        else:
            self._deliver(event, self._delay_ns())
        if self.random.random() < self._rate_repeated:
            self.num_faults += 1
            self._deliver(event, self._delay_ns() + self.random.randrange(10 * S))
        if self.random.random() < self._rate_forged:
            self.num_faults += 1
            fence = getattr(event, "fence", 1) - self.random.randint(1, 2)
            work_id = getattr(event, "work_id", "")
            self._deliver(WorkGone(work_id, fence, "succeeded"), self._delay_ns())

    def _deliver(self, event: AnyEvent, delay_ns: int) -> None:
        """Once, whether anybody listens or not."""

        def deliver() -> None:
            self._take(event)

        self.agenda.after(delay_ns, deliver)

    def _delay_ns(self) -> int:
        return 1 * MS if self.is_healed else self.random.randrange(1, self._max_delay_ns)

    # Misfortunes -----------------------------------------------------------------------------------------

    def _plan_misfortunes(self) -> None:
        pick = self.random
        kinds: list[Callable[[], None]] = [
            self._node_silent,
            self._node_dies,
            self._rank_crashes,
            self._operator_ends_a_work,
            self._clock_jumps,
            self._control_plane_dies,
            self._cordon,
            self._snapshot,
            self._sweep,
        ]
        for _ in range(pick.randint(0, 40)):
            self.agenda.at(pick.randrange(FAULTS_END_NS), pick.choice(kinds))

    def _node_silent(self) -> None:
        """A partition, or a flap: news of silence and return may overtake each other and come twice."""
        node_id = self.random.choice(list(self._offers))
        node = self.engine.nodes[node_id]
        if not node.is_reachable or not node.is_powered:
            return
        self.num_faults += 1
        node.is_reachable = False
        for _ in range(self.random.randint(0, 2)):
            self._deliver(NodeSilent(node_id), self._delay_ns())
        self.agenda.after(self.random.randrange(1, 10 * S), lambda: self._node_back(node_id))

    def _node_back(self, node_id: str) -> None:
        node = self.engine.nodes[node_id]
        if node.is_reachable:
            return
        node.is_reachable = True
        for event in self._held.pop(node_id, []):
            self._reported(event, ())
        if node.is_powered:
            self._deliver(NodeBack(node_id), self._delay_ns())

    def _node_dies(self) -> None:
        """Power is gone; later comes the proof, repeated and late, and the node boots again."""
        pick = self.random
        node_id = pick.choice(list(self._offers))
        node = self.engine.nodes[node_id]
        if not node.is_powered:
            return
        self.num_faults += 1
        if pick.random() < 0.5:
            self._held.pop(node_id, None)
        boot = node.boot
        self.engine.power_off(node_id)
        if pick.random() < 0.7:
            self._deliver(NodeSilent(node_id), self._delay_ns())
        fenced_ns = pick.randrange(1, 10 * S)
        if pick.random() < 0.8:
            self.agenda.after(fenced_ns, lambda: self._prove_dead(node_id, boot))
        self.agenda.after(fenced_ns + pick.randrange(1, 10 * S), lambda: self._node_boots(node_id))

    def _prove_dead(self, node_id: str, boot: int) -> None:
        node = self.engine.nodes[node_id]
        if node.is_powered or node.boot != boot:
            return
        self.engine.prove_dead(node_id)
        for _ in range(self.random.randint(1, 3)):
            self._tell(NodeFenced(node_id, boot), self.agenda.now_ns + self.random.randrange(1, 12 * S))

    def _node_boots(self, node_id: str) -> None:
        node = self.engine.nodes[node_id]
        if node.is_powered:
            return
        self.engine.power_on(node_id)
        offer = self._offers[node_id]
        joined = NodeJoined(node_id, offer.device_kind, offer.num_devices, offer.memory_bytes, node.boot)
        self._tell(joined, self.agenda.now_ns + self._delay_ns())
        if self.random.random() < 0.3:
            self._deliver(joined, self.random.randrange(1, 20 * S))

    def _rank_crashes(self) -> None:
        running = [work_id for work_id, work in self.engine.works.items() if work.phase == "running"]
        if running:
            self.num_faults += 1
            self.engine.crash_rank(self.random.choice(running))

    def _operator_ends_a_work(self) -> None:
        running = [work_id for work_id, work in self.engine.works.items() if work.phase == "running"]
        if running:
            self.num_faults += 1
            self.engine.end_by_operator(self.random.choice(running))

    def _clock_jumps(self) -> None:
        self.num_faults += 1
        self.driver.clock_offset_ns += self.random.choice([1 * S, 30 * S, 1000 * S])

    def _control_plane_dies(self) -> None:
        if self.driver.is_up:
            self.num_faults += 1
            self._kill(self.driver.core.digest())

    def _cordon(self) -> None:
        node_id = self.random.choice(list(self._offers))
        self._tell(NodeCordoned(node_id), self.agenda.now_ns)
        self._tell(NodeUncordoned(node_id), self.agenda.now_ns + self.random.randrange(1, 20 * S))

    def _snapshot(self) -> None:
        if self.driver.is_up:
            self.driver.take_snapshot()

    def _sweep(self) -> None:
        if self.driver.is_up:
            self.driver.ask_engine()

    # Healing ---------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """From now on nothing goes wrong. Nodes come back, services are removed, engines are asked again."""
        self.is_healed = True
        self._restart()
        for node_id in self._offers:
            self._node_boots(node_id)
            self._node_back(node_id)
        self._keep_asking()
        for service_id in self._services:
            self._tell(ServiceRemoved(service_id), self.agenda.now_ns + 30 * S)

    def _keep_asking(self) -> None:
        """What a platform does all the time: nodes that answer are not silent, and works are looked after."""
        core = self.driver.core
        for node in list(core.state.nodes.values()):
            if node.state == "silent":
                self._take(NodeBack(node.node_id))
            if node.is_cordoned:
                self._take(NodeUncordoned(node.node_id))
        if core.state.works or self.checker.open_jobs:
            self.driver.ask_engine()
            self.agenda.after(5 * S, self._keep_asking, LAST)

    def _compare_replay(self) -> None:
        self.driver.snapshot = None
        if self.driver.recovered().digest() != self.driver.core.digest():
            raise ViolationError("a replay of the whole journal gives another state")
