"""The commands simulate, fuzz and replay, as a user meets them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from groundplane import __version__
from groundplane.cli.main import main
from groundplane.control.core import ControlCore
from groundplane.control.journal import encode_record
from groundplane.sim.fuzz import journal_of_seed

Output = tuple[int, str, str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def run(*args: str) -> Output:
        monkeypatch.setattr(sys, "argv", ["groundplane", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_fuzz_control(command) -> None:
    code, out, _ = command("fuzz", "control", "--seeds", "3", "--first-seed", "40", "--json")
    report = json.loads(out)
    assert code == 0
    assert {key: report[key] for key in ("seeds", "failures", "failing_seeds")} == {
        "seeds": 3,
        "failures": 0,
        "failing_seeds": [],
    }
    assert report["faults"] > 0


def test_fuzz_shows_how_to_see_a_failure_again(
    command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ControlCore, "pending_actions", lambda core: 1 // 0)
    case = tmp_path / "case.json"
    code, out, _ = command("fuzz", "control", "--seeds", "30", "--case", str(case))
    assert code == 1
    assert "again: groundplane fuzz control --first-seed" in out
    assert "(control plane restarts)" not in out
    assert "(control plane dies)" in out
    code, out, _ = command("replay", str(case))
    assert code == 1
    assert "fails as before: ZeroDivisionError" in out
    monkeypatch.undo()
    code, out, _ = command("replay", str(case), "--json")
    assert (code, json.loads(out)["failure"]) == (0, None)


def test_a_journal_written_by_fuzz_replays(command, tmp_path: Path) -> None:
    path = tmp_path / "a journal.jsonl"
    command("fuzz", "control", "--seeds", "1", "--first-seed", "3", "--journal", str(path))
    code, out, _ = command("replay", str(path))
    assert (code, out.splitlines()[-1]) == (0, "every action as recorded")
    lines = path.read_bytes().splitlines()
    place = next(i for i, line in enumerate(lines) if b"StartWork" in line)
    lines[place] = lines[place].replace(b'"devices":[', b'"devices":[7,', 1)
    path.write_bytes(b"\n".join(lines))
    code, out, _ = command("replay", str(path), "--json")
    assert code == 1
    assert json.loads(out)["divergence"]["seq"] == place + 1


def sqlite_journal(path: Path, *, first: int) -> ControlCore:
    """A database as a platform leaves it; with `first` > 1 the older records are dropped for a snapshot."""
    core, records = ControlCore(), journal_of_seed(3)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE journal (seq INTEGER PRIMARY KEY, kind TEXT, now_ns INTEGER, payload BLOB)"
        )
        database.execute(
            "CREATE TABLE snapshots (seq INTEGER, now_ns INTEGER, code_version TEXT, payload BLOB)"
        )
        for record in records:
            if record.seq == first:
                row = (record.seq - 1, record.now_ns, __version__, core.snapshot())
                database.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", row)
            core.handle(record.now_ns, record.event)
            if record.seq >= first:
                line = (record.seq, type(record.event).__name__, record.now_ns, encode_record(record))
                database.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", line)
    return core


@pytest.mark.parametrize("first", [1, 20])
def test_a_state_folder_replays_and_exports(command, tmp_path: Path, first: int) -> None:
    core = sqlite_journal(tmp_path / "groundplane.db", first=first)
    exported = tmp_path / "out.jsonl"
    code, out, _ = command("replay", str(tmp_path), "--json", "--export", str(exported))
    assert code == 0
    assert json.loads(out)["digest"] == core.digest()
    code, out, _ = command("replay", str(exported), "--json")
    assert (code, json.loads(out)["digest"]) == (0, core.digest())


def test_bad_journals_are_one_clear_line(command, tmp_path: Path) -> None:
    assert command("replay", str(tmp_path / "no")) == (
        2,
        "",
        f"groundplane: {tmp_path / 'no'}: cannot be read: No such file or directory\n",
    )
    text = tmp_path / "notes.txt"
    text.write_text("hello\n")
    code, _, err = command("replay", str(text))
    assert (code, err.count("\n")) == (2, 1)
    assert f"{text}:1: is not a journal record" in err
    with contextlib.closing(sqlite3.connect(tmp_path / "groundplane.db")) as database, database:
        database.execute("CREATE TABLE other (a)")
    code, _, err = command("replay", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "is not a journal: no such table: journal" in err


def test_simulate_cluster(command) -> None:
    code, out, _ = command("simulate", "cluster", "4x8", "--jobs", "30", "--faults", "--fault-factor", "50")
    assert code == 0
    assert "4 nodes, 32 devices; 30 jobs" in out
    assert "utilisation" in out
    assert "100.00%" in out
    assert "exact" in out
    code, out, _ = command("simulate", "cluster", "dgx-h100x2", "--jobs", "5", "--json")
    summary = json.loads(out)
    assert (summary["devices"], summary["jobs"], summary["ledger_closes"]) == (16, 5, True)


def test_simulate_a_trace_under_several_policies(command, tmp_path: Path) -> None:
    trace, page, journal = tmp_path / "jobs.csv", tmp_path / "page.html", tmp_path / "j.jsonl"
    lines = [f"{10 * number},{1 + number % 12},{60 + number},{'ab'[number % 2]}" for number in range(60)]
    trace.write_text("time,gpus,run_s,queue\n" + "\n".join(lines) + "\n")
    code, out, err = command(
        "simulate", "cluster", "2x8", "--trace", str(trace), "--columns", "submit_s=time,devices=gpus",
        "--policy", "fifo,fair-share,default", "--html", str(page), "--journal", str(journal), "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    runs = json.loads(out)["runs"]
    assert [run["policy"] for run in runs] == ["fifo", "fair-share", "default"]
    assert all(run["ledger_closes"] and run["succeeded"] == 60 for run in runs)
    assert {row["group"] for row in runs[0]["queues"]} == {"a", "b"}
    assert all(f"Devices over time: {run['policy']}" in page.read_text() for run in runs)
    code, out, _ = command("replay", str(journal), "--json")
    assert (code, json.loads(out)["digest"]) == (0, runs[0]["digest"])


def test_simulate_training_jobs_of_a_trace(command, tmp_path: Path) -> None:
    """Steps take as long as the performance model says for the cluster's chips; the power is the servers'."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_s,devices,model,steps\n0,16,llama-3-8b,100\n5,8,llama-3-8b,100\n")
    code, out, err = command(
        "simulate", "cluster", "dgx-h100x4", "--trace", str(trace), "--json", "--usd-per-device-hour", "2"
    )
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["succeeded"] == 2
    assert summary["energy_kwh"] > 0
    assert summary["cost_usd"] == pytest.approx(2 * 32 * summary["simulated_s"] / 3600)
    code, _, err = command("simulate", "cluster", "4x8", "--trace", str(trace))
    assert (code, err.count("\n")) == (2, 1)
    assert "j0.steps: needs a cluster of the catalogue" in err
    trace.write_text("submit_s,devices,model,steps\n0,16,lama-3-8b,100\n")
    code, _, err = command("simulate", "cluster", "dgx-h100x4", "--trace", str(trace))
    assert (code, err.count("\n")) == (2, 1)
    assert "j0.model: unknown model" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["0x8"], "CLUSTER: must have 1 to 200000 devices, got '0x8'"),
        (["dgx-h1000x2"], "dgx-h1000"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["4x8", "--jobs", "0"], "--jobs"),
        (["4x8", "--load", "-1"], "--load"),
        (["4x8", "--policy", "fifi"], "did you mean 'fifo'"),
        (["4x8", "--policy", " , "], "--policy: must name a policy"),
        (["4x8", "--run-times", "x.csv"], "--run-times: needs --trace"),
        (["4x8", "--trace", "nowhere.csv"], "nowhere.csv: no such file"),
        (["4x8", "--checkpoint-every", "1"], "--checkpoint-every"),
        (["4x8", "--html", "nowhere/page.html"], "nowhere/page.html: cannot be written: no such folder"),
        (["4x8", "--faults", "--reliability", "rsc1"], "did you mean 'rsc-1'"),
    ],
)
def test_bad_clusters_are_one_clear_line(command, args: list[str], message: str) -> None:
    code, out, err = command("simulate", "cluster", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
