"""Reports of the local engine keep order and position, whatever kills the follower or fills the disk."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.platform.engines.contract import Report
from groundplane.platform.engines.local import processes
from groundplane.platform.engines.local.folder import LaunchFile, RankLaunch, WorkFolder
from groundplane.platform.engines.local.follower import READ_BYTES, Follower

LAUNCH = LaunchFile(
    work_id="w.a1",
    fence=2,
    kind="attempt",
    token="0" * 32,
    cwd="/",
    ranks=(RankLaunch(("true",), {}, (0,)),),
    memory_bytes_per_rank=0,
    ready_url="",
    boot_id=processes.boot_id(),
)
STARTED = json.dumps({"what": "started", "time_ns": 1, "pids": [1]})
EXITED = json.dumps({"what": "rank_exited", "time_ns": 2, "rank": 0})
GONE = json.dumps({"what": "gone", "time_ns": 3, "outcome": "succeeded"})


class FailingLog:
    """In place of a follower's log: some appends fail, as on a full disk."""

    def __init__(self, log: object, failures: list[bool]) -> None:
        self._log = log
        self._failures = failures

    def append(self, *lines: bytes) -> None:
        if self._failures and self._failures.pop():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._log.append(*lines)  # type: ignore[attr-defined]

    def lines(self) -> list[bytes]:
        return self._log.lines()  # type: ignore[attr-defined, no-any-return]


def expected(progress: list[str]) -> list[tuple[str, int]]:
    """What an undisturbed follower reports of `started`, some progress, and `gone`."""
    reports = [("started", 0)]
    decoded = [json.loads(line) for line in progress if line.endswith("}")]
    is_ready = False
    for line in decoded:
        if "step" in line and not is_ready:
            is_ready = True
            reports.append(("ready", 0))
        if "checkpoint" in line:
            reports.append(("checkpoint", line["checkpoint"]))
    return [*reports, ("gone", 0)]


progress_lines = st.lists(
    st.one_of(
        st.integers(0, 9).map(lambda step: json.dumps({"step": step, "loss": 1.5})),
        st.integers(0, 9).map(lambda step: json.dumps({"checkpoint": step})),
        st.integers(0, 9).map(lambda step: json.dumps({"step": step, "checkpoint": step})),
        st.sampled_from(["", "nonsense", "[1]", '{"torn": ', "x" * 100]),
    ),
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(progress=progress_lines, data=st.data())
def test_reports_are_the_same_whatever_interrupts(progress: list[str], data: st.DataObject) -> None:
    """Bytes arrive in any pieces; between any two looks the follower may be replaced; any append may fail."""
    files = {
        "progress.jsonl": "".join(line + "\n" for line in progress).encode(),
        "reports.jsonl": f"{STARTED}\n{EXITED}\n{GONE}\n".encode(),
    }
    # What survives a loss of power is not asked here, and syncing takes most of the time.
    with tempfile.TemporaryDirectory() as name, mock.patch.object(os, "fsync"):
        folder = WorkFolder(Path(name))
        handed_out: dict[int, Report] = {}
        follower = Follower(folder, LAUNCH)
        written = dict.fromkeys(files, 0)

        def take(reports: list[Report]) -> None:
            for report in reports:
                assert handed_out.setdefault(report.position, report) == report

        while not follower.gone:
            # All progress is there before the keeper says `gone`: it ends after its ranks.
            has_progress = written["progress.jsonl"] < len(files["progress.jsonl"])
            file = "progress.jsonl" if has_progress else "reports.jsonl"
            end = written[file] + data.draw(st.integers(1, 200), label=f"bytes of {file}")
            with (folder.path / file).open("ab") as stream:
                stream.write(files[file][written[file] : end])
            written[file] = end
            failures = data.draw(st.lists(st.booleans(), max_size=3), label="failing appends")
            follower._log = FailingLog(follower._log, failures)  # type: ignore[assignment]
            try:
                for report in follower.advance():
                    take([report])
            except OSError:
                pass
            if data.draw(st.booleans(), label="control plane restarts"):
                follower = Follower(folder, LAUNCH)
                take(follower.replay())
        reports = [handed_out[position] for position in sorted(handed_out)]
        assert list(handed_out) == list(range(1, len(reports) + 1))
        assert [(report.what, report.step) for report in reports] == expected(progress)


def test_line_longer_than_a_read_is_passed_over(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path)
    folder.reports_path.write_text(STARTED + "\n")
    long_line = json.dumps({"checkpoint": 1, "text": "x" * (2 * READ_BYTES)})
    folder.progress_path.write_text(f'{{"step": 1}}\n{long_line}\n{{"checkpoint": 2}}\n')
    follower = Follower(folder, LAUNCH)
    assert [(r.what, r.step) for r in follower.advance()] == [("started", 0), ("ready", 0), ("checkpoint", 2)]


def test_replica_makes_no_ready_of_progress(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path)
    folder.reports_path.write_text(STARTED + "\n")
    folder.progress_path.write_text('{"step": 1}\n')
    follower = Follower(
        folder,
        LaunchFile(
            **{name: getattr(LAUNCH, name) for name in LAUNCH.__struct_fields__} | {"kind": "replica"}
        ),
    )
    assert [report.what for report in follower.advance()] == ["started"]
    assert [report.what for report in follower.note_ready(True)] == ["ready"]
    assert follower.note_ready(True) == []
    assert [(r.what, r.position) for r in follower.note_ready(False)] == [("unready", 3)]


@pytest.mark.parametrize(
    ("url", "is_fine"),
    [
        ("http://127.0.0.1:8080/health", True),
        ("http://localhost:1/", True),
        ("https://127.0.0.1:8080/health", False),
        ("127.0.0.1:8080", False),
        ("http://:80/", False),
        ("http://host:99999/", False),
    ],
)
def test_ready_url(url: str, is_fine: bool) -> None:
    from groundplane.platform.engines.local.readiness import url_trouble

    assert (url_trouble(url) == "") is is_fine
