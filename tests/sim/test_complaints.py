"""What users of today's platforms suffer from, each as a scenario that has to go right here.

Named after the report; the number is the issue in that project. The stage's checker holds the books of the
core against what processes really hold after every event.
"""

from __future__ import annotations

import pytest
from sim_stage import EIGHTY_GIB, S, Stage

from groundplane.control import events as ev
from groundplane.control.explain import explain_job
from groundplane.control.policy import policy_event
from groundplane.sim.engine import Script
from groundplane.spec.policy import PolicySpec, PreemptionSpec, QueueSpec

MIB = 1 << 20

# "Cannot see it" is treated as "dead" -----------------------------------------------------------------------


def test_skypilot_10123_a_healthy_job_survives_an_hour_without_status() -> None:
    stage = Stage(num_nodes=1)
    stage.submit("job", ranks=1, per_rank=8, run_s=7200)
    stage.run(10)
    stage.cut_off("n0")
    stage.run(3600)
    assert stage.job("job") == ("running", 1, 0)
    assert (stage.num_leased(), stage.num_occupied()) == (8, 8)
    stage.mend("n0")
    stage.run(7200)
    assert stage.job("job") == ("succeeded", 1, 0)
    assert not stage.stopped


def test_skypilot_7707_jobs_survive_a_restart_of_the_control_plane() -> None:
    stage = Stage()
    for number in range(4):
        stage.submit(f"job{number}", per_rank=4, run_s=60 + number)
    stage.run(20)
    stage.fail_over()
    stage.run(5)
    stage.fail_over(down_s=100)  # they end while nobody listens
    stage.run(10)
    assert [stage.job(f"job{number}") for number in range(4)] == [("succeeded", 1, 0)] * 4
    assert len(stage.started) == 4


@pytest.mark.parametrize("is_fenced", [False, True])
def test_skypilot_6133_what_had_succeeded_in_a_partition_does_not_run_again(is_fenced: bool) -> None:
    """With the node fenced the control plane has to begin anew; the news of success ends that attempt."""
    stage = Stage()
    stage.submit("job", per_rank=8, run_s=50)
    stage.run(10)
    node_id = stage.started[0].placement[0].node_id
    stage.cut_off(node_id)
    stage.run(100)
    if is_fenced:
        stage.engine.nodes[node_id].is_proven_dead = True
        stage.tell(ev.NodeFenced(node_id, 1))
        stage.run(10)
        assert stage.job("job")[:2] == ("running", 2)
    stage.mend(node_id)
    stage.run(20)
    assert stage.job("job")[0] == "succeeded"
    assert len(stage.started) == (2 if is_fenced else 1)
    stage.run(200)
    assert len(stage.started) == (2 if is_fenced else 1)


def test_xinference_2402_a_restarted_supervisor_keeps_the_models_it_was_running() -> None:
    stage = Stage(num_nodes=1)
    stage.deploy("model", replicas=3, devices=2)
    stage.run(10)
    running = dict(stage.core.state.works)
    stage.fail_over()
    stage.run(60)
    assert list(stage.core.state.works) == list(running)
    assert [work.state for work in stage.core.state.works.values()] == ["ready"] * 3
    assert len(stage.started) == 3


def test_gpustack_2595_engines_behind_a_stalled_network_are_ended_and_give_back_their_devices() -> None:
    """While they may live nobody else gets their devices; once they can be reached they go."""
    stage = Stage(num_nodes=1)
    stage.deploy("model", replicas=1, devices=8)
    stage.run(10)
    stage.cut_off("n0")
    stage.tell(ev.ServiceRemoved("model"))
    stage.submit("job", per_rank=8, run_s=10)
    stage.run(1)
    assert (stage.num_leased(), len(stage.started)) == (8, 1)
    stage.mend("n0")
    stage.run(30)
    assert stage.job("job")[0] == "succeeded"
    assert (stage.num_leased(), stage.num_occupied()) == (0, 0)


# Two sets of books that drift apart -------------------------------------------------------------------------


@pytest.mark.parametrize("moment_s", [0.5, 1.5, 20.0, 51.0, 51.002])
def test_ray_66199_no_device_leaks_after_a_failover(moment_s: float) -> None:
    """The control plane dies before the start, in it, during the run, and about its end."""
    stage = Stage(num_nodes=1)
    stage.submit("first", per_rank=8, run_s=50)
    stage.submit("second", per_rank=8, run_s=10)
    stage.run(moment_s)
    stage.fail_over()
    stage.run(200)
    assert [stage.job(name)[0] for name in ("first", "second")] == ["succeeded", "succeeded"]
    assert (stage.num_leased(), stage.num_occupied(), len(stage.core.state.works)) == (0, 0, 0)


