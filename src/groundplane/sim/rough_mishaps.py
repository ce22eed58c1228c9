"""What befalls nodes, works, clocks and the control plane of a rough world, and what people do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from groundplane.control.events import (
    AnyEvent,
    NodeBack,
    NodeCordoned,
    NodeDrainRequested,
    NodeFenced,
    NodeJoined,
    NodeSilent,
    NodeUncordoned,
    TimerFired,
    WorkSlowed,
    WorkStalled,
)
from groundplane.sim.agenda import Agenda
from groundplane.sim.dice import Dice
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import SimEngine
from groundplane.sim.rough_control import RoughControl
from groundplane.sim.rough_network import RoughNetwork

S: Final = 1_000_000_000


@dataclass
class Mishaps:
    """Happens to the parts of one world.

    Attributes:
        offers: what each node says when it joins.
        tell: gives an event to the control plane at a time, until it is durable.
        log: is told in words.
    """

    agenda: Agenda
    engine: SimEngine
    driver: SimDriver
    control: RoughControl
    network: RoughNetwork
    dice: Dice
    offers: dict[str, NodeJoined]
    tell: Callable[[AnyEvent, int], None]
    log: Callable[[str], None]

    def kinds(self) -> list[tuple[str, Callable[[random.Random], bool]]]:
        """All that can happen, by name; each says whether it did."""
        return [
            ("silence", self._node_silent),
            ("node dies", self._node_dies),
            ("rank crashes", self._rank_crashes),
            ("operator ends a work", self._operator_ends_a_work),
            ("clock jumps", self._clock_jumps),
            ("control plane dies", self._control_plane_dies),
            ("cordon", self._cordon),
            ("snapshot", self._snapshot),
            ("sweep", self._sweep),
            ("partition", self._partition),
            ("dies unseen", self._dies_unseen),
            ("timer misfires", self._timer_misfires),
            ("drain", self._drain),
            ("work hangs", self._work_hangs),
            ("straggler", self._straggler),
        ]

    def happen(self, item: str, name: str) -> None:
        """One of them happens, if the world keeps it."""
        deed = dict(self.kinds())[name]
        if self.dice.plans(item):
            self.dice.num_faults += deed(self.dice.of(item))

    def node_back(self, node_id: str) -> None:
        """A node that was cut off can be reached again."""
        node = self.engine.nodes[node_id]
        if node.is_reachable:
            return
        node.is_reachable = True
        self.log(f"{node_id} can be reached")
        self.network.mended(node_id)
        if node.is_powered:
            self.network.deliver(NodeBack(node_id), f"back/{node_id}")

    def node_boots(self, node_id: str) -> None:
        """A node without power boots again and joins, perhaps twice."""
        node = self.engine.nodes[node_id]
        if node.is_powered:
            return
        self.engine.power_on(node_id)
        self.log(f"{node_id} boots")
        joined = structs.replace(self.offers[node_id], boot=node.boot)
        throw = self.dice.next_of("boot", node_id)
        self.tell(joined, self.agenda.now_ns + self.network.delay_ns("boot", node_id))
        if throw.random() < 0.3:
            self.network.deliver(joined, f"boot/{node_id}", throw.randrange(1, 20 * S))

    def _node_silent(self, throw: random.Random) -> bool:
        """One node is cut off, or flaps: news of it may overtake each other and come twice."""
        return self._cut_off(throw, [throw.choice(list(self.offers))])

    def _partition(self, throw: random.Random) -> bool:
        """The control plane is cut off from several nodes at once, up to all of them."""
        nodes = list(self.offers)
        return self._cut_off(throw, throw.sample(nodes, throw.randint(1, len(nodes))))

    def _cut_off(self, throw: random.Random, nodes: list[str]) -> bool:
        silence_ns = throw.randrange(1, 10 * S)
        has_any = False
        for node_id in nodes:
            node = self.engine.nodes[node_id]
            num_news = throw.randint(0, 2)
            if not node.is_reachable or not node.is_powered:
                continue
            has_any = True
            node.is_reachable = False
            self.log(f"{node_id} is cut off")
            for _ in range(num_news):
                self.network.deliver(NodeSilent(node_id), f"silent/{node_id}")
            self.agenda.after(silence_ns, lambda node_id=node_id: self.node_back(node_id))  # type: ignore[misc]
        return has_any

    def _node_dies(self, throw: random.Random) -> bool:
        """Power is gone; later comes the proof, repeated and late, and the node boots again."""
        node_id = throw.choice(list(self.offers))
        node = self.engine.nodes[node_id]
        if not node.is_powered:
            return False
        if throw.random() < 0.5:
            self.network.forget_reports(node_id)
        boot = node.boot
        self.engine.power_off(node_id)
        self.log(f"{node_id} loses power")
        if throw.random() < 0.7:
            self.network.deliver(NodeSilent(node_id), f"silent/{node_id}")
        fenced_ns = throw.randrange(1, 10 * S)
        if throw.random() < 0.8:
            self.agenda.after(fenced_ns, lambda: self._prove_dead(node_id, boot))
        self.agenda.after(fenced_ns + throw.randrange(1, 10 * S), lambda: self.node_boots(node_id))
        return True

    def _dies_unseen(self, throw: random.Random) -> bool:
        """A node is cut off, works there end, it loses power and is fenced; its reports come after."""
        node_id = throw.choice(list(self.offers))
        node = self.engine.nodes[node_id]
        dies_ns, heard_ns = throw.randrange(1, 10 * S), throw.randrange(1, 15 * S)
        if not node.is_powered or not node.is_reachable:
            return False
        node.is_reachable = False
        self.log(f"{node_id} is cut off")
        self.agenda.after(dies_ns, lambda: self._loses_power_for(node_id, heard_ns))
        return True

    def _loses_power_for(self, node_id: str, down_ns: int) -> None:
        node = self.engine.nodes[node_id]
        if node.is_powered:
            boot = node.boot
            self.engine.power_off(node_id)
            self.log(f"{node_id} loses power")
            self._prove_dead(node_id, boot)
        self.agenda.after(down_ns, lambda: self.node_boots(node_id))
        self.agenda.after(down_ns, lambda: self.node_back(node_id))

    def _timer_misfires(self, throw: random.Random) -> bool:
        """A timer fires that is not due: a firing that was under way when it was moved, say."""
        timers = list(self.driver.core.state.timers) if self.driver.is_up else []
        if timers:
            self.network.deliver(TimerFired(throw.choice(timers)), "misfire")
        return bool(timers)

    def _prove_dead(self, node_id: str, boot: int) -> None:
        node = self.engine.nodes[node_id]
        if node.is_powered or node.boot != boot:
            return
        self.engine.prove_dead(node_id)
        self.log(f"{node_id} is proven dead")
        throw = self.dice.next_of("proof", node_id)
        for _ in range(throw.randint(1, 3)):
            self.tell(NodeFenced(node_id, boot), self.agenda.now_ns + throw.randrange(1, 12 * S))

    def _rank_crashes(self, throw: random.Random) -> bool:
        running = self._running()
        if running:
            self.engine.crash_rank(throw.choice(running))
        return bool(running)

    def _operator_ends_a_work(self, throw: random.Random) -> bool:
        running = self._running()
        if running:
            self.engine.end_by_operator(throw.choice(running))
        return bool(running)

    def _running(self) -> list[str]:
        return [work_id for work_id, work in self.engine.works.items() if work.phase == "running"]

    def _clock_jumps(self, throw: random.Random) -> bool:
        jump_ns = throw.choice([1 * S, 30 * S, 1000 * S])
        self.driver.clock_offset_ns += jump_ns
        self.log(f"the clock jumps {jump_ns // S} s")
        return True

    def _control_plane_dies(self, throw: random.Random) -> bool:  # noqa: ARG002
        was_up = self.driver.is_up
        self.control.die()
        return was_up

    def _cordon(self, throw: random.Random) -> bool:
        node_id = throw.choice(list(self.offers))
        self.tell(NodeCordoned(node_id), self.agenda.now_ns)
        self.tell(NodeUncordoned(node_id), self.agenda.now_ns + throw.randrange(1, 20 * S))
        return False

    def _drain(self, throw: random.Random) -> bool:
        node_id = throw.choice(list(self.offers))
        wait_ns = throw.choice([-1, 0, throw.randrange(1, 20 * S)])
        self.tell(NodeDrainRequested(node_id, wait_ns), self.agenda.now_ns)
        self.tell(NodeUncordoned(node_id), self.agenda.now_ns + throw.randrange(1, 30 * S))
        return False

    def _work_hangs(self, throw: random.Random) -> bool:
        """Somebody says that a work hangs, whether it does or not."""
        running = self._running()
        if running:
            action = self.engine.works[throw.choice(running)].action
            fence = action.fence - throw.choice([0, 0, 0, 1])
            self.network.deliver(WorkStalled(action.work_id, fence, "nothing"), f"hang/{action.work_id}")
        return bool(running)

    def _straggler(self, throw: random.Random) -> bool:
        """Somebody says that one node of a gang is slow; it may be a node that is none of the gang's."""
        running = self._running()
        if running:
            action = self.engine.works[throw.choice(running)].action
            node_id = throw.choice([action.placement[0].node_id, *self.offers])
            slowed = WorkSlowed(action.work_id, action.fence, node_id)
            self.network.deliver(slowed, f"slow/{action.work_id}")
        return bool(running)

    def _snapshot(self, throw: random.Random) -> bool:  # noqa: ARG002
        if self.driver.is_up:
            self.driver.take_snapshot()
        return False

    def _sweep(self, throw: random.Random) -> bool:  # noqa: ARG002
        if self.driver.is_up:
            self.driver.ask_engine()
        return False
