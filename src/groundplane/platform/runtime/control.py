"""The control plane's process: `python -m groundplane.platform.runtime.control --state DIR --fd N ...`.

Puts database, engine, driver, desks and HTTP together and ends them in order. It listens on a socket that its
supervisor holds, so that requests wait during a restart instead of being refused. SIGTERM: works go on.
Exit codes: 0 told to end, 1 it cannot go on (one line says why), 2 bad input.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn
from litestar import Router

from groundplane.platform.engines.local.engine import LocalEngine
from groundplane.platform.engines.local.launching import available_cpus
from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.api import Platform, create_app
from groundplane.platform.runtime.connections import BoundedHttpProtocol
from groundplane.platform.runtime.database import Database, default_url
from groundplane.platform.runtime.draining import watch_drains
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.hangs import HangWatch
from groundplane.platform.runtime.identity import KeyRing, ensure_admin_key
from groundplane.platform.runtime.job_desk import JobDesk
from groundplane.platform.runtime.launch import LocalLauncher
from groundplane.platform.runtime.service_desk import ServiceDesk
from groundplane.spec.errors import GroundplaneError, InputError

STOP_S: Final = 3
"""What running requests get when the process is told to end."""
KEEP_ALIVE_S: Final = 75
log = logging.getLogger("groundplane.control")


def main(arguments: list[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT, or until it cannot go on."""
    parser = argparse.ArgumentParser(prog="control")
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("--fd", required=True, type=int, help="listening socket")
    parser.add_argument("--devices", default=0, type=int)
    parser.add_argument(
        "--gateway", default="", help="host:port of the gateway, asked for requests in flight"
    )
    parser.add_argument("--supervisor", default=0, type=int, help="pid of the supervisor that starts it")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    state = options.state.absolute()
    try:
        lock = lock_state(state)
        if upfile.is_orphan(options.supervisor):
            return 0
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(serve(options, state))
        os.close(lock)
    except InputError as error:
        log.error("%s", error)
        return 2
    except (GroundplaneError, OSError) as error:
        log.critical("the control plane cannot go on: %s", error)
        return 1
    return 0


async def serve(options: argparse.Namespace, state: Path) -> None:
    """Serves until told to end.

    Raises:
        InputError: database, devices or state folder cannot be used.
        GroundplaneError, OSError: it cannot go on.
    """
    database = Database(default_url(state), migrate=True)
    try:
        database.lock_control()
        ensure_admin_key(state, database, time.time_ns())
        key_ring = KeyRing()
        key_ring.load(database)
        engine = LocalEngine(state, chosen_cpus(options.devices))
        driver = Driver(database, engine, LocalLauncher(state, database))
        try:
            await driver.open()
            jobs = JobDesk(state, database, driver, engine)
            services = ServiceDesk(state, database, driver)
            platform = Platform(
                state_dir=state,
                database=database,
                driver=driver,
                engine=engine,
                key_ring=key_ring,
                jobs=jobs,
                services=services,
                started_ns=driver.now_ns(),
            )
            await _listen(platform, options)
        finally:
            await driver.close()
    finally:
        database.close()


async def _listen(platform: Platform, options: argparse.Namespace) -> None:
    config = uvicorn.Config(
        create_app(platform, other_routers()),
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        # Its warnings tell of each malformed request: whoever sends those must not fill the log.
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = uvicorn.Server(config)
    failure = platform.driver.failure
    failure.add_done_callback(lambda _failure: setattr(server, "should_exit", True))
    hangs = HangWatch(platform.state_dir, platform.database, platform.driver)
    watches = [
        asyncio.create_task(watch_drains(platform.driver, options.gateway), name="drains"),
        asyncio.create_task(hangs.watch(), name="hangs"),
    ]
    try:
        log.info("control plane ready at journal record %d", platform.driver.seq)
        await server.serve(sockets=[socket.socket(fileno=os.dup(options.fd))])
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    if failure.done():
        failure.result()


def other_routers() -> list[Router]:
    """Routes of other rooms under the same API."""
    from groundplane.platform.serving.routes import router

    return [router]


def chosen_cpus(num_devices: int) -> Sequence[int] | None:
    """The first `num_devices` CPUs that this process may use; None, for all, where 0 are asked for.

    Raises:
        InputError: more than there are.
    """
    if num_devices == 0:
        return None
    cpus = available_cpus()
    if not 1 <= num_devices <= len(cpus):
        raise InputError(f"must be from 1 to {len(cpus)}", field="devices", value=num_devices)
    return cpus[:num_devices]


def lock_state(state: Path) -> int:
    """Makes this process the one control plane of the folder, as long as the descriptor is open.

    Raises:
        InputError: another one runs.
    """
    descriptor = upfile.take_lock(state / upfile.CONTROL_LOCK)
    if descriptor is None:
        raise InputError("another control plane runs in this folder", field="state", value=str(state))
    return descriptor


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main())
