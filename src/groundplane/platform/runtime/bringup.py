"""Bringing a platform up and taking it down: what `groundplane up` and `groundplane down` do.

`up` binds the ports itself, so that a taken one is said at once, and hands the control plane's socket on.
`down` works whoever is left: with the supervisor, without it, without a control plane; it ends with proof.
"""

from __future__ import annotations

import fcntl
import http.client
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from groundplane.platform.engines.local.sweep import SweepResult, sweep
from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.state import URL_FILE, keep_url
from groundplane.platform.runtime.upfile import UpFile
from groundplane.spec.errors import GroundplaneError, InputError

READY_S: Final = 30.0
"""How long `up` waits for both processes to answer."""
POLL_S: Final = 0.02
UP_WAIT_S: Final = READY_S + 30.0
"""How long an `up` waits for another one of the same folder: what that one may take, and to end it."""
SUPERVISOR_STOP_S: Final = 20.0
BACKLOG: Final = 1024


class UpOptions(Struct, frozen=True):
    """What `up` was asked for. `devices` 0 stands for all; `database` "" for the folder's own."""

    state: Path
    host: str = "127.0.0.1"
    port: int = 8470
    gateway_port: int = 8000
    database: str = ""
    devices: int = 0
    allow_remote: bool = False


class DownResult(Struct, frozen=True):
    """What `down` found: whether anything of the platform itself lived, and what became of its works."""

    was_up: bool
    works: SweepResult


def bring_up(options: UpOptions) -> tuple[UpFile, bool]:
    """Starts a detached supervisor and waits until the platform answers.

    Returns:
        `up.json`, and whether this call started it (False: it was up already).

    Raises:
        InputError: taken port, unusable folder, database or devices.
        GroundplaneError: it did not come up in time.
    """
    prepare_state(options)
    with _only_up(options.state):
        former = upfile.read(options.state)
        if former is not None and former.supervisor.is_alive:
            return former, False
        log_path = options.state / "logs" / "supervisor.log"
        with log_path.open("ab") as log:
            _supervisor, up = _start(options, log.fileno())
    return up, True


def run_foreground(options: UpOptions, on_ready: Callable[[UpFile], None]) -> int:
    """As `bring_up`, but returns when the platform has ended; Ctrl-C ends it and all of its works.

    Raises:
        InputError: as `bring_up`, and when it is up already.
    """
    prepare_state(options)
    with _only_up(options.state):
        former = upfile.read(options.state)
        if former is not None and former.supervisor.is_alive:
            raise InputError("is up already", field="state", value=str(options.state))
        supervisor, up = _start(options, sys.stderr.fileno())
    try:
        on_ready(up)
        return supervisor.wait()
    finally:
        take_down(options.state)


