"""The network between a control plane and its nodes, which loses, delays, repeats, reorders and forges.

Reports go once, whether anybody listens or not; what nobody heard is told again when the engine is asked.
Commands are sent until they arrive, late and perhaps twice. Nothing passes to or from a node that is cut off:
it is held, and goes on when the node is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from groundplane.control.events import AnyEvent, WorkGone
from groundplane.sim.agenda import Agenda
from groundplane.sim.dice import Dice
from groundplane.sim.engine import SimEngine

MS: Final = 1_000_000
S: Final = 1_000_000_000


@dataclass(frozen=True)
class NetworkRates:
    """How often a message meets each fault, and the longest delay."""

    lost: float
    repeated: float
    forged: float
    delay_ns: int


@dataclass
class RoughNetwork:
    """Both directions.

    Attributes:
        hear: gives a report to the control plane, once.
        tell: gives it until it is durable.
    """

    agenda: Agenda
    engine: SimEngine
    dice: Dice
    rates: NetworkRates
    hear: Callable[[AnyEvent], None]
    tell: Callable[[AnyEvent], None]
    is_healed: bool = False
    _reports: dict[str, list[AnyEvent]] = field(default_factory=dict)
    _commands: dict[str, list[tuple[str, tuple[str, ...], Callable[[], None]]]] = field(default_factory=dict)

    def send(self, name: str, nodes: tuple[str, ...], message: Callable[[], None]) -> None:
        """From the driver to the engine: in order where there is no delay, otherwise late and reordered."""
        cut_off = next((node_id for node_id in nodes if not self.engine.nodes[node_id].is_reachable), None)
        if cut_off is not None:
            self._commands.setdefault(cut_off, []).append((name, nodes, message))
            return
        self.agenda.after(self.delay_ns("command", name), message)
        if not self.is_healed:
            item = self.dice.name_of_next("again", name)
            throw = self.dice.of(item)
            if throw.random() < self.rates.repeated and self.dice.strikes(item):
                self.agenda.after(throw.randrange(1, 10 * S), message)

    def report(self, event: AnyEvent, nodes: tuple[str, ...]) -> None:
        """From the engine to the driver."""
        for node_id in nodes:
            if not self.engine.nodes[node_id].is_reachable:
                self._reports.setdefault(node_id, []).append(event)
                return
        if self.is_healed:
            self.agenda.after(1 * MS, lambda: self.tell(event))
            return
        work_id, fence = getattr(event, "work_id", ""), getattr(event, "fence", 1)
        name = self.dice.name_of_next("report", type(event).__name__, work_id)
        throw = self.dice.of(name)
        lost, repeated, forged = throw.random(), throw.random(), throw.random()
        if not (lost < self.rates.lost and self.dice.strikes(f"{name}/lost")):
            self.deliver(event, name)
        if repeated < self.rates.repeated and self.dice.strikes(f"{name}/repeated"):
            self.deliver(event, name, throw.randrange(10 * S))
        if forged < self.rates.forged and self.dice.strikes(f"{name}/forged"):
            old = WorkGone(work_id, fence - throw.randint(1, 2), "succeeded")
            self.deliver(old, name)

    def deliver(self, event: AnyEvent, name: str, later_ns: int = 0) -> None:
        """Once, whether anybody listens or not."""
        self.agenda.after(self.delay_ns(name) + later_ns, lambda: self.hear(event))

    def mended(self, node_id: str) -> None:
        """The node can be reached again: what was held goes on."""
        for event in self._reports.pop(node_id, []):
            self.report(event, ())
        for name, nodes, message in self._commands.pop(node_id, []):
            self.send(name, nodes, message)

    def forget_reports(self, node_id: str) -> None:
        """What the node still had to say is lost with it."""
        self._reports.pop(node_id, None)

    def delay_ns(self, *purpose: object) -> int:
        """How long the next message of a purpose is on its way."""
        if self.is_healed or not self.dice.plans("late messages"):
            return 1 * MS
        return self.dice.next_of("delay", *purpose).randrange(1, self.rates.delay_ns)
