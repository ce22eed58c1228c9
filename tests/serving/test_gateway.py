"""The gateway as clients see it: the official client, bytes, errors, faults, limits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from gateway_rig import CHAT, Counting, Platform, error_of, post

from groundplane.platform.runtime.identity import create_key, revoke_key

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def behind() -> Iterator[Counting]:
    """The counting server behind `served`."""
    counting = Counting()
    yield counting
    counting.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, behind: Counting) -> Iterator[Platform]:
    """One gateway for all tests that leave it as it was."""
    platform = Platform(tmp_path_factory.mktemp("served"))
    platform.endpoint("tiny", f"{behind.root}/v1")
    platform.start()
    yield platform
    platform.close()


@pytest.fixture
def client(served: Platform) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0) as made:
        yield made


# The official client ---------------------------------------------------------------------------------------


def test_plain_and_streamed_chat(fresh: Platform, counting: Counting) -> None:
    with openai.OpenAI(base_url=f"{fresh.url}/v1", api_key=fresh.key, max_retries=0) as client:
        plain = client.chat.completions.create(**CHAT)
        text = plain.choices[0].message.content
        assert plain.usage is not None
        assert plain.usage.completion_tokens == 6

        streamed = list(client.chat.completions.create(**CHAT, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == text
        assert all(chunk.usage is None and chunk.choices for chunk in streamed), "usage was not asked for"

        asked = list(
            client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        )
        assert asked[-1].usage is not None
        assert asked[-1].usage.completion_tokens == 6

    rows = fresh.wait_usage(lambda rows: len(rows) == 3)
    for request_id, count in counting.counts().items():
        row = rows[request_id]
        assert (row["tokens_in"], row["tokens_cached"], row["tokens_out"]) == (
            count["prompt_tokens"],
            count["cached_tokens"],
            count["completion_tokens"],
        )
        assert (row["outcome"], row["partial"], row["counted_by"]) == ("completed", False, "usage")
        assert (row["project"], row["key_id"], row["model"]) == ("blue", fresh.key_id, "tiny")
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


def test_everything_else_passes_untouched(client: openai.OpenAI, behind: Counting) -> None:
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
    first, second = behind.bodies()[-2:]
    assert first == CHAT | {"tools": [tool], "seed": 3, "n": 2, "logprobs": True, "temperature": 0.25}
    assert second["response_format"] == {"type": "json_schema", "json_schema": schema}


# Bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": False, "other": 1}])
def test_streams_are_byte_exact(served: Platform, behind: Counting, path: str, options: Any) -> None:
    body = {
        "model": "tiny",
        "stream": True,
        "max_tokens": 40,
        "prompt": "é",
        "messages": [{"content": "日本"}],
    }
    if options is not None:
        body["stream_options"] = options
    direct = httpx.post(behind.root + path, content=json.dumps(body))
    through = post(served, body, path)
    assert through.content == direct.content
    assert through.headers["content-type"] == "text/event-stream"


def test_a_server_that_knows_the_model_by_another_name(fresh: Platform, counting: Counting) -> None:
    fresh.service("alias", '{"kind": "service", "server": "openai", "model": "vendor/large", "url": "x"}')
    fresh.endpoint("alias", f"{counting.root}/v1", work_id="alias.external", server="openai")
    fresh.endpoint("broken", "ftp://nowhere", work_id="broken.external", server="openai")
    fresh.wait_known("alias")
    body = CHAT | {"model": "alias", "temperature": 1e-1, "logit_bias": {"7": -100}}
    answers = [post(fresh, body | {"stream": stream}) for stream in (False, True)]
    assert [answer.status_code for answer in answers] == [200, 200]
    plain, streamed = counting.bodies()
    assert plain == body | {"model": "vendor/large", "stream": False}
    assert streamed == body | {
        "model": "vendor/large",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    rows = fresh.wait_usage(lambda rows: len(rows) == 2)
    assert {row["model"] for row in rows.values()} == {"alias"}


def test_plain_answers_are_byte_exact(served: Platform, behind: Counting) -> None:
    body = json.dumps(CHAT | {"max_tokens": 33}).encode()
    direct = httpx.post(behind.root + "/v1/chat/completions", content=body)
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


def test_a_viewer_may_look_and_not_spend(fresh: Platform) -> None:
    with fresh.database.begin() as connection:
        viewer, _ = create_key(connection, name="v", now_ns=time.time_ns(), role="viewer")
    deadline = time.monotonic() + 5
    while (
        httpx.get(f"{fresh.url}/v1/models", headers={"authorization": f"Bearer {viewer}"}).status_code != 200
    ):
        assert time.monotonic() < deadline
    answer = post(fresh, CHAT, key=viewer)
    assert (answer.status_code, error_of(answer)["code"]) == (403, "not_allowed")


def test_revoked_key(fresh: Platform) -> None:
    assert post(fresh, CHAT).status_code == 200
    with fresh.database.begin() as connection:
        revoke_key(connection, fresh.key_id, time.time_ns())
    deadline = time.monotonic() + 5
    while post(fresh, CHAT).status_code != 401:
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
        (b'{"model": "tiny", "messages": ' + b"[" * 100_000, None),
        (b'{"messages": []}', "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": "tiny", "stream": "yes"}', "stream"),
        (b'{"model": "tiny\xff"}', None),
        (b'{"model": "tiny", "prompt": "\xff"}', None),
        (b'{"model": "tiny", "stream": true, "stream_options": {}, "\\x": 1}', None),
        (b'{"model": "tiny", "stream": true, "stream_options": {}, "prompt": "\\x"}', None),
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


def test_service_without_a_ready_replica(fresh: Platform, counting: Counting) -> None:
    fresh.service("waiting")
    fresh.wait_known("waiting")
    answer = post(fresh, CHAT | {"model": "waiting"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert error_of(answer)["code"] == "no_ready_replica"
    fresh.endpoint("waiting", f"{counting.root}/v1", work_id="waiting.r1", state="draining")
    time.sleep(0.5)
    assert post(fresh, CHAT | {"model": "waiting"}).status_code == 503


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
