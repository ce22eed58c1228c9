"""One small world full of misfortune, picked by a seed: its parts, and what passes between them.

Randomness comes from the seed's generator only, in the order of the agenda, so that a seed is always the same
world. What people want of it stands in `rough_plan.py`, how messages, the journal and nodes suffer in
`rough_network.py`, `rough_control.py` and `rough_mishaps.py`; what must hold is the checker's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from groundplane.control.actions import AnyAction, StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import (
    AnyEvent,
    HealthSet,
    NodeBack,
    NodeUncordoned,
    ServiceRemoved,
)
from groundplane.sim.agenda import LAST, Agenda
from groundplane.sim.checker import Checker, ViolationError
from groundplane.sim.dice import Dice
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine
from groundplane.sim.rough_control import ControlRates, RoughControl
from groundplane.sim.rough_mishaps import Mishaps
from groundplane.sim.rough_network import NetworkRates, RoughNetwork
from groundplane.sim.rough_plan import RoughPlan

MS: Final = 1_000_000
S: Final = 1_000_000_000
FAULTS_END_NS: Final = 60 * S
"""Misfortunes happen before this time; then the world heals."""
HEALED_END_NS: Final = 3600 * S
"""By this time all must be over."""
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
        self.plan = RoughPlan(self.random, self._tell, self.engine.add_node, {})
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
            self.plan.offers,
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
        self.plan.make()
        self._plan_misfortunes()
        self.agenda.at(FAULTS_END_NS, self._heal, LAST)
        while self.agenda.step():
            if self.agenda.num_done > MAX_DEEDS or self.agenda.now_ns > HEALED_END_NS:
                break
        self.checker.check_over(self.driver.core)
        self._compare_replay()

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
        for node_id in self.plan.offers:
            self.mishaps.node_boots(node_id)
            self.mishaps.node_back(node_id)
        self._plan(HealthSet(max_failures=0, replaces_stragglers=False), self.agenda.now_ns)
        self._keep_asking()
        for service_id in self.plan.services:
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
