"""The platform as the tour uses it: its own state folder, free ports, and the API that everybody has."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.bringup import UpOptions, bring_up, take_down
from groundplane.spec.errors import GroundplaneError
from groundplane.tour.stage import Line

if TYPE_CHECKING:
    import httpx

READY_DEADLINE_S = 30.0


class PlatformAnswerError(GroundplaneError):
    """The platform refused what the tour asked for."""


class TourPlatform:
    """A platform in a state folder. `start` once; `stop` in any state, more than once if need be."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.key = ""
        self._client: httpx.Client | None = None

    def start(self) -> upfile.UpFile:
        """Brings it up on free ports, the usual ones where they are free."""
        import httpx

        options = UpOptions(state=self.state, port=_free_port(8470), gateway_port=_free_port(8000))
        up, _ = bring_up(options)
        self.key = (self.state / "admin.key").read_text(encoding="ascii").strip()
        self._client = httpx.Client(
            headers={"authorization": f"Bearer {self.key}"}, timeout=READY_DEADLINE_S, trust_env=False
        )
        return up

    def stop(self) -> None:
        """Ends the platform and all it runs, with proof."""
        if self._client is not None:
            self._client.close()
            self._client = None
        take_down(self.state)

    def get(self, path: str) -> Any:
        """What the control plane answers, decoded."""
        return self._ask("GET", self._up.url + path)

    def post(self, path: str, body: Any) -> Any:
        """As `get`, with a JSON body."""
        return self._ask("POST", self._up.url + path, body)

    def gateway_get(self, path: str) -> Any:
        """What the gateway answers; `path` begins with /v1."""
        return self._ask("GET", self._up.gateway_url.removesuffix("/v1") + path)

    @property
    def gateway_url(self) -> str:
        """Base URL for OpenAI clients."""
        return self._up.gateway_url

    def control_pid(self) -> int:
        """Pid of the control plane."""
        up = self._up
        if up.control is None:
            raise PlatformAnswerError("the control plane is not up")
        return up.control.pid

    def wait_until_ready(self, line: Line, *, not_pid: int) -> None:
        """Waits until another control plane than `not_pid` answers."""
        deadline_s = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline_s:
            line.set("waiting for the control plane")
            up = upfile.read(self.state)
            if (
                up is not None
                and up.control is not None
                and up.control.pid != not_pid
                and up.control.is_alive
            ):
                with contextlib.suppress(PlatformAnswerError):
                    self.get("/api/status")
                    return
            time.sleep(0.02)
        raise PlatformAnswerError(f"the control plane did not come back within {READY_DEADLINE_S:.0f} s")

    @property
    def _up(self) -> upfile.UpFile:
        up = upfile.read(self.state)
        if up is None:
            raise PlatformAnswerError(f"no platform is up in {self.state}")
        return up

    def _ask(self, method: str, url: str, body: Any = None) -> Any:
        import httpx

        if self._client is None:
            raise PlatformAnswerError("the platform was stopped")
        try:
            reply = self._client.request(method, url, json=body)
        except httpx.HTTPError as error:
            raise PlatformAnswerError(f"{method} {url}: {error}") from None
        if reply.is_error:
            raise PlatformAnswerError(f"{method} {url}: {reply.status_code} {reply.text[:300]}")
        return reply.json()


def _free_port(wanted: int) -> int:
    """`wanted` where nothing listens on it, else a port that the system finds free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise PlatformAnswerError("no free port on 127.0.0.1")
