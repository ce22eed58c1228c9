"""The same run in the words of common benchmark tools, whose definitions differ where names do not.

* `vllm`: `vllm bench serve` and SGLang's `bench_serving`. tpot leaves out requests of one token, itl are all
  gaps of all requests, rates are over first arrival to last token.
* `aiperf`: AIPerf and GenAI-Perf. Their inter-token latency is one mean a request, (latency - first token) /
  (tokens - 1): what others call tpot.
* `llmperf`: LLMPerf. Its inter-token latency is latency / tokens, the first token's time included.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.sim.serving.outcome import State
from groundplane.sim.serving.results import metric_s
from groundplane.sim.serving.results_run import ServingRun
from groundplane.spec.errors import unknown_name

TOOLS: Final = ("vllm", "aiperf", "llmperf")


def tool_report(run: ServingRun, tool: str) -> dict[str, float]:
    """The figures that a tool would print, by its own names.

    Raises:
        InputError: unknown tool.
    """
    if tool not in TOOLS:
        raise unknown_name("benchmark tool", tool, TOOLS)
    return {"vllm": _vllm, "aiperf": _aiperf, "llmperf": _llmperf}[tool](run)


def _vllm(run: ServingRun) -> dict[str, float]:
    latency = run.result.latency
    found = {
        "completed": float(latency.ended),
        "duration": latency.duration_s,
        "total_input_tokens": float(run.requests.prompt_tokens[_ended(run)].sum()),
        "total_output_tokens": float(run.outcome.output_tokens[_ended(run)].sum()),
        "request_throughput": latency.requests_per_s.value,
        "output_throughput": latency.output_tokens_per_s.value,
        "total_token_throughput": latency.output_tokens_per_s.value + latency.prompt_tokens_per_s.value,
    }
    if latency.goodput is not None:
        found["request_goodput"] = latency.goodput.requests_per_s.value
    for name, tool_name in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        distribution = getattr(latency, name)
        found[f"mean_{tool_name}_ms"] = 1e3 * distribution.mean.value
        found[f"median_{tool_name}_ms"] = 1e3 * distribution.p50.value
        found[f"p99_{tool_name}_ms"] = 1e3 * distribution.p99.value
    return found


def _aiperf(run: ServingRun) -> dict[str, float]:
    latency = run.result.latency
    each = _values(run, "tpot")
    found = {
        "request_count": float(latency.ended),
        "benchmark_duration_s": latency.duration_s,
        "request_throughput": latency.requests_per_s.value,
        "output_token_throughput": latency.output_tokens_per_s.value,
        "total_token_throughput": latency.output_tokens_per_s.value + latency.prompt_tokens_per_s.value,
    }
    found |= _statistics("time_to_first_token_ms", 1e3 * _values(run, "ttft"))
    found |= _statistics("inter_token_latency_ms", 1e3 * each)
    found |= _statistics("request_latency_ms", 1e3 * _values(run, "e2e"))
    found |= _statistics("output_token_throughput_per_user", 1.0 / each[each > 0])
    if latency.goodput is not None:
        found["goodput"] = latency.goodput.requests_per_s.value
    return found


def _llmperf(run: ServingRun) -> dict[str, float]:
    tokens = run.outcome.output_tokens[_ended(run)]
    whole = metric_s(run.requests, run.outcome, "e2e")[_ended(run)]
    found = _statistics("ttft_s", _values(run, "ttft"))
    found |= _statistics("inter_token_latency_s", whole / tokens)
    found |= _statistics("end_to_end_latency_s", whole)
    found |= _statistics("request_output_throughput_token_per_s", tokens / np.maximum(whole, 1e-12))
    found["num_completed_requests"] = float(len(whole))
    found["mean_output_throughput_token_per_s"] = run.result.latency.output_tokens_per_s.value
    return found


def _statistics(name: str, values: FloatArray) -> dict[str, float]:
    if not len(values):
        return {}
    marks = {f"p{mark}": float(np.percentile(values, mark)) for mark in (50, 90, 95, 99)}
    numbers = {"avg": float(values.mean()), **marks, "max": float(values.max())}
    return {f"{name}_{statistic}": value for statistic, value in numbers.items()}


def _values(run: ServingRun, name: str) -> FloatArray:
    values = metric_s(run.requests, run.outcome, name)
    return np.asarray(values[~np.isnan(values)])


def _ended(run: ServingRun) -> np.ndarray:
    return np.asarray(run.outcome.state == State.ENDED)
