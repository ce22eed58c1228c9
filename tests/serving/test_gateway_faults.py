"""The gateway when servers fail, clients leave, disks fill up, or it is told to stop."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_rig import CHAT, Counting, Platform, error_of, fetch, post

pytestmark = pytest.mark.real


# Upstream faults -------------------------------------------------------------------------------------------


def fault(kind: str, **more: Any) -> dict[str, Any]:
    return CHAT | {"metadata": {"fault": kind}} | more


def test_upstream_faults_before_the_first_byte(fresh: Platform) -> None:
    passed = post(fresh, fault("500"))
    assert (passed.status_code, passed.json()["error"]["message"]) == (500, "injected")
    for kind in ("drop", "cut"):
        answer = post(fresh, fault(kind))
        assert (answer.status_code, error_of(answer)["code"]) == (502, "upstream_error")
    rows = fresh.wait_usage(lambda rows: len(rows) == 3)
    assert {row["outcome"] for row in rows.values()} == {"failed"}


def test_unreachable_replica(platform: Platform) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        platform.endpoint("tiny", f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        platform.start()
        answer = post(platform, CHAT)
    assert (answer.status_code, error_of(answer)["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("kind", ["cut", "error"])
def test_stream_that_breaks_ends_with_an_error_event(fresh: Platform, kind: str) -> None:
    answer = post(fresh, fault(kind, stream=True, max_tokens=20))
    assert answer.status_code == 200
    events = [line for line in answer.text.split("\n\n") if line]
    assert "error" in json.loads(events[-1].removeprefix("data: "))
    (row,) = fresh.wait_usage(len).values()
    assert (row["outcome"], row["partial"], row["tokens_out"], row["counted_by"]) == (
        "failed",
        True,
        5,
        "server",
    )
    with (
        pytest.raises(openai.APIError),
        openai.OpenAI(base_url=f"{fresh.url}/v1", api_key=fresh.key, max_retries=0) as client,
    ):
        list(client.chat.completions.create(**fault(kind, max_tokens=20), stream=True))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["dead", "503", "drop"])
def test_retried_on_another_replica(platform: Platform, counting: Counting, kind: str, stream: bool) -> None:
    """A replica that cannot answer is no failure while another one can."""
    bad = Counting()
    try:
        platform.endpoint("tiny", f"{bad.root}/v1", work_id="svc.r0")
        platform.start()
        assert post(platform, CHAT).status_code == 200
        platform.endpoint("tiny", f"{counting.root}/v1", work_id="svc.r1")
        deadline = time.monotonic() + 5
        while json.loads(fetch(f"{platform.url}/health")[1])["num_ready_replicas"] != 2:
            assert time.monotonic() < deadline
        if kind == "dead":
            bad.stop()
        body = CHAT | {"stream": stream}
        answers = [
            post(platform, body if kind == "dead" else body | {"metadata": {"fault": kind}}) for _ in range(4)
        ]
        if kind == "dead":
            assert [answer.status_code for answer in answers] == [200] * 4
        else:
            # Both replicas have the fault; what counts is that both were tried.
            assert {answer.status_code for answer in answers} == {503 if kind == "503" else 502}
            assert b"groundplane_gateway_retries_total 0.0" not in fetch(f"{platform.url}/metrics")[1]
    finally:
        bad.stop()


def test_load_is_spread(platform: Platform, slow_counting: Counting) -> None:
    for index in range(3):
        platform.endpoint("tiny", f"{slow_counting.root}/v1", work_id=f"svc.r{index}")
    platform.start()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: post(platform, CHAT), range(12)))
    rows = platform.wait_usage(lambda rows: len(rows) == 12)
    per_replica = [sum(row["work_id"] == f"svc.r{index}" for row in rows.values()) for index in range(3)]
    assert per_replica == [4, 4, 4]


# The client leaves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_client_leaving_cancels_upstream(platform: Platform, slow_counting: Counting, stream: bool) -> None:
    platform.endpoint("tiny", f"{slow_counting.root}/v1")
    platform.start()
    body = json.dumps(CHAT | {"max_tokens": 500, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", platform.port)) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {platform.key}\r\n"
        sock.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 10
        while not any(count["completion_tokens"] > 2 for count in slow_counting.counts().values()):
            assert time.monotonic() < deadline
    (row,) = platform.wait_usage(len).values()
    (count,) = slow_counting.counts().values()
    assert count["state"] == "ended"
    assert 2 < count["completion_tokens"] < 100
    assert row["tokens_out"] == count["completion_tokens"]
    assert row["tokens_in"] == count["prompt_tokens"]
    assert (row["outcome"], row["partial"], row["counted_by"], row["status"]) == (
        "cancelled",
        True,
        "server",
        499,
    )
    assert json.loads(fetch(f"{platform.url}/inflight")[1]) == {"svc.r1": 0}


# The process -----------------------------------------------------------------------------------------------


def test_drains_on_sigterm(platform: Platform, slow_counting: Counting) -> None:
    platform.endpoint("tiny", f"{slow_counting.root}/v1")
    platform.start()
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(post(platform, CHAT | {"max_tokens": 30, "stream": True}))
    )
    thread.start()
    deadline = time.monotonic() + 10
    while not slow_counting.counts():
        assert time.monotonic() < deadline
    assert platform.kill(signal.SIGTERM) == 0
    thread.join()
    assert answers[0].text.endswith("data: [DONE]\n\n")
    (row,) = platform.usage().values()
    assert (row["outcome"], row["tokens_out"]) == ("completed", 30)


def test_port_taken(platform: Platform, tmp_path: Path) -> None:
    import subprocess
    import sys

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "groundplane.platform.serving.gateway", "--state", str(tmp_path)]
        done = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        f"gateway: port: cannot be listened on (Address already in use), got '127.0.0.1:{port}'"
    )


def test_neither_keys_nor_prompts_are_written(fresh: Platform) -> None:
    post(fresh, CHAT)
    post(fresh, fault("drop"))
    post(fresh, fault("cut", stream=True))
    post(fresh, b'{"model": "a secret prompt"')
    fresh.wait_usage(lambda rows: len(rows) == 3)
    written = fresh.log.read_bytes() + fetch(f"{fresh.url}/metrics")[1]
    for path in (fresh.state / "metering").iterdir():
        written += path.read_bytes()
    assert b"secret" not in written
    assert fresh.key.encode() not in written


def test_goes_on_while_sql_is_away(fresh: Platform) -> None:
    """Requests are fresh and metered in the log while the database is locked, and settled afterwards."""
    assert post(fresh, CHAT).status_code == 200
    fresh.wait_usage(lambda rows: len(rows) == 1)
    with fresh.database.begin():
        for _ in range(5):
            assert post(fresh, CHAT).status_code == 200
        assert len(fresh.usage()) == 1
    fresh.wait_usage(lambda rows: len(rows) == 6)


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlasts_the_drain_is_told_and_settled(
    platform: Platform, slow_counting: Counting, stream: bool
) -> None:
    platform.endpoint("tiny", f"{slow_counting.root}/v1")
    platform.start("--drain-s", "0.3")
    answers: list[httpx.Response] = []
    body = CHAT | {"max_tokens": 1000, "stream": stream}
    thread = threading.Thread(target=lambda: answers.append(post(platform, body)))
    thread.start()
    deadline = time.monotonic() + 10
    while not any(count["completion_tokens"] > 2 for count in slow_counting.counts().values()):
        assert time.monotonic() < deadline
    assert platform.kill(signal.SIGTERM) == 0
    thread.join()
    assert answers[0].status_code == (200 if stream else 503)
    assert "The gateway is stopping." in answers[0].text
    (row,) = platform.usage().values()
    (count,) = slow_counting.counts().values()
    assert (row["outcome"], row["partial"], row["counted_by"]) == ("interrupted", True, "server")
    assert row["tokens_out"] == count["completion_tokens"]
    assert "Traceback" not in platform.log.read_text()


def test_a_full_disk_refuses_requests(platform: Platform, counting: Counting) -> None:
    """What cannot be metered is not served; once there is room, it is."""
    import resource

    platform.endpoint("tiny", f"{counting.root}/v1")
    platform.start()
    assert post(platform, CHAT).status_code == 200
    (segment,) = (platform.state / "metering").glob("segment-*.log")
    assert platform.process is not None
    # The limit on a file's size stands in for a full disk; it takes all files, so SQL is full as well.
    resource.prlimit(platform.process.pid, resource.RLIMIT_FSIZE, (segment.stat().st_size + 50, 2**40))
    answer = post(platform, CHAT)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "gateway_unavailable")
    resource.prlimit(platform.process.pid, resource.RLIMIT_FSIZE, (2**40, 2**40))
    assert post(platform, CHAT).status_code == 200
    platform.wait_usage(lambda rows: len(rows) == 2)
