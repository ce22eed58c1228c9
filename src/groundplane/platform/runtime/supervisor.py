"""Keeps control plane and gateway alive: `python -m groundplane.platform.runtime.supervisor --state DIR ...`.

One plain loop on signals. A child that ends is started again after a back-off that grows while it keeps
ending. A child that begins by ending with exit code 2 (bad input) would do so again: then all ends, with 2.
SIGTERM ends the children, then the supervisor. Works are no children of anything here and go on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from groundplane import __version__
from groundplane.platform.engines.local import processes
from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.upfile import ProcessId, UpFile

BACKOFF_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 10.0
STEADY_S: Final = 10.0
"""A child that lived this long is taken to be well: its next end is the first in a row."""
STOP_S: Final = 10.0
"""What a child gets between SIGTERM and SIGKILL."""
LOG_LIMIT_BYTES: Final = 32 << 20
"""A longer log is put aside as NAME.log.1 when its process is started again."""
FOLDER_LOOK_S: Final = 1.0
"""How often it looks whether its state folder is still there."""
SIGNALS: Final = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Child:
    """One process to keep alive: how it is started, and how it went so far."""

    def __init__(self, name: str, command: list[str], log: Path, descriptors: tuple[int, ...] = ()) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at_s = 0.0
        self.num_ends = 0
        self._command = command
        self._log = log
        self._descriptors = descriptors
        self._started_s = 0.0
        self._ends_in_row = 0

    @property
    def process_id(self) -> ProcessId | None:
        """The running process, or None."""
        return upfile.process_id(self.process.pid) if self.process is not None else None

    def start(self) -> None:
        """Starts it, in a process group of its own: a Ctrl-C in a terminal is the supervisor's to handle."""
        if self._log.exists() and self._log.stat().st_size > LOG_LIMIT_BYTES:
            self._log.replace(self._log.with_name(self._log.name + ".1"))
        self._started_s = time.monotonic()
        try:
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=self._descriptors,
                    process_group=0,
                    # The signals that the supervisor waits for are blocked in it, and must not be in a child.
                    preexec_fn=_unblock,  # noqa: PLW1509 - there is one thread
                )
        except OSError as error:
            # No process or no file to be had now: that passes, and the other child must be kept meanwhile.
            say(f"{self.name} cannot be started now: {error}")
            self._plan_restart()

    def reap(self) -> int | None:
        """The exit code, once, when it has ended since the last look; plans the restart."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        self._plan_restart()
        self.num_ends += 1
        self.process = None
        return code

    def _plan_restart(self) -> None:
        now_s = time.monotonic()
        self._ends_in_row = 1 if now_s - self._started_s >= STEADY_S else self._ends_in_row + 1
        self.restart_at_s = now_s + min(BACKOFF_S * 2 ** min(self._ends_in_row - 1, 10), BACKOFF_LIMIT_S)

    @property
    def ended_at_once(self) -> bool:
        """Whether it ended so soon after its first start that it was never up."""
        return self.num_ends == 1 and time.monotonic() - self._started_s < STEADY_S

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()[-1:] if self._log.exists() else []
        return lines[0][-300:] if lines else ""

    def stop(self, deadline_s: float) -> None:
        """Waits for its end after SIGTERM, then ends it by force."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class Supervisor:
    """Starts, watches and ends the children, and keeps `up.json` true."""

    def __init__(self, state: Path, lock: int, up: UpFile, children: list[Child]) -> None:
        self._state = state
        self._lock = lock
        self._up = up
        self._children = children
        self._written: UpFile | None = None

    def run(self) -> int:
        """Runs until told to end; returns the exit code."""
        for child in self._children:
            child.start()
        self._write()
        while True:
            number = self._next_signal()
            if not self._has_folder():
                # Somebody deleted the state folder: whatever is acknowledged now would be kept nowhere.
                say("the state folder was deleted; the platform ends")
                self._stop()
                return 1
            if number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                self._stop()
                upfile.remove(self._state)
                return 0
            for child in self._children:
                code = child.reap()
                if code == 2 and child.ended_at_once:
                    self._stop()
                    return 2
                if code is not None:
                    say(f"{child.name} {how_it_ended(code)}; it is started again: {child.last_words()}")
            for child in self._children:
                if child.process is None and time.monotonic() >= child.restart_at_s:
                    child.start()
            self._write()

    def _next_signal(self) -> int:
        """Waits for a signal, or until a restart or a look at the folder is due; 0 for the latter two."""
        waiting = [child.restart_at_s for child in self._children if child.process is None]
        wait_s = min([FOLDER_LOOK_S, *(max(0.0, at_s - time.monotonic()) for at_s in waiting)])
        found = signal.sigtimedwait(SIGNALS, wait_s)
        return found.si_signo if found is not None else 0

    def _has_folder(self) -> bool:
        """Whether the lock that is held is still the one in the folder."""
        try:
            return os.path.samestat(os.stat(self._state / upfile.SUPERVISOR_LOCK), os.fstat(self._lock))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _write(self) -> None:
        ids = {child.name: child.process_id for child in self._children}
        down = [child for child in self._children if child.process is None]
        up = replace(
            self._up,
            control=ids["control"],
            gateway=ids["gateway"],
            restarts=sum(child.num_ends for child in self._children),
            trouble=f"{down[0].name}: {down[0].last_words()}" if down else "",
        )
        if up == self._written:
            return
        try:
            upfile.write(self._state, up)
            self._written = up
        except OSError as error:
            say(f"up.json cannot be written: {error}")

    def _stop(self) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.terminate()
        deadline_s = time.monotonic() + STOP_S
        for child in self._children:
            child.stop(deadline_s)


