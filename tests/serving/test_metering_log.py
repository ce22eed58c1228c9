"""The log survives torn writes; folding is exactly once; what was left open is found."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from groundplane.platform.runtime.database import Database, StorageError
from groundplane.platform.serving import metering, settlement
from groundplane.platform.serving.metering import (
    MeteringLog,
    Progress,
    Reservation,
    Settlement,
    frame,
    read_segment,
    segments,
    unframe,
)
from groundplane.platform.serving.settlement import Settler
from groundplane.platform.serving.tables import usage
from groundplane.platform.serving.usage import UsageSum, sum_usage
from groundplane.spec.errors import InputError

DAY_NS = 86_400 * 10**9


def reservation(request_id: str) -> Reservation:
    return Reservation(
        request_id=request_id, attempt=0, key_id="key-1", project="blue", model="tiny", work_id="svc.r1",
        server="openai", url="http://127.0.0.1:1/v1", path="/v1/completions", streamed=False,
        started_ns=DAY_NS,
    )  # fmt: skip


def settled(request_id: str, tokens_out: int = 3, **changes: Any) -> Settlement:
    fields: dict[str, Any] = {
        "request_id": request_id, "attempt": 0, "key_id": "key-1", "project": "blue", "model": "tiny",
        "work_id": "svc.r1", "path": "/v1/completions", "streamed": False, "started_ns": DAY_NS,
        "tokens_in": 2,
        "tokens_cached": 1, "tokens_out": tokens_out, "counted_by": "usage", "partial": False,
        "outcome": "completed", "status": 200, "queued_ns": 1, "first_token_ns": 2, "total_ns": 3,
    }  # fmt: skip
    return Settlement(**(fields | changes))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'test.db'}", migrate=True)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metering"


def rows(database: Database) -> dict[str, int]:
    with database.reading() as connection:
        return {row.request_id: row.tokens_out for row in connection.execute(sa.select(usage))}


def test_frames() -> None:
    record = settled("req_1")
    line = frame(record)
    assert unframe(line[:-1]) == record
    assert unframe(line[:-2]) is None
    assert unframe(line.replace(b'"req_1"', b'"req_2"')[:-1]) is None
    assert unframe(b"") is None
    assert unframe(b"zzzzzzzz []") is None


@given(st.binary(max_size=60))
def test_garbage_is_no_record(garbage: bytes) -> None:
    assert unframe(garbage) is None


def test_log_is_locked_and_begins_a_segment_of_its_own(folder: Path) -> None:
    log = MeteringLog(folder)
    with pytest.raises(InputError, match="another gateway"):
        MeteringLog(folder)
    log.append(reservation("a"))
    log.close()
    again = MeteringLog(folder)
    again.append(settled("a"))
    again.close()
    assert [number for number, _ in segments(folder)] == [1, 2]


def test_segments_roll(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "SEGMENT_LIMIT_BYTES", 300)
    log = MeteringLog(folder)
    for index in range(9):
        log.append(settled(f"req_{index}"))
    log.close()
    found = [record for _, path in segments(folder) for record, _ in read_segment(path)]
    assert [record.request_id for record in found if record] == [f"req_{index}" for index in range(9)]
    assert len(segments(folder)) > 3
    assert all(path.stat().st_size <= 300 for _, path in segments(folder))


def test_a_torn_write_costs_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the record is refused, and the next one is whole."""
    log = MeteringLog(folder)
    log.append(settled("a"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="only 20 of"):
        log.append(settled("torn"))

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        log.append(settled("refused"))
    monkeypatch.setattr(os, "write", write)
    log.append(settled("b"))
    log.close()
    found = [record for _, path in segments(folder) for record, _ in read_segment(path)]
    assert [record.request_id for record in found if record] == ["a", "b"]


def test_fold_is_exactly_once(folder: Path, database: Database) -> None:
    log = MeteringLog(folder)
    settler = Settler(folder, database, "gateway")
    for index in range(5):
        log.append(reservation(f"req_{index}"))
        log.append(settled(f"req_{index}", index))
    assert settler.fold() == 5
    assert settler.fold() == 0
    assert Settler(folder, database, "gateway").fold() == 0
    log.append(settled("req_0", 99))
    log.append(settled("req_9", 9))
    assert settler.fold() == 2
    assert rows(database) == {"req_0": 0, "req_1": 1, "req_2": 2, "req_3": 3, "req_4": 4, "req_9": 9}
    log.close()


def test_a_transaction_that_fails_is_folded_again(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and position move together or not at all."""
    log = MeteringLog(folder)
    settler = Settler(folder, database, "gateway")
    log.append(settled("a"))

    def broken(*_: Any) -> None:
        raise StorageError("gone in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(settler, "_move", broken)
        with pytest.raises(StorageError):
            settler.fold()
    assert rows(database) == {}
    assert settler.fold() == 1
    assert rows(database) == {"a": 3}
    log.close()


def test_small_batches_and_old_segments(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "SEGMENT_LIMIT_BYTES", 400)
    monkeypatch.setattr(settlement, "BATCH_RECORDS", 3)
    monkeypatch.setattr(settlement, "KEEP_SEGMENTS", 2)
    log = MeteringLog(folder)
    log.append(reservation("long"))
    for index in range(10):
        log.append(settled(f"req_{index}"))
    settler = Settler(folder, database, "gateway")
    assert settler.fold() == 10
    assert segments(folder)[0][0] == 1, "a segment with an open reservation stays"
    log.append(settled("long"))
    settler.fold()
    assert segments(folder)[0][0] == log.end[0] - 2
    assert len(rows(database)) == 11
    log.close()


def test_what_was_left_open_is_found(folder: Path, database: Database) -> None:
    log = MeteringLog(folder)
    for name in ("done", "open", "cut"):
        log.append(reservation(name))
    log.append(settled("done"))
    log.append(Progress("open", 7, ""))
    log.append(Progress("cut", 4, "cancelled"))
    log.close()
    Settler(folder, database, "gateway").fold()
    with segments(folder)[0][1].open("ab") as file:
        file.write(b"12345678 [torn")
    log = MeteringLog(folder)
    settler = Settler(folder, database, "gateway")
    left = settler.recover(log.end[0])
    assert {one.reservation.request_id: one.progress.tokens_out for one in left if one.progress} == {
        "open": 7,
        "cut": 4,
    }
    log.append(settled("open", 7, outcome="interrupted", partial=True))
    log.append(settled("cut", 4, outcome="cancelled", partial=True))
    settler.fold()
    assert rows(database) == {"done": 3, "open": 7, "cut": 4}
    assert settler.open == {}
    log.close()


def test_damage_is_reported_and_skipped(
    folder: Path, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    log = MeteringLog(folder)
    for name in ("a", "b", "c"):
        log.append(settled(name))
    log.close()
    path = segments(folder)[0][1]
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"x"'))
    settler = Settler(folder, database, "gateway")
    assert settler.fold() == 2
    assert settler.num_damaged == 1
    assert "segment 1: damaged record" in caplog.text


def test_sums(folder: Path, database: Database) -> None:
    log = MeteringLog(folder)
    log.append(settled("a", 10))
    log.append(settled("b", 5, project="red", partial=True, outcome="cancelled"))
    log.append(settled("c", 2**40, started_ns=3 * DAY_NS, model="big"))
    log.close()
    Settler(folder, database, "gateway").fold()
    assert sum_usage(database) == [
        UsageSum("blue", 2, 0, 4, 2, 10 + 2**40),
        UsageSum("red", 1, 1, 2, 1, 5),
    ]
    assert [one.group for one in sum_usage(database, "day")] == ["1970-01-02", "1970-01-04"]
    assert sum_usage(database, "model", project="blue", day="1970-01-04") == [
        UsageSum("big", 1, 0, 2, 1, 2**40)
    ]
    with pytest.raises(InputError, match="unknown grouping"):
        sum_usage(database, "modle")
