from __future__ import annotations

import pytest

from groundplane import __version__
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang, JobSubmitted, NodeJoined, RestartPolicy
from groundplane.control.journal import (
    JournalRecord,
    Record,
    SnapshotRecord,
    decode_record,
    dump_lines,
    encode_record,
    read_lines,
)
from groundplane.control.replay import replay
from groundplane.sim.fuzz import journal_of_seed
from groundplane.spec.errors import InputError


def short_journal() -> tuple[list[JournalRecord], ControlCore]:
    core, records = ControlCore(), []
    for seq, event in enumerate(
        [
            NodeJoined("n0", "gpu", 2, 10),
            JobSubmitted("j", "j", "q", 0, Gang(2, 1, 1), RestartPolicy(1, 1, 1), 0),
        ],
        start=1,
    ):
        records.append(JournalRecord(seq, seq * 10, event, tuple(core.handle(seq * 10, event))))
    return records, core


def test_records_survive_both_forms() -> None:
    records, core = short_journal()
    assert [decode_record(encode_record(record)) for record in records] == records
    snapshot = SnapshotRecord(2, 20, __version__, core.snapshot())
    assert list(read_lines(dump_lines([snapshot, *records]))) == [snapshot, *records]


def test_a_journal_replays_to_the_same_digest() -> None:
    records, core = short_journal()
    report = replay(records)
    assert report.divergence is None
    assert (report.num_events, report.num_actions, report.digest) == (2, 1, core.digest())


def test_replay_from_a_snapshot_and_over_one() -> None:
    records, core = short_journal()
    first = ControlCore()
    first.handle(10, records[0].event)
    start = SnapshotRecord(1, 10, __version__, first.snapshot())
    assert replay([start, records[1]]).digest == core.digest()
    assert replay([records[0], start, records[1]]).divergence is None
    wrong = SnapshotRecord(1, 10, __version__, ControlCore().snapshot())
    divergence = replay([records[0], wrong, records[1]]).divergence
    assert divergence is not None
    assert divergence.event == "snapshot"
    # A snapshot that other code wrote is taken over: upgrades start from one.
    upgraded = SnapshotRecord(1, 10, "0.0.0", ControlCore().snapshot())
    assert replay([records[0], upgraded]).digest == ControlCore().digest()


def test_the_first_divergence_is_reported() -> None:
    records, _ = short_journal()
    cut = JournalRecord(2, 20, records[1].event, ())
    divergence = replay([records[0], cut]).divergence
    assert divergence is not None
    assert (divergence.seq, divergence.event, divergence.recorded) == (2, "JobSubmitted", "")
    assert divergence.recomputed.startswith("StartWork(work_id='j.a1'")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda records: [records[0], records[0]], "must follow each other"),
        (lambda records: [records[0], JournalRecord(3, 20, records[1].event, ())], "must follow each other"),
        (lambda records: [records[0], JournalRecord(2, 5, records[1].event, ())], "run backwards"),
    ],
)
def test_a_broken_journal_is_refused(change: object, rule: str) -> None:
    records: list[Record] = change(short_journal()[0])  # type: ignore[operator]
    with pytest.raises(InputError, match=rule):
        replay(records)


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"record": {"seq": 1}}', b"\xff\xfe"])
def test_a_broken_line_is_refused_by_its_number(line: bytes) -> None:
    good = next(dump_lines(short_journal()[0]))
    with pytest.raises(InputError) as caught:
        list(read_lines([good, line], file="j.jsonl"))
    assert str(caught.value).startswith("j.jsonl:2: ")


def test_a_broken_payload_is_refused() -> None:
    with pytest.raises(InputError, match="is not a journal record that this version knows"):
        decode_record(b"\x80")


@pytest.mark.parametrize("seed", range(5))
def test_journals_of_rough_worlds_replay(seed: int) -> None:
    journal = journal_of_seed(seed)
    assert replay(journal).divergence is None
