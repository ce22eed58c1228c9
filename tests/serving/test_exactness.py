"""The ledger equals what the server counted: with clients leaving, faults, and the gateway killed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from gateway_rig import Counting, Platform

pytestmark = pytest.mark.real

NUM_REQUESTS = 500
NUM_LEAVING = 100


def request_body(rng: random.Random) -> dict[str, Any]:
    """One of the kinds of request that clients make."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": rng.randrange(1, 40), "seed": rng.randrange(1000)}
    if rng.random() < 0.6:
        body["stream"] = True
        if rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.5:
        body["messages"] = [{"role": "user", "content": "word " * rng.randrange(1, 30)}]
    else:
        body["prompt"] = "word " * rng.randrange(1, 30)
    return body


async def ask(client: httpx.AsyncClient, body: dict[str, Any], leave_after_s: float | None) -> dict[str, Any]:
    """Sends a request; leaves when told to. Says what it saw: the request id, and whether to the end."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    seen: dict[str, Any] = {"id": "", "ended": False, "tokens": 0}
    try:
        async with asyncio.timeout(leave_after_s):
            async with client.stream("POST", path, json=body) as answer:
                seen["id"] = answer.headers["x-request-id"]
                text = b""
                async for part in answer.aiter_bytes():
                    text += part
            seen["ended"] = answer.status_code == 200 and (
                not body.get("stream") or text.endswith(b"[DONE]\n\n")
            )
            if seen["ended"] and not body.get("stream"):
                seen["usage"] = json.loads(text)["usage"]
    except (TimeoutError, httpx.HTTPError):
        pass
    return seen


async def ask_all(
    platform: Platform, rng: random.Random, num: int, leaving: set[int], parallel: int = 16
) -> list[dict[str, Any]]:
    limit = asyncio.Semaphore(parallel)
    headers = {"authorization": f"Bearer {platform.key}"}
    async with httpx.AsyncClient(base_url=platform.url, headers=headers, timeout=60) as client:

        async def one(index: int, body: dict[str, Any], leave_after_s: float | None) -> dict[str, Any]:
            async with limit:
                return await ask(client, body, leave_after_s)

        work = [
            one(index, request_body(rng), rng.uniform(0.001, 0.05) if index in leaving else None)
            for index in range(num)
        ]
        return await asyncio.gather(*work)


def compare(rows: dict[str, dict[str, Any]], counts: dict[str, dict[str, Any]]) -> None:
    """The ledger has the server's numbers for all that the server counted, and none for the rest."""
    for request_id, count in counts.items():
        row = rows[request_id]
        expected = (count["prompt_tokens"], count["cached_tokens"], count["completion_tokens"])
        assert (row["tokens_in"], row["tokens_cached"], row["tokens_out"]) == expected, (row, count)
    for request_id in rows.keys() - counts.keys():
        assert rows[request_id]["tokens_in"] == rows[request_id]["tokens_out"] == 0


