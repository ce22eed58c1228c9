"""Says when a draining replica is empty: asks the gateway, which alone knows what is in flight.

Without an answer nothing is said, and the core's drain timer decides.
"""

from __future__ import annotations

import asyncio
import http.client
from typing import Final

import msgspec

from groundplane.control import events as ev
from groundplane.platform.runtime.driver import Driver

PERIOD_S: Final = 0.25
SETTLE_NS: Final = 1_000_000_000
"""How long after the order to drain a count of zero is first believed: the gateway reads its copy of the
endpoints several times in that time, so that no request is on its way any more."""
ANSWER_S: Final = 2.0


async def watch_drains(driver: Driver, gateway: str) -> None:
    """Watches for ever.

    Args:
        driver: knows which works drain and takes `WorkDrained`.
        gateway: "host:port"; empty where there is none.
    """
    while gateway:
        await asyncio.sleep(PERIOD_S)
        settled = [
            (work_id, fence)
            for work_id, fence, since_ns in driver.draining()
            if driver.now_ns() - since_ns >= SETTLE_NS
        ]
        if not settled:
            continue
        in_flight = await asyncio.to_thread(ask_in_flight, gateway)
        for work_id, fence in settled:
            if in_flight is not None and in_flight.get(work_id, 0) == 0:
                await driver.handle(ev.WorkDrained(work_id=work_id, fence=fence))


def ask_in_flight(gateway: str) -> dict[str, int] | None:
    """Requests in flight by work, or None when the gateway gives no answer; blocks."""
    connection = http.client.HTTPConnection(gateway, timeout=ANSWER_S)
    try:
        connection.request("GET", "/inflight")
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read(), type=dict[str, int]) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()