def test_hami_2923_a_deleted_work_holds_nothing() -> None:
    """Cancelled while it waits, while it starts, and while it runs: eight devices are free each time."""
    stage = Stage(num_nodes=1)
    for number, wait_s in enumerate((0.0, 0.5, 30.0)):
        stage.submit(f"job{number}", per_rank=8, run_s=1000)
        stage.submit(f"waits{number}", per_rank=8, run_s=1000)
        stage.run(wait_s)
        stage.tell(ev.JobCancelRequested(f"waits{number}"))
        stage.tell(ev.JobCancelRequested(f"job{number}"))
        stage.run(20)
        assert stage.job(f"job{number}")[0] == stage.job(f"waits{number}")[0] == "cancelled"
        assert (stage.num_leased(), stage.num_occupied()) == (0, 0)


def test_dstack_3956_two_stops_that_race_release_once() -> None:
    """A cancel, a time limit and an operator's stop at one moment, every report twice, a failover between."""
    stage = Stage(num_nodes=1)
    stage.duplicates = 2
    stage.submit("job", per_rank=8, run_s=1000, limit_s=30)
    stage.run(29.999)
    stage.tell(ev.JobCancelRequested("job"))
    stage.engine.end_by_operator("job.a1")
    stage.driver.kill()
    stage.run(1)
    stage.driver.restart()
    stage.tell(ev.JobCancelRequested("job"))
    stage.run(30)
    assert stage.job("job")[:2] == ("cancelled", 1)
    assert (stage.num_leased(), stage.num_occupied()) == (0, 0)
    stage.submit("next", per_rank=8, run_s=5)
    stage.run(30)
    assert stage.job("next")[0] == "succeeded"


def test_kueue_14811_and_13413_what_has_no_process_holds_no_quota() -> None:
    """A job that fails to start again and again, and waits between, leaves the whole quota to others."""
    stage = Stage(num_nodes=2)
    stage.tell(policy_event(PolicySpec((QueueSpec("a", limit_devices=8),))))
    stage.scripts["bad"] = Script(start_ns=S, ready_ns=-1, run_ns=1, outcome="failed", stop_ns=S)
    stage.submit("bad", per_rank=8, budget=1)
    stage.run(1.01)
    assert stage.job("bad")[0] == "backing_off"
    assert stage.core.state.usage["a"].num_devices == 0
    stage.submit("good", per_rank=8, run_s=20)
    stage.run(0.5)
    assert stage.job("good")[:2] == ("starting", 1)
    assert stage.core.state.usage["a"].num_devices == 8
    stage.run(60)
    assert (stage.job("bad")[0], stage.job("good")[0]) == ("failed", "succeeded")
    assert stage.core.state.usage["a"].num_devices == 0


def test_kueue_14609_usage_is_never_under_counted() -> None:
    """Nodes are lost, the control plane fails over, the policy changes: no more is admitted than may be."""
    stage = Stage(num_nodes=4)
    rules = policy_event(PolicySpec((QueueSpec("a", limit_devices=16), QueueSpec("b"))))
    stage.tell(rules)
    for number in range(8):
        stage.submit(f"job{number}", ranks=2, per_rank=4, run_s=40)
    for step in range(40):
        stage.run(5)
        held = sum(
            work.gang.num_ranks * work.gang.devices_per_rank for work in stage.core.state.works.values()
        )
        usage = stage.core.state.usage.get("a")
        assert held == (0 if usage is None else usage.num_devices) <= 16
        if step == 3:
            stage.fail_over()
        elif step == 6:
            stage.tell(rules)
        elif step == 9:
            stage.power_off("n0", is_proven=True)
        elif step == 12:
            stage.power_on("n0")
    assert all(stage.job(f"job{number}")[0] == "succeeded" for number in range(8))


# Quota is not placement -------------------------------------------------------------------------------------