def totals(rows: list[dict[str, Any]], names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(sum(row[name] for row in rows) for name in names)


def test_ledger_equals_server_with_clients_leaving(platform: Platform) -> None:
    """The issue's acceptance: 500 mixed requests, 100 clients leaving at random moments."""
    server = Counting(token_s=0.003)
    try:
        platform.endpoint("tiny", f"{server.root}/v1", work_id="svc.r0")
        platform.endpoint("tiny", f"{server.root}/v1", work_id="svc.r1")
        platform.start()
        rng = random.Random(20261130)
        leaving = set(rng.sample(range(NUM_REQUESTS), NUM_LEAVING))
        seen = asyncio.run(ask_all(platform, rng, NUM_REQUESTS, leaving))
        assert sum(one["ended"] for one in seen) >= NUM_REQUESTS - NUM_LEAVING
        counts = server.counts()
        rows = platform.wait_usage(lambda rows: counts.keys() <= rows.keys())
        counts = server.counts()
        compare(rows, counts)
        for one in seen:
            if one["ended"]:
                row = rows[one["id"]]
                assert (row["outcome"], row["partial"], row["counted_by"]) == ("completed", False, "usage")
                if "usage" in one:
                    assert one["usage"]["completion_tokens"] == row["tokens_out"]
        cut = [row for row in rows.values() if row["partial"]]
        assert {(row["outcome"], row["counted_by"]) for row in cut} == {("cancelled", "server")}
        assert len(cut) >= NUM_LEAVING // 3, "most of those that left were cut short"
        names = ("tokens_in", "tokens_cached", "tokens_out")
        counted = totals(list(counts.values()), ("prompt_tokens", "cached_tokens", "completion_tokens"))
        assert totals(list(rows.values()), names) == counted
    finally:
        server.stop()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gateway_killed_in_the_middle(platform: Platform, seed: int) -> None:
    """kill -9 under load, three times: what was acknowledged is in the ledger, and everything once."""
    server = Counting(token_s=0.002)
    rng = random.Random(seed)
    try:
        platform.endpoint("tiny", f"{server.root}/v1")
        seen: list[dict[str, Any]] = []
        for _ in range(3):
            platform.start()

            async def burst() -> list[dict[str, Any]]:
                work = asyncio.create_task(ask_all(platform, rng, 80, set(range(0, 80, 9))))
                await asyncio.sleep(rng.uniform(0.2, 0.6))
                await asyncio.to_thread(platform.kill, signal.SIGKILL)
                return await work

            seen += asyncio.run(burst())
        platform.start()
        counts = server.counts()
        rows = platform.wait_usage(lambda rows: counts.keys() <= rows.keys())
        compare(rows, server.counts())
        for one in seen:
            if one["ended"]:
                assert rows[one["id"]]["outcome"] == "completed"
        outcomes = {row["outcome"] for row in rows.values()}
        assert {"completed", "interrupted"} <= outcomes
        assert all(row["partial"] == (row["outcome"] != "completed") for row in rows.values())
        assert platform.kill(signal.SIGTERM) == 0
        before = platform.usage()
        platform.start()
        assert platform.kill(signal.SIGTERM) == 0
        assert platform.usage() == before, "a restart with nothing open changes nothing"
    finally:
        server.stop()


def test_stream_cut_at_a_server_that_cannot_be_asked(platform: Platform, slow_counting: Counting) -> None:
    """What was delivered is metered: by count when the client leaves, by the last note after a kill -9."""
    platform.endpoint("tiny", f"{slow_counting.root}/v1", server="openai")
    platform.start()
    headers = {"authorization": f"Bearer {platform.key}"}
    body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "stream": True}

    def read(num_tokens: int) -> ExitStack:
        open_stream = ExitStack()
        stream = open_stream.enter_context(httpx.Client(timeout=20))
        request = stream.build_request("POST", f"{platform.url}/v1/completions", json=body, headers=headers)
        answer = stream.send(request, stream=True)
        open_stream.callback(answer.close)
        # Whoever lets go of the iterator closes the stream.
        parts = answer.iter_text()
        open_stream.push(lambda *_: parts.close())
        text = ""
        while text.count('"text"') < num_tokens:
            text += next(parts)
        return open_stream

    read(10).close()
    (first,) = platform.wait_usage(len).values()
    assert (first["outcome"], first["partial"], first["counted_by"]) == ("cancelled", True, "delivered")
    assert 10 <= first["tokens_out"] <= 20
    left_open = read(1)
    deadline = time.monotonic() + 10
    logs = platform.state / "metering"
    while b'["P","' not in b"".join(path.read_bytes() for path in logs.glob("*.log")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    platform.kill(signal.SIGKILL)
    left_open.close()
    platform.start()
    rows = platform.wait_usage(lambda rows: len(rows) == 2)
    (second,) = (row for row in rows.values() if row["request_id"] != first["request_id"])
    assert (second["outcome"], second["partial"], second["counted_by"]) == ("interrupted", True, "delivered")
    assert second["tokens_out"] >= 10
