"""A control plane in trouble: its journal is slow, writes are torn, it dies between any two records.

Events that come while a write is under way wait and are then handled and written together, as a driver with
group commit does; no action leaves before its record is durable. A death in a write leaves a part of the
batch durable, perhaps with half a record behind it, and nothing carried out; one after it leaves some of the
actions carried out. Whoever told of an event that did not become durable is told so, and tells it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from groundplane.control.actions import AnyAction
from groundplane.control.core import ControlCore
from groundplane.control.events import AnyEvent
from groundplane.sim.agenda import Agenda
from groundplane.sim.checker import ViolationError
from groundplane.sim.dice import Dice
from groundplane.sim.driver import SimDriver

S: Final = 1_000_000_000
Lost = Callable[[], None]


@dataclass(frozen=True)
class ControlRates:
    """How often, per write; `slow_ns` is the longest that one takes."""

    killed: float
    slow: float
    slow_ns: int


class RoughControl:
    """Stands between the world and its driver. `log` is told of deaths in words."""

    def __init__(
        self, agenda: Agenda, driver: SimDriver, dice: Dice, rates: ControlRates, log: Callable[[str], None]
    ) -> None:
        self.is_healed = False
        self._agenda = agenda
        self._driver = driver
        self._dice = dice
        self._rates = rates
        self._log = log
        self._inbox: list[tuple[AnyEvent, Lost]] = []
        self._is_writing = False
        self._life = 0
        self._recovered: ControlCore | None = None
        driver.timer_sink = lambda event: self.take(event, _nobody)

    def take(self, event: AnyEvent, lost: Lost) -> None:
        """Handles an event, now or after the write that is under way.

        Args:
            lost: called if the event will never be durable.
        """
        if not self._driver.is_up:
            lost()
            return
        self._inbox.append((event, lost))
        if not self._is_writing:
            self._write()

    def die(self) -> None:
        """The process is gone, between two events or in the middle of a write."""
        if self._driver.is_up:
            self._die(self._driver.core.digest())

    def restart(self) -> None:
        """A new process, unless one lives."""
        driver = self._driver
        if driver.is_up:
            return
        dice = self._dice.next_of("restart")
        if not self.is_healed and dice.random() < 0.3 and self._dice.plans(f"clock back/{self._life}"):
            # The wall clock was set back meanwhile; the driver goes on from its last record.
            driver.clock_offset_ns -= dice.choice([1 * S, 100 * S])
        driver.restart(self._recovered)
        self._log("control plane restarts")
        if dice.random() < 0.5:
            driver.take_snapshot()

    def _write(self) -> None:
        """Handles what has come, and writes it in one go."""
        batch, self._inbox = self._inbox, []
        name = self._dice.name_of_next("write", *_key(batch[0][0]))
        throw = self._dice.of(name)
        rates = self._rates
        kills, is_slow, kind = throw.random(), throw.random(), throw.random()
        if not self.is_healed and kills < rates.killed and self._dice.strikes(f"{name}/kill"):
            if kind < 0.5:
                self._die_writing(batch, throw.randint(0, len(batch) - 1), is_torn=throw.random() < 0.5)
            else:
                actions = self._decide(batch)
                self._driver.carry_out(actions[: throw.randint(0, len(actions))])
                self.die()
            return
        actions = self._decide(batch)
        if not self.is_healed and is_slow < rates.slow and self._dice.strikes(f"{name}/slow"):
            self._is_writing = True
            life = self._life
            self._agenda.after(throw.randrange(1, rates.slow_ns), lambda: self._written(actions, life))
            return
        self._driver.carry_out(actions)
        if self._inbox:
            self._write()

    def _written(self, actions: list[AnyAction], life: int) -> None:
        if life != self._life:
            return  # it died in the meantime
        self._is_writing = False
        self._driver.carry_out(actions)
        if self._inbox:
            self._write()

    def _decide(self, batch: list[tuple[AnyEvent, Lost]]) -> list[AnyAction]:
        return [action for event, _ in batch for action in self._driver.decide(event)]

    def _die_writing(self, batch: list[tuple[AnyEvent, Lost]], num_durable: int, *, is_torn: bool) -> None:
        """The first records of the batch are durable, the others were handled in memory only."""
        driver = self._driver
        self._decide(batch[:num_durable])
        digest = driver.core.digest()
        for event, _ in batch[num_durable:]:
            driver.core.handle(driver.now_ns(), event)
        if is_torn:
            driver.tear_journal(batch[num_durable][0])
        self._die(digest)
        for _, lost in batch[num_durable:]:
            lost()

    def _die(self, digest: str) -> None:
        """Dies; what a new process would find must be what is durable."""
        driver = self._driver
        driver.kill()
        self._log("control plane dies")
        self._life += 1
        self._is_writing = False
        waiting, self._inbox = self._inbox, []
        self._recovered = driver.recovered()
        if self._recovered.digest() != digest:
            raise ViolationError("a replay of the journal gives another state")
        delay_ns = self._dice.next_of("down").randrange(1, 5 * S)
        self._agenda.after(delay_ns, self.restart)
        for _, lost in waiting:
            lost()


def _nobody() -> None:
    """A timer of a process that died is set again by the next one."""


def _key(event: AnyEvent) -> tuple[object, ...]:
    """What tells one event from others of its type."""
    names = ("work_id", "job_id", "service_id", "node_id", "timer_id")
    return (type(event).__name__, next((getattr(event, name) for name in names if hasattr(event, name)), ""))
