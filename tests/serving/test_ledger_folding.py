"""Folding has one folder at a time, also when whoever waits for a fold is cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from groundplane.platform.runtime.database import Database, default_url
from groundplane.platform.serving.ledger import Ledger
from groundplane.platform.serving.metering import Progress
from groundplane.platform.serving.metrics import GatewayMetrics
from groundplane.platform.serving.settlement import Settler
from groundplane.platform.serving.upstream import Pool


def test_a_fold_waits_for_one_whose_waiter_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the gateway is told to end while it folds: its `close` folds once more."""
    begun, may_end = threading.Event(), threading.Event()
    running: list[str] = []
    overlapped: list[list[str]] = []
    fold = Settler.fold

    def slow(settler: Settler) -> int:
        running.append("fold")
        if len(running) > 1:
            overlapped.append(list(running))
        begun.set()
        may_end.wait(20)
        try:
            return fold(settler)
        finally:
            running.pop()

    monkeypatch.setattr(Settler, "fold", slow)

    async def main() -> None:
        database = Database(default_url(tmp_path), migrate=True)
        ledger = Ledger(tmp_path / "metering", database, Pool(asyncio.get_running_loop()), GatewayMetrics())
        ledger._log.append(Progress("req_1", 1, ""))
        first = asyncio.create_task(ledger.fold())
        await asyncio.to_thread(begun.wait, 20)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        closing = asyncio.create_task(ledger.close())
        for _ in range(100):
            await asyncio.sleep(0)
        may_end.set()
        await closing
        database.close()

    asyncio.run(main())
    assert overlapped == []