def test_kueue_5243_nobody_is_stopped_for_room_that_would_not_do() -> None:
    """Eight devices that could be taken are scattered over eight nodes; the big job needs them on one.

    None is stopped, the big job says why it waits, and small jobs go on starting meanwhile.
    """
    stage = Stage(num_nodes=8)
    stage.tell(policy_event(PolicySpec(preemption=PreemptionSpec(checkpoint_wait_s=1, min_run_s=0))))
    for number in range(8):
        stage.submit(f"fixed{number}", per_rank=6, run_s=500, preemptible=False)
    for number in range(8):
        stage.submit(f"low{number}", per_rank=1, run_s=500)
    stage.run(5)
    assert len({action.placement[0].node_id for action in stage.started}) == 8
    stage.submit("big", per_rank=8, run_s=10, priority=10)
    stage.run(60)
    assert not stage.stopped
    explained = explain_job(stage.core, "big", stage.core.state.now_ns)
    assert explained is not None
    assert explained.needed_devices == 8
    stage.submit("small", per_rank=1, run_s=5)
    stage.run(30)
    assert stage.job("small")[0] == "succeeded"
    stage.run(1000)
    assert stage.job("big")[0] == "succeeded"


def test_volcano_3373_of_two_gangs_one_runs_whole_and_then_the_other() -> None:
    stage = Stage(num_nodes=19)  # 152 devices for twice a hundred
    stage.submit("first", ranks=100, run_s=50)
    stage.submit("second", ranks=100, run_s=50)
    stage.run(10)
    assert [len(action.placement) for action in stage.started] == [100]
    assert (stage.num_leased(), stage.job("second")[0]) == (100, "queued")
    stage.run(60)
    assert [len(action.placement) for action in stage.started] == [100, 100]
    stage.run(60)
    assert (stage.job("first")[0], stage.job("second")[0]) == ("succeeded", "succeeded")


def test_volcano_5805_a_gang_leaves_a_drained_node_whole_and_starts_elsewhere() -> None:
    stage = Stage(num_nodes=4)
    stage.submit("job", ranks=2, per_rank=8, run_s=500)
    stage.run(10)
    before = {rank.node_id for rank in stage.started[0].placement}
    drained = min(before)
    stage.tell(ev.NodeDrainRequested(drained, wait_ns=5 * S))
    stage.run(30)
    after = {rank.node_id for rank in stage.started[-1].placement}
    assert len(stage.started) == 2
    assert len(after) == 2
    assert drained not in after
    assert not any(stage.engine.nodes[drained].occupants)
    assert stage.job("job") == ("running", 2, 0)
    stage.run(600)
    assert stage.job("job")[0] == "succeeded"


def test_kai_49_a_share_has_the_memory_that_it_asked_for_and_no_more() -> None:
    """Shares of 4,000 MiB: each start carries its cap, and twenty of them are all that one device takes."""
    stage = Stage(num_nodes=1, devices=1)
    stage.tell(ev.KindDescribed("gpu", EIGHTY_GIB))
    for number in range(30):
        part = ev.DevicePart(units=100, memory_bytes=4000 * MIB)
        stage.submit(f"share{number}", run_s=50, part=part)
    stage.run(10)
    parts = [action.placement[0].part for action in stage.started]
    assert all(part is not None and part.memory_bytes == 4000 * MIB for part in parts)
    assert len(parts) == EIGHTY_GIB // (4000 * MIB) == 20
    stage.run(200)
    assert all(stage.job(f"share{number}")[0] == "succeeded" for number in range(30))


def test_gpu_operator_2833_no_reconfiguration_can_wedge() -> None:
    """Small instances give way to one that takes the whole device, and back, over a failover."""
    stage = Stage(num_nodes=1, devices=1)
    small = ev.PartProfile("1g.10gb", 1000, 10 << 30, 1, tuple(range(7)))
    whole = ev.PartProfile("7g.80gb", 7000, EIGHTY_GIB, 8, (0,))
    stage.tell(ev.KindDescribed("gpu", EIGHTY_GIB, (small, whole)))
    for number in range(7):
        stage.submit(f"small{number}", run_s=20, part=ev.DevicePart(1000, 0, "1g.10gb"))
    stage.submit("whole", run_s=20, part=ev.DevicePart(7000, 0, "7g.80gb"))
    stage.submit("after", run_s=20, part=ev.DevicePart(1000, 0, "1g.10gb"))
    stage.run(10)
    assert len(stage.started) == 7
    stage.fail_over()
    stage.run(200)
    names = [f"small{number}" for number in range(7)] + ["whole", "after"]
    assert [stage.job(name)[:2] for name in names] == [("succeeded", 1)] * 9
    assert not stage.core.state.works
