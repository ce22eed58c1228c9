"""Windows of one platform, maintenance and reservations: announced, listed, taken back; and their routes."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath
from msgspec import Struct

from groundplane.control import events as ev
from groundplane.control.policy import window_event
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.http import needs, read_body
from groundplane.platform.runtime.identity import Key
from groundplane.platform.runtime.job_desk import MissingError
from groundplane.platform.runtime.operation import body_operation
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.window import WindowSpec


class WindowView(Struct, frozen=True):
    """One window that is not over. Times in nanoseconds since 1970."""

    name: str
    nodes: tuple[str, ...]
    begin_ns: int
    end_ns: int
    queue: str
    has_begun: bool


class WindowDesk:
    """Windows of one platform.

    Args:
        driver: takes events.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def list_windows(self) -> list[WindowView]:
        """All windows that are not over, in the order of their announcement."""
        return [
            WindowView(name, window.node_ids, window.begin_ns, window.end_ns, window.queue, window.has_begun)
            for name, window in self._driver.core.state.windows.items()
        ]

    async def set(self, spec: WindowSpec) -> list[WindowView]:
        """Announces a window.

        Raises:
            InputError: unknown nodes, a name that is taken, a window that is over, or one that overlaps.
        """
        state, event = self._driver.core.state, window_event(spec, self._driver.now_ns())
        if spec.name in state.windows:
            raise InputError("there is a window of this name already", field="name", value=spec.name)
        if event.end_ns <= self._driver.now_ns():
            raise InputError("is over already", field="begin_at", value=str(spec.begin_at))
        for index, node_id in enumerate(spec.nodes):
            if node_id not in state.nodes:
                near = nearest_name(node_id, state.nodes)
                raise InputError("no such node", field=f"nodes[{index}]", value=node_id, nearest=near)
            for name, window in state.windows.items():
                if node_id in window.node_ids:
                    raise InputError(f"is in window {name} already", field=f"nodes[{index}]", value=node_id)
        await self._driver.handle(event)
        return self.list_windows()

    async def remove(self, name: str) -> list[WindowView]:
        """Takes a window back, or ends it early.

        Raises:
            MissingError: no such window.
        """
        windows = self._driver.core.state.windows
        if name not in windows:
            raise MissingError(
                "no such window", field="name", value=name, nearest=nearest_name(name, windows)
            )
        await self._driver.handle(ev.WindowRemoved(name))
        return self.list_windows()


@get("/windows", sync_to_thread=False)
def list_windows(state: State) -> list[WindowView]:
    """Maintenance windows and reservations that are not over."""
    return WindowDesk(state.driver).list_windows()


@post("/windows", guards=[needs("admin")], status_code=200, operation_class=body_operation(WindowSpec))
async def set_window(request: Request[Key, Any, State], state: State) -> list[WindowView]:
    """Announces a maintenance window or a reservation."""
    return await WindowDesk(state.driver).set(await read_body(request, WindowSpec))


@delete("/windows/{name:str}", guards=[needs("admin")], status_code=200)
async def remove_window(name: FromPath[str], state: State) -> list[WindowView]:
    """Takes a window back, or ends it early."""
    return await WindowDesk(state.driver).remove(name)


WINDOW_HANDLERS: Final = [list_windows, set_window, remove_window]
