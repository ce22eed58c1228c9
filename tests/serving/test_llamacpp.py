"""llama.cpp's own server with a real small model, alone and behind the gateway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from gateway_rig import Platform, fetch, free_port

from groundplane.platform.serving.registry import model_path
from groundplane.platform.serving.servers import ADAPTERS, replica_launch
from groundplane.spec.service import ServiceSpec

pytestmark = pytest.mark.real

NAME = "smol"


@pytest.fixture
def replica(platform: Platform) -> Iterator[str]:
    """A replica, started as the platform would start it; gives its base URL."""
    path = model_path(platform.state, platform.database, "smollm2-135m-instruct")
    spec = ServiceSpec(name=NAME, model="smollm2-135m-instruct", context=512, slots=2)
    launch = replica_launch(spec, str(path), free_port(), 1)
    log = (platform.state / "replica.log").open("wb")
    process = subprocess.Popen(launch.command, env=None, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if fetch(launch.ready_url)[0] == 200:
                    break
            except urllib.error.URLError:
                pass
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield launch.base_url
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def test_real_model_behind_the_gateway(platform: Platform, replica: str) -> None:
    platform.endpoint(NAME, replica, server="llamacpp")
    platform.start()
    body = {
        "model": NAME, "max_tokens": 12, "temperature": 0, "seed": 1, "cache_prompt": False,
        "messages": [{"role": "user", "content": "What is the capital of Italy?"}],
    }  # fmt: skip
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key, max_retries=0) as client:
        plain = client.chat.completions.create(**{k: v for k, v in body.items() if k != "cache_prompt"})
        chunks = client.chat.completions.create(
            **{k: v for k, v in body.items() if k != "cache_prompt"},
            stream=True,
            stream_options={"include_usage": True},
        )
        streamed = list(chunks)
    text = plain.choices[0].message.content
    assert text
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == text

    def normal(content: bytes) -> list[str]:
        """Events without what differs from run to run: ids and times."""
        events = []
        for line in content.decode().split("\n\n"):
            if line.startswith("data: {"):
                data = json.loads(line[6:])
                data.update(id="", created=0)
                data["timings"] = sorted(data.get("timings", {}))
                events.append(json.dumps(data))
            else:
                events.append(line)
        return events

    headers = {"authorization": f"Bearer {platform.key}"}
    for path in ("chat/completions", "completions"):
        one = body | {"stream": True, "prompt": "Once upon a time"}
        direct = httpx.post(f"{replica}/{path}", json=one, timeout=60)
        through = httpx.post(f"{platform.url}/v1/{path}", json=one, headers=headers, timeout=60)
        assert normal(through.content) == normal(direct.content)
    rows = platform.wait_usage(lambda rows: len(rows) == 4)
    asked = next(chunk.usage for chunk in streamed if chunk.usage)
    outs = sorted(row["tokens_out"] for row in rows.values() if row["path"].endswith("chat/completions"))
    assert outs == [12, 12, asked.completion_tokens]
    assert all(row["counted_by"] == "usage" and row["tokens_in"] > 0 for row in rows.values())
    assert plain.usage is not None
    assert rows[min(rows, key=lambda key: rows[key]["started_ns"])]["tokens_in"] == plain.usage.prompt_tokens
    load = ADAPTERS["llamacpp"].parse_metrics(fetch(replica.removesuffix("/v1") + "/metrics")[1].decode())
    assert (load.num_running, load.num_waiting) == (0, 0)


def test_real_model_json_mode_and_leaving(platform: Platform, replica: str) -> None:
    platform.endpoint(NAME, replica, server="llamacpp")
    platform.start()
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
    }
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key, max_retries=0) as client:
        shaped = client.chat.completions.create(
            model=NAME,
            max_tokens=40,
            messages=[{"role": "user", "content": "Name a city as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        )
        assert set(json.loads(shaped.choices[0].message.content or "")) == {"city"}
        stream = client.chat.completions.create(
            model=NAME,
            max_tokens=400,
            stream=True,
            messages=[{"role": "user", "content": "Tell a very long story about a mountain."}],
        )
        for number, _ in enumerate(stream):
            if number == 5:
                break
        stream.close()
    rows = platform.wait_usage(lambda rows: len(rows) == 2)
    (cut,) = (row for row in rows.values() if row["partial"])
    assert (cut["outcome"], cut["counted_by"]) == ("cancelled", "delivered")
    assert 4 <= cut["tokens_out"] < 200
    deadline = time.monotonic() + 10
    root = replica.removesuffix("/v1")
    while ADAPTERS["llamacpp"].parse_metrics(fetch(f"{root}/metrics")[1].decode()).num_running:
        assert time.monotonic() < deadline, "the server went on for a client that had left"


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), (b"text", "must be a GGUF file")])
def test_no_model(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    command = [sys.executable, "-m", "groundplane.platform.serving.llamacpp_server", "--model", str(path)]
    done = subprocess.run([*command, "--port", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
