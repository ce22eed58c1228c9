"""The gateway's bookkeeper: reservations, settlements, and asking servers what they counted for cut requests.

Owns the metering log and its settler. Every request that was reserved is settled exactly once: at its end, by
asking its server after a cut, or, after a kill -9, when the next gateway starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

from groundplane.platform.runtime.database import Database, StorageError
from groundplane.platform.serving.answers import not_ready
from groundplane.platform.serving.call import Call, upstream_id
from groundplane.platform.serving.directory import Replica
from groundplane.platform.serving.metering import MeteringLog, Progress, Record, Settlement
from groundplane.platform.serving.metrics import GatewayMetrics
from groundplane.platform.serving.servers import ADAPTERS
from groundplane.platform.serving.servers.contract import Adapter, ServerCount
from groundplane.platform.serving.settlement import OpenRequest, Settler
from groundplane.platform.serving.upstream import Origin, Pool, UpstreamError

FOLD_S: Final = 0.5
PROGRESS_S: Final = 1.0
"""How often streams note how far they are: what a kill -9 can lose of a server that cannot be asked."""
ASK_LIMIT_S: Final = 5.0
ASK_UNKNOWN_S: Final = 0.5
"""A server that knows nothing of a request this long after its end never got it."""
ASK_EVERY_S: Final = 0.02
CLOSE_LIMIT_S: Final = 3.0
"""How long the end of the process waits for servers; what stays open is closed by the next gateway."""
MAX_ASKS: Final = 64

log = logging.getLogger(__name__)

Cut = Literal["cancelled", "failed", "interrupted"]


class Ledger:
    """All methods are for the event loop; folding runs in a thread."""

    def __init__(self, folder: Path, database: Database, pool: Pool, metrics: GatewayMetrics) -> None:
        self._log = MeteringLog(folder)
        self._first_segment, _ = self._log.end
        self._settler = Settler(folder, database, "gateway")
        self._pool = pool
        self._metrics = metrics
        self._folded_end = (0, 0)
        self._unwritten: deque[Settlement] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asks = asyncio.Semaphore(MAX_ASKS)
        self._fold_lock = asyncio.Lock()
        # One thread: a fold whose waiter was cancelled runs on, and the next one must wait for its end.
        self._folding = ThreadPoolExecutor(1, thread_name_prefix="metering-fold")
        self.running: dict[str, Call] = {}
        self.behind = False
        """SQL could not take settlements at the last try."""

    def reserve(self, call: Call, replica: Replica) -> None:
        """Notes that a request is about to go to a replica, as its next attempt.

        Raises:
            ApiError: 503, the log cannot be written; the request must not go out.
        """
        try:
            self._log.append(call.reservation(replica, call.attempt + 1))
        except OSError as error:
            log.error("metering log cannot be written: %s", error)
            raise not_ready("Requests cannot be metered now.") from error
        call.attempt += 1
        call.replica = replica
        self.running[call.request_id] = call

    def settle(self, settlement: Settlement) -> bool:
        """Notes the end of a request. False when it could not be written yet; it will be tried again."""
        self.running.pop(settlement.request_id, None)
        self._metrics.ended(settlement)
        if self._write(settlement):
            return True
        self._unwritten.append(settlement)
        return False

    def cut(self, call: Call, outcome: Cut, status: int) -> None:
        """Settles a request that did not run to its end: by its server's count where that can be asked."""
        self.running.pop(call.request_id, None)
        replica = call.replica
        if replica is None or not replica.adapter.can_ask_usage:
            self.settle(_by_delivered(call, outcome, status))
            return
        self._write(Progress(call.request_id, call.num_tokens, outcome))
        self._spawn(self._settle_asked(call, outcome, status))

    async def run(self) -> None:
        """Folds and notes progress until cancelled."""
        loop = asyncio.get_running_loop()
        progress_s = loop.time()
        while True:
            await asyncio.sleep(FOLD_S)
            self._write_late()
            if loop.time() - progress_s >= PROGRESS_S:
                progress_s = loop.time()
                self._note_progress()
            await self.fold()

    async def fold(self) -> None:
        """Folds what was written into SQL; when SQL is away, later."""
        async with self._fold_lock:
            end = self._log.end
            if end == self._folded_end:
                return
            try:
                await asyncio.get_running_loop().run_in_executor(self._folding, self._settler.fold)
            except StorageError as error:
                if not self.behind:
                    log.error("settlements wait in the log: %s", error)
                self.behind = True
                return
            self.behind = False
            self._folded_end = end

    async def recover(self) -> None:
        """Closes what an earlier gateway left open, as interrupted."""
        async with self._fold_lock:
            loop = asyncio.get_running_loop()
            left = await loop.run_in_executor(self._folding, self._settler.recover, self._first_segment)
        if left:
            log.warning("closing %d requests that an earlier gateway left open", len(left))
        for request in left:
            self._spawn(self._settle_left(request))

    async def close(self) -> None:
        """Waits for questions to servers, folds once more, and closes the log."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_LIMIT_S)
        self._write_late()
        await self.fold()
        self._folding.shutdown()
        self._log.close()

    def _write(self, record: Record) -> bool:
        try:
            self._log.append(record)
        except OSError as error:
            log.error("metering log cannot be written: %s", error)
            return False
        return True

    def _write_late(self) -> None:
        while self._unwritten and self._write(self._unwritten[0]):
            self._unwritten.popleft()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_progress(self) -> None:
        for call in self.running.values():
            if call.num_tokens != call.num_tokens_logged:
                if not self._write(Progress(call.request_id, call.num_tokens, "")):
                    return
                call.num_tokens_logged = call.num_tokens

    async def _settle_asked(self, call: Call, outcome: Cut, status: int) -> None:
        replica = call.replica
        count = None
        if replica is not None:
            count = await self._ask(replica.adapter, replica.origin, call.upstream_id)
        if count is None:
            self.settle(_by_delivered(call, outcome, status))
            return
        tokens = (count.prompt_tokens, count.cached_tokens, count.completion_tokens)
        self.settle(
            call.settlement(tokens=tokens, counted_by="server", partial=True, outcome=outcome, status=status)
        )

    async def _settle_left(self, request: OpenRequest) -> None:
        reservation, progress = request.reservation, request.progress
        adapter = ADAPTERS.get(reservation.server)
        count = None
        if adapter is not None and adapter.can_ask_usage:
            asked_id = upstream_id(reservation.request_id, reservation.attempt)
            count = await self._ask(adapter, Origin.of(reservation.url), asked_id)
        delivered = progress.tokens_out if progress else 0
        self.settle(
            Settlement(
                request_id=reservation.request_id,
                attempt=reservation.attempt,
                key_id=reservation.key_id,
                project=reservation.project,
                model=reservation.model,
                work_id=reservation.work_id,
                path=reservation.path,
                streamed=reservation.streamed,
                started_ns=reservation.started_ns,
                tokens_in=count.prompt_tokens if count else 0,
                tokens_cached=count.cached_tokens if count else 0,
                tokens_out=count.completion_tokens if count else delivered,
                counted_by="server" if count else "delivered" if delivered else "nobody",
                partial=True,
                outcome=(progress.outcome if progress else "") or "interrupted",
                status=0,
                queued_ns=0,
                first_token_ns=0,
                total_ns=0,
            )
        )

    async def _ask(self, adapter: Adapter, origin: Origin, request_id: str) -> ServerCount | None:
        """What the server counted, once final; None when it cannot be had."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        request = origin.question(adapter.count_path(request_id))
        count: ServerCount | None = None
        async with self._asks:
            while loop.time() - begin_s < ASK_LIMIT_S:
                try:
                    async with asyncio.timeout(ASK_LIMIT_S):
                        status, body = await self._get(origin, request)
                except (UpstreamError, TimeoutError):
                    status, body = 0, b""
                if status == 200:
                    count = adapter.parse_count(body)
                    if count is not None and not count.running:
                        return count
                elif status == 404 and loop.time() - begin_s >= ASK_UNKNOWN_S:
                    return ServerCount(0, 0, 0, running=False)
                await asyncio.sleep(ASK_EVERY_S)
        return count

    async def _get(self, origin: Origin, request: bytes) -> tuple[int, bytes]:
        connection = await self._pool.connection(origin)
        try:
            connection.send(request)
            return await connection.head(), await connection.read_all()
        finally:
            connection.release()


def _by_delivered(call: Call, outcome: Cut, status: int) -> Settlement:
    return call.settlement(
        tokens=(0, 0, call.num_tokens),
        counted_by="delivered" if call.num_tokens else "nobody",
        partial=True,
        outcome=outcome,
        status=status,
    )
