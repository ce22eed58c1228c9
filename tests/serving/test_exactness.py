"""The ledger equals what the server counted: with clients leaving, faults, and the gateway killed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from contextlib import ExitStack
from typing import Any

import httptools
import httpx
import pytest
from gateway_rig import Counting, Platform

from groundplane.platform.serving.metering import Progress, read_segment, segments

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


class Reply:
    """What httptools has parsed of an answer."""

    def __init__(self) -> None:
        self.request_id = ""
        self.text = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.request_id = value.decode()

    def on_body(self, body: bytes) -> None:
        self.text += body

    def on_message_complete(self) -> None:
        self.complete = True


async def ask(platform: Platform, body: dict[str, Any], leave_after_s: float | None) -> dict[str, Any]:
    """Sends a request; leaves when told to. Says what it saw: the request id, and whether to the end.

    On a connection of its own, closed here whatever happens: a client library that is cancelled while it
    connects may drop its socket unclosed.
    """
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {platform.key}\r\n"
    reply = Reply()
    parser = httptools.HttpResponseParser(reply)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(60 if leave_after_s is None else leave_after_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", platform.port)
            writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            while not reply.complete and (data := await reader.read(65536)):
                parser.feed_data(data)
    except (TimeoutError, OSError):
        pass
    finally:
        if writer is not None:
            writer.transport.abort()
    seen: dict[str, Any] = {"id": reply.request_id, "ended": False, "tokens": 0}
    seen["ended"] = (
        reply.complete
        and parser.get_status_code() == 200
        and (not body.get("stream") or reply.text.endswith(b"[DONE]\n\n"))
    )
    if seen["ended"] and not body.get("stream"):
        seen["usage"] = json.loads(reply.text)["usage"]
    return seen


async def ask_all(
    platform: Platform, rng: random.Random, num: int, leaving: set[int], parallel: int = 16
) -> list[dict[str, Any]]:
    limit = asyncio.Semaphore(parallel)

    async def one(index: int, body: dict[str, Any], leave_after_s: float | None) -> dict[str, Any]:
        async with limit:
            return await ask(platform, body, leave_after_s)

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


async def burst(platform: Platform, server: Counting, rng: random.Random) -> list[dict[str, Any]]:
    """80 requests, and the gateway killed when a random number of them has ended and one is under way."""
    before = server.counts()
    num_ended = rng.randrange(1, 50)

    def far_enough() -> bool:
        states = [count["state"] for key, count in server.counts().items() if key not in before]
        return len(states) > num_ended and states.count("ended") >= num_ended and "running" in states

    work = asyncio.create_task(ask_all(platform, rng, 80, set(range(0, 80, 9))))
    deadline_s = time.monotonic() + 60
    while not await asyncio.to_thread(far_enough):
        assert time.monotonic() < deadline_s
    await asyncio.to_thread(platform.kill, signal.SIGKILL)
    return await work


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

    def read(num_tokens: int) -> tuple[ExitStack, str]:
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
        return open_stream, answer.headers["x-request-id"]

    read(10)[0].close()
    (first,) = platform.wait_usage(len).values()
    assert (first["outcome"], first["partial"], first["counted_by"]) == ("cancelled", True, "delivered")
    assert 10 <= first["tokens_out"] <= 20
    left_open, request_id = read(1)

    def noted() -> int:
        """Tokens of the second stream by its last note in the log."""
        records = (one for _, path in segments(platform.state / "metering") for one, _ in read_segment(path))
        notes = [one for one in records if isinstance(one, Progress) and one.request_id == request_id]
        return notes[-1].tokens_out if notes else 0

    deadline = time.monotonic() + 20
    while noted() < 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    platform.kill(signal.SIGKILL)
    left_open.close()
    platform.start()
    rows = platform.wait_usage(lambda rows: len(rows) == 2)
    (second,) = (row for row in rows.values() if row["request_id"] != first["request_id"])
    assert (second["outcome"], second["partial"], second["counted_by"]) == ("interrupted", True, "delivered")
    assert second["tokens_out"] >= 10