def main(arguments: list[str] | None = None) -> int:
    """Supervises one state folder; only one supervisor may."""
    parser = argparse.ArgumentParser(prog="supervisor")
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("--fd", required=True, type=int, help="the control plane's listening socket")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--gateway-port", required=True, type=int)
    parser.add_argument("--devices", default=0, type=int)
    options = parser.parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    state: Path = options.state
    lock = upfile.take_lock(state / upfile.SUPERVISOR_LOCK)
    if lock is None:
        print("another supervisor runs in this folder", file=sys.stderr)  # noqa: T201
        return 2
    me = upfile.process_id(os.getpid())
    if me is None:
        return 1
    up = UpFile(
        boot_id=processes.boot_id(),
        version=__version__,
        host=options.host,
        port=options.port,
        gateway_port=options.gateway_port,
        started_ns=time.time_ns(),
        supervisor=me,
    )
    return Supervisor(state, lock, up, children_of(state, options)).run()


def children_of(state: Path, options: argparse.Namespace) -> list[Child]:
    """Control plane and gateway with their commands."""
    logs = state / "logs"
    python = [sys.executable, "-P", "-m"]
    where = ["--state", str(state)]
    gateway_address = upfile.address(options.host, options.gateway_port)
    control = [
        *python, "groundplane.platform.runtime.control", *where,
        "--fd", str(options.fd), "--devices", str(options.devices), "--gateway", gateway_address,
        "--supervisor", str(os.getpid()),
    ]  # fmt: skip
    gateway = [
        *python, "groundplane.platform.serving.gateway", *where,
        "--host", options.host, "--port", str(options.gateway_port),
        "--supervisor", str(os.getpid()),
    ]  # fmt: skip
    return [
        Child("control", control, logs / "control.log", (options.fd,)),
        Child("gateway", gateway, logs / "gateway.log"),
    ]


def say(text: str) -> None:
    """One line in the supervisor's log; a disk without space for it is no reason to end."""
    with suppress(OSError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)  # noqa: T201


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


if __name__ == "__main__":
    sys.exit(main())
