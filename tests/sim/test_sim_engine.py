"""The simulated engine keeps the engine contract. Times in nanoseconds, small."""

from __future__ import annotations

import pytest

from groundplane.control.actions import DrainWork, RankPlacement, StartWork, StopWork
from groundplane.control.events import AnyEvent, WorkGone
from groundplane.sim.agenda import Agenda
from groundplane.sim.engine import Script, SimEngine


class Bench:
    def __init__(self, script: Script) -> None:
        self.agenda = Agenda()
        self.reports: list[AnyEvent] = []
        self.conflicts: list[str] = []
        self.engine = SimEngine(
            self.agenda,
            lambda action: script,
            lambda event, nodes: self.reports.append(event),
            self.conflicts.append,
        )
        self.engine.add_node("n0", 2)
        self.engine.add_node("n1", 2)

    def start(
        self, work_id: str = "w", fence: int = 1, nodes: tuple[str, ...] = ("n0",), **boots: int
    ) -> None:
        ranks = tuple(RankPlacement(node_id, (0,)) for node_id in nodes)
        known = {node_id: boots.get(node_id, 1) for node_id in nodes}
        self.engine.start(StartWork(work_id, "attempt", "j", fence, ranks), known)

    def run(self, until_ns: int) -> list[str]:
        """Names of what was reported by then, with outcomes."""
        self.agenda.run(until_ns)
        return [
            event.outcome if isinstance(event, WorkGone) else type(event).__name__[4:]
            for event in self.reports
        ]


def script(**rest: object) -> Script:
    return Script(start_ns=10, ready_ns=5, run_ns=100, stop_ns=20, **rest)  # type: ignore[arg-type]


def test_a_work_from_start_to_end() -> None:
    bench = Bench(script())
    bench.start()
    assert bench.engine.nodes["n0"].occupants == ["w", ""]
    assert bench.run(9) == []
    assert bench.run(109) == ["Started", "Ready"]
    assert bench.run(110) == ["Started", "Ready", "succeeded"]
    assert bench.engine.nodes["n0"].occupants == ["", ""]


def test_start_is_idempotent_and_a_gone_work_does_not_start_again() -> None:
    bench = Bench(script())
    bench.start()
    bench.start()
    assert bench.run(200) == ["Started", "Ready", "succeeded"]
    bench.start()
    assert bench.run(400) == ["Started", "Ready", "succeeded"]


def test_stop_takes_its_time_but_no_more_than_the_grace() -> None:
    for grace_ns, end_ns in ((100, 50), (7, 37)):
        bench = Bench(script())
        bench.start()
        bench.run(30)
        bench.engine.stop(StopWork("w", 1, grace_ns, ""))
        assert bench.run(end_ns - 1)[-1] == "Ready"
        assert bench.run(end_ns)[-1] == "stopped"


def test_a_stop_of_another_fence_is_refused_and_one_of_the_unknown_is_remembered() -> None:
    bench = Bench(script())
    bench.start()
    bench.engine.stop(StopWork("w", 0, 0, ""))
    assert bench.run(50) == ["Started", "Ready"]
    bench.engine.stop(StopWork("x", 2, 0, ""))
    bench.start("x", 2, ("n1",))
    assert bench.run(60) == ["Started", "Ready", "stopped"]
    assert bench.engine.nodes["n1"].occupants == ["", ""]
    bench.engine.stop(StopWork("x", 2, 0, ""))  # asked again, told again
    assert bench.run(60) == ["Started", "Ready", "stopped", "stopped"]


def test_a_start_meant_for_another_life_of_a_node_is_refused_whole() -> None:
    bench = Bench(script())
    bench.engine.power_off("n1")
    bench.engine.power_on("n1")
    bench.start(nodes=("n0", "n1"))
    assert bench.run(0) == ["start_failed"]
    assert bench.engine.nodes["n0"].occupants == ["", ""]
    bench.start("w2", 2, ("n0", "n1"), n1=2)
    assert bench.run(10)[-1] == "Started"


@pytest.mark.parametrize("proof", ["fence", "boot"])
def test_gone_is_said_only_when_the_dead_node_is_proven_dead(proof: str) -> None:
    bench = Bench(script())
    bench.start(nodes=("n0", "n1"))
    bench.run(20)
    bench.engine.power_off("n1")
    bench.engine.stop(StopWork("w", 1, 100, ""))
    assert bench.run(1000) == ["Started", "Ready"]
    if proof == "fence":
        bench.engine.prove_dead("n1")
    else:
        bench.engine.power_on("n1")
    assert bench.run(1000)[-1] == "stopped"


def test_a_gang_that_lost_a_node_cannot_succeed() -> None:
    bench = Bench(script())
    bench.start(nodes=("n0", "n1"))
    bench.run(20)
    bench.engine.power_off("n1")
    bench.engine.prove_dead("n1")
    assert bench.run(1000)[-1] == "failed"


def test_two_works_on_one_device_are_noticed() -> None:
    bench = Bench(script())
    bench.start()
    bench.start("x", 2)
    assert bench.conflicts == ["x starts on n0/0, held by w"]


def test_checkpoints_drain_and_reattach() -> None:
    bench = Bench(script(checkpoint_every_ns=40, first_step=7, drain_ns=3))
    bench.start()
    assert bench.run(95) == ["Started", "Ready", "kpointCommitted", "kpointCommitted"]
    assert [event.step for event in bench.reports if hasattr(event, "step")] == [8, 9]
    bench.engine.drain(DrainWork("w", 1))
    assert bench.run(98)[-1] == "Drained"
    bench.engine.reattach("w")
    assert len(bench.run(98)) == 10
    bench.engine.reattach("nobody")
    bench.engine.crash_rank("w")
    assert bench.run(98)[-1] == "failed"