@contextmanager
def _only_up(state: Path) -> Iterator[None]:
    """Lets one `up` of a state folder work at a time: the second one finds what the first one started.

    Raises:
        GroundplaneError: the other one takes too long.
    """
    descriptor = os.open(state / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + UP_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise GroundplaneError("another `groundplane up` of this state folder hangs") from None
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _start(options: UpOptions, log: int) -> tuple[subprocess.Popen[bytes], UpFile]:
    """A supervisor in a session of its own, once all answer; when it fails, nothing is left of it."""
    end_processes(options.state)
    upfile.remove(options.state)
    listener = bind_ports(options)
    has_new_url = bool(options.database) and keep_url(options.state, options.database)
    try:
        with listener:
            supervisor = subprocess.Popen(
                supervisor_command(options, listener.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        try:
            return supervisor, wait_ready(options.state, supervisor.poll)
        except BaseException:
            # Works of an earlier life go on: not to come up is no reason to end them.
            supervisor.terminate()
            supervisor.wait()
            end_processes(options.state)
            upfile.remove(options.state)
            raise
    except BaseException:
        if has_new_url:
            (options.state / URL_FILE).unlink(missing_ok=True)
        raise


def take_down(state: Path, grace_s: float = 5.0) -> DownResult:
    """Ends the platform of a state folder and every work it started, with proof."""
    was_up = bool(upfile.living(state))
    end_processes(state)
    works = sweep(state, grace_s)
    upfile.remove(state)
    return DownResult(was_up=was_up, works=works)


def end_processes(state: Path) -> None:
    """Ends supervisor, control plane and gateway of a state folder, whichever of them live."""
    found = upfile.living(state)
    if found:
        # The supervisor ends the other two.
        found[0].signal(signal.SIGTERM)
        found[0].wait_gone(SUPERVISOR_STOP_S)
    for each in upfile.living(state):
        each.signal(signal.SIGTERM if each != found[0] else signal.SIGKILL)
    deadline_s = time.monotonic() + SUPERVISOR_STOP_S / 2
    for each in upfile.living(state):
        if not each.wait_gone(max(0.0, deadline_s - time.monotonic())):
            each.signal(signal.SIGKILL)
            each.wait_gone(SUPERVISOR_STOP_S)


def prepare_state(options: UpOptions) -> None:
    """Makes the state folder and checks what can be checked before anything is started.

    Raises:
        InputError: it cannot be made or written, or a wish that would expose the platform.
    """
    if not options.allow_remote and not _is_loopback(options.host):
        raise InputError(
            "would open the platform to other machines; add --allow-remote if that is wanted",
            field="host",
            value=options.host,
        )
    try:
        (options.state / "logs").mkdir(parents=True, exist_ok=True)
        os.chmod(options.state, 0o700)
        probe = options.state / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be written: {reason}", field="state", value=str(options.state)) from None


def bind_ports(options: UpOptions) -> socket.socket:
    """The control plane's listening socket; also sees that the gateway's port is free.

    Raises:
        InputError: a port is taken or not allowed; names it.
    """
    bind(options.host, options.gateway_port, "gateway-port").close()
    return bind(options.host, options.port, "port")


def bind(host: str, port: int, field: str) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: the address cannot be listened on.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = (os.strerror(number) if number is not None and number > 0 else str(error)).lower()
        raise InputError(
            f"port {port} of {host} cannot be used ({reason}); choose another one with --{field}", field=field
        ) from None
    listener.setblocking(False)
    return listener


def supervisor_command(options: UpOptions, descriptor: int) -> list[str]:
    """How the supervisor is started."""
    return [
        sys.executable, "-P", "-m", "groundplane.platform.runtime.supervisor",
        "--state", str(options.state), "--fd", str(descriptor), "--host", options.host,
        "--port", str(options.port), "--gateway-port", str(options.gateway_port),
        "--devices", str(options.devices),
    ]  # fmt: skip


def wait_ready(state: Path, ended: Callable[[], int | None]) -> UpFile:
    """Waits until control plane and gateway answer.

    Args:
        state: the state folder.
        ended: the supervisor's exit code, None while it runs.

    Raises:
        InputError: the supervisor gave up because of something a person gave.
        GroundplaneError: they do not answer in time.
    """
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        code = ended()
        if code is not None:
            raise InputError(_last_complaint(state) or f"the supervisor ended with {code}")
        up = upfile.read(state)
        if up is not None and answers(up.host, up.port) and answers(up.host, up.gateway_port):
            return upfile.read(state) or up
        time.sleep(POLL_S)
    raise GroundplaneError(f"the platform did not answer within {READY_S:.0f} s; see {state / 'logs'}")


def answers(host: str, port: int) -> bool:
    """Whether /health says 200 there."""
    connection = http.client.HTTPConnection(upfile.address(host, port), timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _last_complaint(state: Path) -> str:
    """The newest line among the logs that says why a process ended."""
    logs = sorted((state / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in logs:
        for line in reversed(path.read_text(errors="replace").splitlines()[-20:]):
            for mark in (" ERROR groundplane.control ", "gateway: ", "supervisor: "):
                if mark in line:
                    return line.split(mark, 1)[1]
    return ""
