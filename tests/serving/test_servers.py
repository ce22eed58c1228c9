"""Adapters: what is started, how load and counts are read."""

from __future__ import annotations

import sys

import pytest

from groundplane.platform.serving.servers import ADAPTERS, adapter_of, replica_launch
from groundplane.platform.serving.servers.contract import ServerCount, ServerLoad
from groundplane.platform.serving.upstream import Origin
from groundplane.spec.errors import InputError
from groundplane.spec.service import ServiceSpec


def test_launch_of_llama_cpp() -> None:
    launch = replica_launch(ServiceSpec(name="s", model="m", context=100, slots=3), "/m/model.gguf", 81, 2)
    assert launch.command[:3] == (sys.executable, "-m", "groundplane.platform.serving.llamacpp_server")
    options = dict(zip(launch.command[3::2], launch.command[4::2], strict=True))
    assert options == {
        "--model": "/m/model.gguf", "--name": "s", "--host": "127.0.0.1", "--port": "81", "--context": "100",
        "--slots": "3", "--threads": "2",
    }  # fmt: skip
    assert (launch.ready_url, launch.base_url) == ("http://127.0.0.1:81/health", "http://127.0.0.1:81/v1")


def test_launch_of_vllm() -> None:
    launch = replica_launch(ServiceSpec(name="s", model="m", server="vllm"), "/m", 81, 2)
    assert launch.command[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    assert "--served-model-name" in launch.command


def test_openai_is_not_started() -> None:
    with pytest.raises(InputError, match="nothing to start"):
        replica_launch(ServiceSpec(name="s", server="openai", url="http://x/v1"), "", 81, 2)
    with pytest.raises(InputError, match="did you mean 'llamacpp'"):
        adapter_of("llama-cpp")


def test_metrics_are_read() -> None:
    text = (
        "# HELP x y\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 4.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 1.0\nvllm:num_requests_waiting{a="b"} 6\n'
        'vllm:kv_cache_usage_perc{a="b"} 0.25\nbroken\n'
    )
    assert ADAPTERS["llamacpp"].parse_metrics(text) == ServerLoad(2, 3, None)
    assert ADAPTERS["vllm"].parse_metrics(text) == ServerLoad(5, 6, 0.25)
    assert ADAPTERS["openai"].parse_metrics(text) == ServerLoad(None, None, None)


def test_counts_are_read() -> None:
    adapter = ADAPTERS["openai-counted"]
    assert adapter.count_path("req_1") == "/count/req_1"
    body = b'{"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 1, "state": "running"}'
    assert adapter.parse_count(body) == ServerCount(5, 1, 2, running=True)
    assert adapter.parse_count(b"{}") is None


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:1", "ftp://x/v1", "http://x:99999/v1", "http:///v1", "http://é/v1"]
)
def test_no_origin(url: str) -> None:
    with pytest.raises(InputError, match="must be a base URL"):
        Origin.of(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "root"),
    [
        ("http://127.0.0.1:8123/v1", "127.0.0.1", 8123, "/v1", ""),
        ("http://127.0.0.1:8123", "127.0.0.1", 8123, "/v1", ""),
        ("https://api.example.com/v1/", "api.example.com", 443, "/v1", ""),
        ("http://example.com/team/v1", "example.com", 80, "/team/v1", "/team"),
        ("http://[::1]:9/v1", "::1", 9, "/v1", ""),
    ],
)
def test_origins(url: str, host: str, port: int, prefix: str, root: str) -> None:
    origin = Origin.of(url)
    assert (origin.host, origin.port, origin.prefix, origin.root) == (host, port, prefix, root)
    assert origin.tls == url.startswith("https")
    request = origin.request("/completions", "req_1", b"{}")
    assert request.startswith(f"POST {prefix}/completions HTTP/1.1\r\nhost: ".encode())
    assert request.endswith(b"content-length: 2\r\n\r\n{}")
