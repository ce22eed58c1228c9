"""What if: hand-computed forecasts on small clusters, and the core left as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_sim_commands import sqlite_journal

from groundplane.cli.what_if import what_if_command
from groundplane.control import events as ev
from groundplane.control.actions import StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, RestartPolicy
from groundplane.control.policy import policy_event
from groundplane.sim.journal_file import write_journal
from groundplane.sim.scenario import Question, ask, place_of
from groundplane.sim.what_if import nodes_down, quota_changed, submitted, what_if
from groundplane.sim.workload import generate
from groundplane.spec.errors import InputError
from groundplane.spec.policy import PolicySpec, QueueSpec

S = 10**9
RESTART = RestartPolicy(3, 10 * S, 10 * S)


def job(job_id: str, ranks: int, run_s: int, queue: str = "a") -> ev.JobSubmitted:
    return ev.JobSubmitted(job_id, job_id, queue, 0, Gang(ranks, 4, 0), RESTART, 5 * S, 0, run_s * S)


def cluster(num_nodes: int, *events: ev.AnyEvent) -> ControlCore:
    """Nodes of four devices at time 0, then the events, a second apart; starts are reported at once."""
    core, now_ns = ControlCore(), 0
    for number in range(num_nodes):
        core.handle(0, ev.NodeJoined(f"n{number}", "gpu", 4, 1 << 40))
    for event in events:
        now_ns += S
        for action in core.handle(now_ns, event):
            if isinstance(action, StartWork):
                core.handle(now_ns, ev.WorkStarted(action.work_id, action.fence))
    return core


def test_nodes_down() -> None:
    """One of two nodes dies: its job is stopped, waits ten seconds of back-off, and for the other node."""
    core = cluster(2, job("one", 1, 100), job("two", 1, 200))
    answer = what_if(core, [nodes_down(0, ["n1"])])
    assert answer.digest_before == answer.digest_after == core.digest()
    (difference,) = answer.differences
    assert difference.job_id == "two"
    assert difference.before is not None
    assert difference.after is not None
    assert difference.before.end_ns == 202 * S
    # One ends at 101 s, two begins anew then and needs its 200 s again.
    assert (difference.after.end_ns, difference.after.num_stops) == (301 * S, 1)


def test_the_fullest_nodes_go_down_first() -> None:
    core = cluster(3, job("one", 1, 100))
    assert [each.job_id for each in what_if(core, [nodes_down(1)]).differences] == ["one"]
    with pytest.raises(InputError, match="down: must be at most the 3 nodes there are, got 4"):
        what_if(core, [nodes_down(4)])
    with pytest.raises(InputError, match="did you mean 'n2'"):
        what_if(core, [nodes_down(0, ["n22"])])


def test_a_quota_that_grows() -> None:
    """Queue b may hold one node; with its limit doubled its second job starts at once."""
    policy = policy_event(PolicySpec((QueueSpec("a"), QueueSpec("b", guaranteed_devices=4, limit_devices=4))))
    core = cluster(2, policy, job("one", 1, 100, "b"), job("two", 1, 100, "b"))
    answer = what_if(core, [quota_changed("b", 2.0, None)])
    assert answer.at_once == ("start two.a1 on 1 nodes",)
    (difference,) = answer.differences
    assert difference.before is not None
    assert difference.after is not None
    assert (difference.before.start_ns, difference.after.start_ns) == (102 * S, 3 * S)
    assert what_if(core, [quota_changed("b", None, 8)]).at_once == answer.at_once
    with pytest.raises(InputError, match="quota: is no queue of the policy in force; known: a, b"):
        what_if(core, [quota_changed("c", 2.0, None)])


def test_a_job_that_is_submitted() -> None:
    """It waits for the two nodes: until 201 s, when the longer of the running jobs ends."""
    core = cluster(2, job("one", 1, 100), job("two", 1, 199))
    answer = what_if(core, [submitted(job("new", 2, 50), "new submitted")])
    (difference,) = answer.differences
    assert difference.before is None
    assert difference.after is not None
    assert (difference.after.start_ns, difference.after.end_ns) == (201 * S, 251 * S)


def test_what_nobody_predicted_has_no_end_in_sight() -> None:
    core = cluster(1, job("one", 1, 0))
    change = [submitted(job("new", 1, 50), "new submitted")]
    (difference,) = what_if(core, change).differences
    assert difference.after is not None
    assert difference.after.start_ns == -1
    (difference,) = what_if(core, change, assumed_run_ns=10 * S).differences
    assert difference.after is not None
    assert difference.after.start_ns == 11 * S


def test_the_command_on_a_simulated_journal(tmp_path: Path) -> None:
    from groundplane.control.journal import decode_record

    place = place_of("4x8")
    jobs = generate(num_jobs=60, load=1.5, num_nodes=4, devices_per_node=8, seed=1)
    (answer,) = ask(Question(place, jobs, keeps_journal=True))
    journal, spec = tmp_path / "j.jsonl", tmp_path / "job.yaml"
    write_journal(journal, (decode_record(payload) for payload in answer.run.journal))
    before = journal.read_bytes()
    spec.write_text("kind: job\nname: mine\nranks: 2\ndevices_per_rank: 8\ncommand: [sleep, '1']\n")
    arguments = [str(journal), "--at", "1 h", "--down", "1", "--submit", str(spec), "--run-time", "1 h"]
    result = CliRunner().invoke(what_if_command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["changes"] == ["1 nodes down", f"{spec} submitted"]
    assert "what-if-0-mine" in {each["job_id"] for each in found["differences"]}
    assert found["digest_before"] == found["digest_after"]
    shown = CliRunner().invoke(what_if_command, arguments)
    assert "nothing was changed: this was a copy" in shown.output
    assert journal.read_bytes() == before


def test_the_command_on_the_state_folder_of_a_platform(tmp_path: Path) -> None:
    """A SQLite journal whose older records were dropped for a snapshot."""
    core = sqlite_journal(tmp_path / "groundplane.db", first=20)
    result = CliRunner().invoke(what_if_command, [str(tmp_path), "--down", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["digest_before"] == found["digest_after"] == core.digest()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what changes"),
        (["--down", "1", "--node", "n0"], "--down: cannot stand beside --node"),
        (["--quota", "a"], "--quota: must be QUEUE=xFACTOR"),
        (["--down", "1", "--at", "x"], "--at"),
        (["--submit", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_questions_are_one_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    from groundplane.sim.fuzz import journal_of_seed

    journal = tmp_path / "j.jsonl"
    write_journal(journal, journal_of_seed(3))
    result = CliRunner().invoke(what_if_command, [str(journal), *arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
