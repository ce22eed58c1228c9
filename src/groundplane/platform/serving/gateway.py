"""The gateway process: `python -m groundplane.platform.serving.gateway --state DIR --host HOST --port PORT`.

Puts database, directory, ledger, relay and uvicorn together and ends them in order. SIGTERM: no new
connections, running requests get `DRAIN_S`, the rest is settled as interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final, cast

import uvicorn

from groundplane.platform.runtime import upfile
from groundplane.platform.runtime.connections import BoundedHttpProtocol
from groundplane.platform.runtime.database import Database, StorageError, default_url
from groundplane.platform.serving.app import MAX_BODY_BYTES, MAX_IN_FLIGHT, GatewayApp
from groundplane.platform.serving.directory import REFRESH_S, Directory
from groundplane.platform.serving.ledger import Ledger
from groundplane.platform.serving.metrics import GatewayMetrics
from groundplane.platform.serving.relay import Relay
from groundplane.platform.serving.upstream import Pool
from groundplane.spec.errors import InputError

DRAIN_S: Final = 5.0
"""What running requests get after SIGTERM; with the questions to servers below the supervisor's 10 s."""
KEEP_ALIVE_S: Final = 75
BACKLOG: Final = 2048
SWEEP_S: Final = 1.0

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT. Returns 0, or 2 on bad input (taken port, unusable state folder)."""
    parser = argparse.ArgumentParser(prog="gateway", description="The OpenAI-compatible gateway.")
    parser.add_argument("--state", required=True, type=Path, help="the platform's state folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default=8000, type=int)
    parser.add_argument(
        "--database", default="", help="database URL; default: the SQLite file in the state folder"
    )
    parser.add_argument("--max-body-bytes", default=MAX_BODY_BYTES, type=int)
    parser.add_argument("--max-in-flight", default=MAX_IN_FLIGHT, type=int)
    parser.add_argument("--drain-s", default=DRAIN_S, type=float)
    parser.add_argument("--supervisor", default=0, type=int, help="pid of the supervisor that starts it")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        listener = _listen(options.host, options.port)
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(serve(options, listener))
    except (InputError, StorageError) as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


async def serve(options: argparse.Namespace, listener: socket.socket) -> None:
    """Serves on `listener` until told to end.

    Raises:
        InputError, StorageError: the database or the metering folder cannot be used.
    """
    database = Database(options.database or default_url(options.state))
    metrics = GatewayMetrics()
    pool = Pool(asyncio.get_running_loop())
    directory = Directory(database)
    ledger = Ledger(options.state / "metering", database, pool, metrics)
    if upfile.is_orphan(options.supervisor):
        return
    relay = Relay(directory, pool, ledger, metrics)
    app = GatewayApp(
        directory,
        relay,
        metrics,
        max_body_bytes=options.max_body_bytes,
        max_in_flight=options.max_in_flight,
    )
    server = uvicorn.Server(_config(app, options.drain_s))
    # uvicorn raises the signal that ended it once more, which must not end us before the ledger is closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: setattr(server, "should_exit", True))
    await asyncio.to_thread(directory.load)
    await ledger.recover()
    background = [
        asyncio.create_task(_refresh(directory)),
        asyncio.create_task(_sweep(pool)),
        asyncio.create_task(ledger.run()),
    ]
    for task in background:
        # One that fails is a fault of ours: the gateway ends, and its supervisor starts it anew.
        task.add_done_callback(lambda _task: setattr(server, "should_exit", True))
    log.info("gateway ready on %s:%d", *listener.getsockname()[:2])
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in background:
            task.cancel()
        for failure in await asyncio.gather(*background, return_exceptions=True):
            if isinstance(failure, Exception):
                log.error("a background task failed", exc_info=failure)
        await ledger.close()
        pool.close()
        database.close()


def _config(app: GatewayApp, drain_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        loop="none",
        ws="none",
        lifespan="off",
        access_log=False,
        # Its warnings tell of each malformed request: whoever sends those must not fill the log.
        log_level="error",
        proxy_headers=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # uvicorn says int and takes any number of seconds.
        timeout_graceful_shutdown=cast("int", drain_s),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InputError(f"cannot be listened on ({reason})", field="port", value=f"{host}:{port}") from error
    listener.setblocking(False)
    return listener


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _refresh(directory: Directory) -> None:
    away = False
    while True:
        await asyncio.sleep(REFRESH_S)
        try:
            await asyncio.to_thread(directory.load)
        except StorageError as error:
            if not away:
                log.error("keys and replicas cannot be refreshed, going on with the last known: %s", error)
            away = True
        else:
            away = False


async def _sweep(pool: Pool) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        pool.sweep()


if __name__ == "__main__":
    sys.exit(main())
