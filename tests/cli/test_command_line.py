"""What holds for every command: an example in its help, one clear line for bad input, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from groundplane.cli import main as command_line
from groundplane.cli.client import quote
from groundplane.spec.errors import InputError
from groundplane.tour.stage import Stage
from groundplane.tour.story import MARKER, Tour


def every_command() -> Iterator[tuple[str, click.Command]]:
    """All commands with their sub-commands, by the words that a person types."""
    context = click.Context(command_line.root)
    for name in command_line.COMMANDS:
        command = command_line.root.get_command(context, name)
        assert command is not None
        yield name, command
        for inner, sub_command in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", sub_command


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command line."""
    monkeypatch.setattr(sys, "argv", ["groundplane", *words])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    code = left.value.code
    return code if isinstance(code, int) else 0, capfd.readouterr().err


@pytest.mark.parametrize(("words", "command"), list(every_command()), ids=lambda part: str(part))
def test_every_help_has_an_example_of_that_command(words: str, command: click.Command) -> None:
    assert f"groundplane {words}" in (command.epilog or "")


@pytest.mark.parametrize("group", [[], ["plan"], ["simulate"], ["fuzz"], ["validate"]], ids=str)
def test_a_group_alone_shows_its_help_in_lines(
    group: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, shown = run(capfd, monkeypatch, *group)
    assert code == 2
    assert shown.startswith("Usage: ")
    assert "\nCommands:\n" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "cluster", "4x8", "--load", "nan"],
        ["simulate", "cluster", "4x8", "--load", "inf"],
        ["simulate", "cluster", "4x8", "--faults", "--fault-factor", "nan"],
        ["simulate", "cluster", "4x8", "--faults", "--fault-factor", "1e12"],
        ["down", "--grace", "-4"],
        ["down", "--grace", "nan"],
        ["deploy", "service.yaml", "--timeout", "-1"],
        ["services", "scale", "chat", "2", "--timeout", "inf"],
        ["up", "--port", "9000", "--gateway-port", "9000"],
        ["usage", "--day", "2026-02-31"],
        ["usage", "--csv", "--json"],
    ],
    ids=" ".join,
)
def test_numbers_out_of_range_are_refused_in_one_line(
    words: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = run(capfd, monkeypatch, *words)
    assert code == 2
    assert shown.count("\n") == 1
    assert shown.startswith("groundplane: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../etc"])
def test_what_is_no_name_never_becomes_part_of_a_path(name: str) -> None:
    with pytest.raises(InputError, match="must be a name"):
        quote(name)


def test_a_journal_without_events_is_not_called_good(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.jsonl").touch()
    code, shown = run(capfd, monkeypatch, "replay", str(tmp_path / "empty.jsonl"))
    assert code == 2
    assert "empty.jsonl: holds no event" in shown


@pytest.mark.parametrize(
    "words",
    [["submit", "FILE"], ["plan", "train", "job.yaml", "--cluster", "FILE"]],
    ids=lambda words: words[0],
)
def test_a_file_of_another_kind_is_told_as_that(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("kind: job\nname: a\ntrain: {steps: 10}\n")
    Path("service.yaml").write_text("kind: service\nname: chat\nmodel: m\n")
    code, shown = run(capfd, monkeypatch, *["service.yaml" if word == "FILE" else word for word in words])
    assert code == 2
    assert shown.startswith("groundplane: service.yaml:1: kind: must be ")
    assert "got 'service'" in shown


def test_a_second_interrupt_does_not_cut_the_clean_up_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tour = Tour(tmp_path / "tour", Stage(quiet=True), keep=False)
    stopped = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def stop() -> None:
        interrupt()
        stopped.append(True)

    monkeypatch.setattr(tour, "_probe", interrupt)
    monkeypatch.setattr(tour._platform, "stop", stop)
    with pytest.raises(KeyboardInterrupt):
        tour.run()
    assert stopped == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("folder", ["/dev/null", "/dev/null/x"])
def test_a_tour_cannot_be_made_in_a_file(folder: str) -> None:
    with pytest.raises(InputError, match="cannot be made: "):
        Tour(Path(folder), Stage(quiet=True), keep=False).run()


def test_a_second_tour_leaves_a_running_one_alone(tmp_path: Path) -> None:
    folder = tmp_path / "tour"
    folder.mkdir()
    (folder / MARKER).touch()
    (folder / "result.json").touch()
    hold = (
        "import fcntl, os, sys; d = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(d, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another tour is running in it"):
            Tour(folder, Stage(quiet=True), keep=False).run()
        assert (folder / "result.json").exists()
        other.stdin.close()


def test_an_unforeseen_exception_is_one_line_and_a_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(**_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(command_line.root, "main", breaks)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ending:
        command_line.main()
    (report,) = tmp_path.iterdir()
    assert ending.value.code == 3
    assert capfd.readouterr().err == (
        "groundplane: this is a bug in Groundplane, "
        f"please report it with {report}: RuntimeError: first line\n"
    )
    assert "Traceback" in report.read_text()
    assert "second line" in report.read_text()
