"""A stage for scenarios: a control plane, nodes and a network that do what a test says, always checked."""

from __future__ import annotations

from collections.abc import Callable

from groundplane.control import events as ev
from groundplane.control.actions import AnyAction, StartWork, StopWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, RestartPolicy
from groundplane.sim.agenda import Agenda
from groundplane.sim.checker import Checker, ViolationError
from groundplane.sim.driver import SimDriver
from groundplane.sim.engine import Script, SimEngine

S = 10**9
LATENCY_NS = 10**6
EIGHTY_GIB = 80 << 30


class Stage:
    """Nodes are there from the beginning. A work runs for `run_s[owner]` seconds, or for ever."""

    def __init__(self, num_nodes: int = 2, devices: int = 8, kind: str = "gpu") -> None:
        self.agenda = Agenda()
        self.run_s: dict[str, float] = {}
        self.scripts: dict[str, Script] = {}
        self.started: list[StartWork] = []
        self.stopped: list[StopWork] = []
        self.duplicates = 1
        self.engine = SimEngine(self.agenda, self._script, self._reported, self._conflict)
        self.checker = Checker(self.engine)
        self.driver = SimDriver(self.agenda, self.engine, watch=self._watch)
        self._kind, self._devices = kind, devices
        self._held: dict[str, list[ev.AnyEvent]] = {}
        for number in range(num_nodes):
            self.engine.add_node(f"n{number}", devices)
            self.tell(self.offer(f"n{number}"))

    @property
    def core(self) -> ControlCore:
        return self.driver.core

    def offer(self, node_id: str, boot: int = 1) -> ev.NodeJoined:
        return ev.NodeJoined(node_id, self._kind, self._devices, 1 << 40, boot)

    def tell(self, event: ev.AnyEvent) -> None:
        """Somebody says something to the control plane, which is up."""
        assert self.driver.is_up
        self.driver.take(event)

    def submit(
        self,
        job_id: str,
        ranks: int = 1,
        per_rank: int = 1,
        run_s: float = 100.0,
        *,
        queue: str = "a",
        priority: int = 0,
        budget: int = 3,
        limit_s: int = 0,
        part: ev.DevicePart | None = None,
        preemptible: bool = True,
        stops_at_checkpoint: bool = False,
    ) -> None:
        self.run_s[job_id] = run_s
        gang = Gang(ranks, per_rank, 0, part=part)
        restart = RestartPolicy(budget, S, 5 * S)
        self.tell(
            ev.JobSubmitted(
                job_id, job_id, queue, priority, gang, restart, 2 * S, limit_s * S,
                is_preemptible=preemptible, stops_at_checkpoint=stops_at_checkpoint,
            )
        )  # fmt: skip

    def deploy(self, service_id: str, replicas: int, devices: int = 1) -> None:
        gang, restart = Gang(1, devices, 0), RestartPolicy(3, S, 5 * S)
        self.tell(ev.ServiceDeployed(service_id, service_id, "default", 100, replicas, gang, restart, 2 * S))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        self.agenda.run(self.agenda.now_ns + int(seconds * S))

    def job(self, job_id: str) -> tuple[str, int, int]:
        """State, attempts and restarts of a job."""
        job = self.core.state.jobs[job_id]
        return job.state, job.num_attempts, job.restarts_used

    def num_leased(self) -> int:
        """Devices that the control plane believes to be held."""
        return sum(node.num_devices - node.num_free for node in self.core.state.nodes.values())

    def num_occupied(self) -> int:
        """Devices that a process really holds."""
        return sum(bool(holder) for node in self.engine.nodes.values() for holder in node.occupants)

    # What befalls it -------------------------------------------------------------------------------------

    def cut_off(self, *nodes: str) -> None:
        """The nodes cannot be reached, and the control plane notices."""
        for node_id in nodes:
            self.engine.nodes[node_id].is_reachable = False
            if self.driver.is_up:
                self.tell(ev.NodeSilent(node_id))

    def mend(self, *nodes: str) -> None:
        """They can be reached again: what they had to say arrives, and stops that waited are carried out."""
        for node_id in nodes:
            self.engine.nodes[node_id].is_reachable = True
            self.tell(ev.NodeBack(node_id))
            for event in self._held.pop(node_id, []):
                self._reported(event, ())
        self.driver.ask_engine()

    def fail_over(self, down_s: float = 5.0) -> None:
        """The control plane dies and a new one takes over."""
        self.driver.kill()
        self.run(down_s)
        self.driver.restart()

    def power_off(self, node_id: str, *, is_proven: bool) -> None:
        self.engine.power_off(node_id)
        self.tell(ev.NodeSilent(node_id))
        if is_proven:
            self.engine.prove_dead(node_id)
            self.tell(ev.NodeFenced(node_id, self.engine.nodes[node_id].boot))

    def power_on(self, node_id: str) -> None:
        self.engine.power_on(node_id)
        self.tell(self.offer(node_id, self.engine.nodes[node_id].boot))

    # Within ----------------------------------------------------------------------------------------------

    def _script(self, action: StartWork) -> Script:
        script = self.scripts.get(action.owner_id)
        if script is not None:
            return script
        run_s = self.run_s.get(action.owner_id, -1.0)
        run_ns = int(run_s * S) if run_s >= 0 else -1
        return Script(start_ns=S, ready_ns=S, run_ns=run_ns, stop_ns=S, drain_ns=S)

    def _reported(self, event: ev.AnyEvent, nodes: tuple[str, ...]) -> None:
        for node_id in nodes:
            if not self.engine.nodes[node_id].is_reachable:
                self._held.setdefault(node_id, []).append(event)
                return
        for _ in range(self.duplicates):
            self.agenda.after(LATENCY_NS, self._deliver(event))

    def _deliver(self, event: ev.AnyEvent) -> Callable[[], None]:
        return lambda: self.driver.take(event)

    def _conflict(self, message: str) -> None:
        raise ViolationError(message)

    def _watch(self, now_ns: int, event: ev.AnyEvent, actions: list[AnyAction]) -> None:
        self.started += [action for action in actions if isinstance(action, StartWork)]
        self.stopped += [action for action in actions if isinstance(action, StopWork)]
        self.checker.check(now_ns, event, actions, self.driver.core)
