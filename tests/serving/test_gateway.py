"""The gateway as clients see it: the official client, bytes, errors, faults, limits."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from conftest import Counting, Platform, fetch

pytestmark = pytest.mark.real

CHAT = {"model": "tiny", "max_tokens": 6, "messages": [{"role": "user", "content": "a secret prompt"}]}


@pytest.fixture
def served(platform: Platform, counting: Counting) -> Platform:
    platform.endpoint("tiny", f"{counting.root}/v1")
    platform.start()
    return platform


@pytest.fixture
def client(served: Platform) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0) as made:
        yield made


def post(
    platform: Platform, body: Any, path: str = "/v1/chat/completions", key: str | None = None
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {platform.key if key is None else key}"}
    return httpx.post(platform.url + path, content=content, headers=headers, timeout=30)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")
    return error


# The official client ---------------------------------------------------------------------------------------


def test_plain_and_streamed_chat(client: openai.OpenAI, served: Platform, counting: Counting) -> None:
    plain = client.chat.completions.create(**CHAT)
    text = plain.choices[0].message.content
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 6

    streamed = list(client.chat.completions.create(**CHAT, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == text
    assert all(chunk.usage is None and chunk.choices for chunk in streamed), "usage was not asked for"

    asked = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert asked[-1].usage is not None
    assert asked[-1].usage.completion_tokens == 6

    rows = served.wait_usage(lambda rows: len(rows) == 3)
    for request_id, count in counting.counts().items():
        row = rows[request_id]
        assert (row["tokens_in"], row["tokens_cached"], row["tokens_out"]) == (
            count["prompt_tokens"],
            count["cached_tokens"],
            count["completion_tokens"],
        )
        assert (row["outcome"], row["partial"], row["counted_by"]) == ("completed", False, "usage")
        assert (row["project"], row["key_id"], row["model"]) == ("blue", served.key_id, "tiny")
        assert 0 < row["queued_ns"] <= row["first_token_ns"] <= row["total_ns"]


def test_completions_embeddings_models(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="tiny", prompt="once", max_tokens=4)
    streamed = client.completions.create(model="tiny", prompt="once", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == plain.choices[0].text
    assert client.embeddings.create(model="tiny", input="x", encoding_format="float").data[0].embedding == [
        0.5,
        -0.25,
    ]
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "groundplane"


def test_everything_else_passes_untouched(client: openai.OpenAI, counting: Counting) -> None:
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
    answer = client.chat.completions.create(
        **CHAT, tools=[tool], seed=3, n=2, logprobs=True, temperature=0.25
    )
    call = answer.choices[1].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    schema = {"name": "answer", "schema": {"type": "object"}}
    shaped = client.chat.completions.create(
        **CHAT, response_format={"type": "json_schema", "json_schema": schema}
    )
    assert set(json.loads(shaped.choices[0].message.content)) == {"answer"}
    first, second = counting.bodies()[-2:]
    assert first == CHAT | {"tools": [tool], "seed": 3, "n": 2, "logprobs": True, "temperature": 0.25}
    assert second["response_format"] == {"type": "json_schema", "json_schema": schema}


# Bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": False, "other": 1}])
def test_streams_are_byte_exact(served: Platform, counting: Counting, path: str, options: Any) -> None:
    body = {
        "model": "tiny",
        "stream": True,
        "max_tokens": 40,
        "prompt": "é",
        "messages": [{"content": "日本"}],
    }
    if options is not None:
        body["stream_options"] = options
    direct = httpx.post(counting.root + path, content=json.dumps(body))
    through = post(served, body, path)
    assert through.content == direct.content
    assert through.headers["content-type"] == "text/event-stream"


def test_plain_answers_are_byte_exact(served: Platform, counting: Counting) -> None:
    body = json.dumps(CHAT | {"max_tokens": 33}).encode()
    direct = httpx.post(counting.root + "/v1/chat/completions", content=body)
    assert post(served, body).content == direct.content


# Refusals --------------------------------------------------------------------------------------------------


def test_keys(served: Platform) -> None:
    answer = post(served, CHAT, key="gp-wrong")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_api_key")
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT)
    assert (answer.status_code, error_of(answer)["code"]) == (401, "missing_api_key")
    assert httpx.get(f"{served.url}/v1/models").status_code == 401
    with (
        pytest.raises(openai.AuthenticationError),
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="no", max_retries=0) as client,
    ):
        client.models.list()


def test_revoked_key(served: Platform) -> None:
    from groundplane.platform.runtime.identity import revoke_key

    assert post(served, CHAT).status_code == 200
    with served.database.begin() as connection:
        revoke_key(connection, served.key_id, time.time_ns())
    deadline = time.monotonic() + 5
    while post(served, CHAT).status_code != 401:
        assert time.monotonic() < deadline


def test_unknown_model_names_the_nearest(served: Platform) -> None:
    answer = post(served, CHAT | {"model": "tinny"})
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{not json", None),
        (b"", None),
        (b"[1]", None),
        (b'{"messages": []}', "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": "tiny", "stream": "yes"}', "stream"),
        (b'{"model": "tiny\xff"}', None),
    ],
)
def test_bad_bodies(served: Platform, body: bytes, param: str | None) -> None:
    answer = post(served, body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


def test_too_large(platform: Platform, counting: Counting) -> None:
    platform.endpoint("tiny", f"{counting.root}/v1")
    platform.start("--max-body-bytes", "2000")
    large = CHAT | {"messages": [{"role": "user", "content": "x" * 3000}]}
    assert error_of(post(platform, large))["code"] == "request_too_large"
    parts = (json.dumps(large).encode()[i : i + 500] for i in range(0, 3200, 500))
    answer = httpx.post(
        f"{platform.url}/v1/chat/completions",
        content=parts,
        headers={"authorization": f"Bearer {platform.key}"},
    )
    assert answer.status_code == 413
    assert post(platform, CHAT).status_code == 200


def test_unknown_path_and_method(served: Platform) -> None:
    assert error_of(httpx.get(f"{served.url}/v1/nothing"))["code"] == "unknown_url"
    assert httpx.get(f"{served.url}/v1/chat/completions").status_code == 405


def test_service_without_a_ready_replica(served: Platform, counting: Counting) -> None:
    served.service("waiting")
    served.wait_known("waiting")
    answer = post(served, CHAT | {"model": "waiting"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert error_of(answer)["code"] == "no_ready_replica"
    served.endpoint("waiting", f"{counting.root}/v1", work_id="waiting.r1", state="draining")
    time.sleep(0.5)
    assert post(served, CHAT | {"model": "waiting"}).status_code == 503


def test_limit_in_flight(platform: Platform, slow_counting: Counting) -> None:
    platform.endpoint("tiny", f"{slow_counting.root}/v1")
    platform.start("--max-in-flight", "2")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: post(platform, CHAT | {"max_tokens": 20}), range(6)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses.count(200) >= 2
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 6 - statuses.count(200)
    assert refused
    assert error_of(refused[0])["code"] == "overloaded"
    assert refused[0].headers["retry-after"] == "1"


# Upstream faults -------------------------------------------------------------------------------------------


def fault(kind: str, **more: Any) -> dict[str, Any]:
    return CHAT | {"metadata": {"fault": kind}} | more


def test_upstream_faults_before_the_first_byte(served: Platform) -> None:
    passed = post(served, fault("500"))
    assert (passed.status_code, passed.json()["error"]["message"]) == (500, "injected")
    for kind in ("drop", "cut"):
        answer = post(served, fault(kind))
        assert (answer.status_code, error_of(answer)["code"]) == (502, "upstream_error")
    rows = served.wait_usage(lambda rows: len(rows) == 3)
    assert {row["outcome"] for row in rows.values()} == {"failed"}


def test_unreachable_replica(platform: Platform) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        platform.endpoint("tiny", f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        platform.start()
        answer = post(platform, CHAT)
    assert (answer.status_code, error_of(answer)["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("kind", ["cut", "error"])
def test_stream_that_breaks_ends_with_an_error_event(served: Platform, counting: Counting, kind: str) -> None:
    answer = post(served, fault(kind, stream=True, max_tokens=20))
    assert answer.status_code == 200
    events = [line for line in answer.text.split("\n\n") if line]
    assert "error" in json.loads(events[-1].removeprefix("data: "))
    (row,) = served.wait_usage(len).values()
    assert (row["outcome"], row["partial"], row["tokens_out"], row["counted_by"]) == (
        "failed",
        True,
        5,
        "server",
    )
    with (
        pytest.raises(openai.APIError),
        openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0) as client,
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


def test_neither_keys_nor_prompts_are_written(served: Platform) -> None:
    post(served, CHAT)
    post(served, fault("drop"))
    post(served, fault("cut", stream=True))
    post(served, b'{"model": "a secret prompt"')
    served.wait_usage(lambda rows: len(rows) == 3)
    written = served.log.read_bytes() + fetch(f"{served.url}/metrics")[1]
    for path in (served.state / "metering").iterdir():
        written += path.read_bytes()
    assert b"secret" not in written
    assert served.key.encode() not in written


def test_goes_on_while_sql_is_away(served: Platform) -> None:
    """Requests are served and metered in the log while the database is locked, and settled afterwards."""
    assert post(served, CHAT).status_code == 200
    served.wait_usage(lambda rows: len(rows) == 1)
    with served.database.begin():
        for _ in range(5):
            assert post(served, CHAT).status_code == 200
        assert len(served.usage()) == 1
    served.wait_usage(lambda rows: len(rows) == 6)


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
