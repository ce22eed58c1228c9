"""Real time: never back, timers once and in order."""

from __future__ import annotations

import asyncio
import time

from groundplane.platform.runtime.clock import Clock, Timers


def test_the_clock_goes_on_from_what_was_journalled() -> None:
    future_ns = time.time_ns() + 10**15
    clock = Clock(future_ns)
    readings = [clock.now_ns() for _ in range(1000)]
    assert readings[0] >= future_ns
    assert readings == sorted(readings)
    assert abs(Clock(0).now_ns() - time.time_ns()) < 10**9


def test_timers_fire_once_in_order_and_can_be_moved() -> None:
    async def body() -> None:
        now_ns = 0
        fired: list[str] = []
        timers = Timers(lambda: now_ns, fired.append)
        timers.set("late", 3_000_000)
        timers.set("early", 1_000_000)
        timers.set("moved", 2_000_000)
        timers.set("moved", 9_000_000_000_000)
        timers.set("past", -1)
        now_ns = 5_000_000
        async with asyncio.timeout(5):
            while len(fired) < 3:
                await asyncio.sleep(0.001)
        assert fired == ["past", "early", "late"]
        timers.close()
        now_ns = 10**16
        await asyncio.sleep(0.005)
        assert fired == ["past", "early", "late"]

    asyncio.run(body())
