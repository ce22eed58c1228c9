"""Progress and output as works write them, torn and rotated as they may be."""

from __future__ import annotations

from pathlib import Path

from groundplane.platform.runtime import job_desk, progress


def test_progress_is_summed_over_attempts(tmp_path: Path) -> None:
    first, second, missing = tmp_path / "a1", tmp_path / "a2", tmp_path / "a3"
    first.mkdir()
    second.mkdir()
    (first / "progress.jsonl").write_text(
        '{"step": 1, "loss": 2.5, "stages": {"data_ns": 10, "forward_ns": 30}}\n{"checkpoint": 1}\nnot json\n'
    )
    (second / "progress.jsonl").write_text(
        '{"step": 2, "loss": 2.0, "stages": {"forward_ns": 20}}\n{"step": 3, "loss": 1.5, "stag'
    )
    told = progress.read([first, second, missing])
    assert told == progress.Progress(last_step=2, last_loss=2.0, stages_ns={"data": 10, "forward": 50})
    assert progress.read([]) == progress.Progress(None, None, {})


def test_output_is_given_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    assert job_desk.read_part(log, 0) == ("", 0)
    log.write_bytes("größe\nhalf".encode())
    text, offset = job_desk.read_part(log, 0)
    assert (text, offset) == ("größe\n", 8)
    assert job_desk.read_part(log, offset) == ("half", 12)
    assert job_desk.read_part(log, 12) == ("", 12)


def test_output_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"new\n")
    assert job_desk.read_part(log, 1000) == ("new\n", 4)


def test_long_output_comes_in_parts(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    line = b"x" * 1023 + b"\n"
    log.write_bytes(line * 600)
    offset, parts = 0, []
    while True:
        text, offset = job_desk.read_part(log, offset)
        if not text:
            break
        parts.append(text)
    assert "".join(parts).encode() == line * 600
    assert len(parts) == 3
