"""Recorded runs of a real engine against the simulation of the same requests.

A run is a folder with `meta.json` (model, engine, `engine_kwargs`) and `requests.jsonl` (tokens in and out,
and the engine's own times of each request: queued, first and last token). The chip is `chip` in meta.json or
a part of the path that names one. Cache capacity is computed from the chip's memory, not read. Times are the
engine's, so nothing is added for the way to it.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from groundplane.catalog.resolve import resolve_cluster
from groundplane.catalog.store import Catalog
from groundplane.perfmodel.evidence import FloatArray
from groundplane.sim.serving.deployment import Deployment
from groundplane.sim.serving.described import build_deployment
from groundplane.sim.serving.outcome import State
from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.simulate import Simulator, simulate
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.load import read_text

_WEIGHTS: Final = {"bfloat16": "bf16", "float16": "fp16", "auto": "bf16", "half": "fp16"}
_QUANTISED: Final = {
    "fp8": "fp8",
    "awq": "int4_weight_only",
    "gptq": "int4_weight_only",
    "modelopt_fp4": "fp4",
}
_CACHES: Final = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8"}
_ENGINES: Final = {"vllm_version": "vllm", "sglang_version": "sglang", "tensorrt_llm_version": "trtllm"}

MAX_RUNS: Final = 1000


class RecordedRequest(msgspec.Struct, frozen=True):
    """One line of `requests.jsonl`; other fields are not read."""

    input_toks: int
    output_toks: int
    queued_ts: float
    first_token_ts: float
    last_token_ts: float


class MeasuredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run: what was measured, what was predicted, and the errors in per cent of the measurement."""

    run: str
    model: str
    chip: str
    engine: str
    requests: int
    kv_blocks: int
    tpot_mean_err_pct: float
    ttft_mean_err_pct: float
    e2e_p50_err_pct: float
    e2e_p99_err_pct: float
    measured: dict[str, float]
    predicted: dict[str, float]


def measured_runs(folder: Path, *, simulator: Simulator = "auto") -> list[MeasuredRun]:
    """Every run below a folder, by path.

    Args:
        folder: a run, or what holds some at any depth.
        simulator: which of the two that are equal; see `simulate`.

    Raises:
        InputError: no run; a file that is not of the form; an unknown chip, model or format.
    """
    if not folder.is_dir():
        raise InputError("no such folder", file=str(folder))
    found = sorted(
        path.parent for path in folder.rglob("meta.json") if (path.parent / "requests.jsonl").exists()
    )
    if not found:
        raise InputError("holds no run: meta.json beside requests.jsonl", file=str(folder))
    if len(found) > MAX_RUNS:
        raise InputError(f"must hold at most {MAX_RUNS} runs", file=str(folder), value=len(found))
    return [_compared(run, folder, simulator) for run in found]


def _compared(run: Path, folder: Path, simulator: Simulator) -> MeasuredRun:
    file = str(run / "meta.json")
    try:
        meta = msgspec.json.decode(read_text(run / "meta.json"), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"must be a JSON object: {error}", file=file) from None
    records = _records(run / "requests.jsonl")
    try:
        spec, chip = _described(meta, run)
        cluster = resolve_cluster(spec.cluster)
        longest = max(record.input_toks + record.output_toks for record in records)
        built = build_deployment(spec, cluster=cluster, max_context=longest)
    except InputError as error:
        raise error.at(file=file) from None
    start = min(record.queued_ts for record in records)
    order = np.argsort([record.queued_ts for record in records], kind="stable")
    ordered = [records[index] for index in order]
    requests = Requests.of(
        np.array([round((record.queued_ts - start) * 1e9) for record in ordered]),
        np.array([record.input_toks for record in ordered]),
        np.array([record.output_toks for record in ordered]),
    )
    outcome = simulate(requests, _at_the_engine(built.simulated), simulator=simulator)
    lost = int((outcome.state != State.ENDED).sum())
    if lost:
        raise InputError(f"{lost} of {len(records)} requests do not fit into the predicted cache", file=file)
    queued, first, last = (
        np.array([getattr(record, name) for record in ordered])
        for name in ("queued_ts", "first_token_ts", "last_token_ts")
    )
    measured = _figures(queued, first, last, requests.output_tokens)
    arrived, first, last = (
        np.asarray(times * 1e-9, dtype=np.float64)
        for times in (requests.arrival_ns, outcome.first_token_ns, outcome.finish_ns)
    )
    predicted = _figures(arrived, first, last, requests.output_tokens)

    def error_pct(name: str) -> float:
        return 100.0 * (predicted[name] / measured[name] - 1.0)

    return MeasuredRun(
        run=str(run.relative_to(folder)) if run != folder else run.name,
        model=built.pools[0].model.name,
        chip=chip,
        engine=built.pools[0].engine,
        requests=len(records),
        kv_blocks=built.pools[0].capacity.num_blocks,
        tpot_mean_err_pct=error_pct("tpot_mean_s"),
        ttft_mean_err_pct=error_pct("ttft_mean_s"),
        e2e_p50_err_pct=error_pct("e2e_p50_s"),
        e2e_p99_err_pct=error_pct("e2e_p99_s"),
        measured=measured,
        predicted=predicted,
    )


def _figures(
    arrival: FloatArray, first: FloatArray, last: FloatArray, tokens: np.ndarray
) -> dict[str, float]:
    whole = last - arrival
    several = tokens > 1
    return {
        "ttft_mean_s": float((first - arrival).mean()),
        "ttft_p50_s": float(np.percentile(first - arrival, 50)),
        "ttft_p99_s": float(np.percentile(first - arrival, 99)),
        "tpot_mean_s": float(((last - first)[several] / (tokens[several] - 1)).mean()),
        "e2e_p50_s": float(np.percentile(whole, 50)),
        "e2e_p99_s": float(np.percentile(whole, 99)),
        "output_tokens_per_s": float(tokens.sum() / (last.max() - arrival.min())),
    }


def _records(path: Path) -> list[RecordedRequest]:
    decoder = msgspec.json.Decoder(RecordedRequest)
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise InputError(f"is no recorded request: {error}", file=str(path), line=number) from None
        if record.input_toks < 1 or record.output_toks < 1:
            raise InputError("needs tokens in and out", file=str(path), line=number)
        if not record.queued_ts <= record.first_token_ts <= record.last_token_ts:
            raise InputError("has times out of order", file=str(path), line=number)
        found.append(record)
    if not found:
        raise InputError("holds no requests", file=str(path))
    return found


def _described(meta: dict[str, Any], run: Path) -> tuple[DeploymentSpec, str]:
    """The deployment that the run's own settings describe."""
    options = meta.get("engine_kwargs", {})
    if not isinstance(options, dict):
        raise InputError("must be an object", field="engine_kwargs", value=options)
    engine = next((name for key, name in _ENGINES.items() if key in meta), "vllm")
    chip = _chip(meta, run)
    ranks = _whole(options, "data_parallel_size", 1)
    tp, pp = _whole(options, "tensor_parallel_size", 1), _whole(options, "pipeline_parallel_size", 1)
    shared = bool(options.get("enable_expert_parallel", False)) and ranks * tp > 1
    quantised = options.get("quantization")
    weights = _QUANTISED.get(str(quantised)) if quantised else _WEIGHTS.get(str(options.get("dtype", "auto")))
    cache = _CACHES.get(str(options.get("kv_cache_dtype", "auto")))
    if weights is None:
        field = "quantization" if quantised else "dtype"
        raise unknown_name("format", str(options.get(field)), [*_WEIGHTS, *_QUANTISED], field=field)
    if cache is None:
        raise unknown_name("format", str(options.get("kv_cache_dtype")), _CACHES, field="kv_cache_dtype")
    sequences = _whole(options, "max_num_seqs", 256)
    # Without expert parallelism, engines run data-parallel ranks of dense models as copies.
    copies = ranks if not shared else 1
    pool = ReplicaPool(
        replicas=copies,
        tp=tp,
        pp=pp,
        attention_dp=ranks // copies,
        ep=ranks * tp if shared else 1,
        max_sequences=sequences,
        max_batched_tokens=max(_whole(options, "max_num_batched_tokens", 8192), sequences),
        memory_share=float(options.get("gpu_memory_utilization") or 0.9),
        block_tokens=_whole(options, "block_size", 16),
    )
    spec = DeploymentSpec(
        name="measured",
        cluster=f"{chip}x{_servers_chips(chip, pool.num_chips * copies)}",
        pools=(pool,),
        model=_model(str(meta.get("model", ""))),
        engine=engine,
        weights=weights,
        cache=cache,
        routing="least_work",
    )
    return spec, chip


def _whole(options: dict[str, Any], name: str, default: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise InputError("must be a whole number of 1 or more", field=f"engine_kwargs.{name}", value=value)
    return value


def _servers_chips(chip: str, needed: int) -> int:
    """As many chips as fill what a person would have bought: a part of a server, or whole ones."""
    per_server = resolve_cluster(f"{chip}x1").server.num_chips
    return needed if needed <= 8 else -(-needed // max(per_server, 8)) * max(per_server, 8)


def _chip(meta: dict[str, Any], run: Path) -> str:
    """The catalogue's chip that meta.json or a folder above the run names."""
    known = Catalog.shipped()
    named = [str(meta["chip"])] if "chip" in meta else list(reversed(run.resolve().parts))
    plain = {_plain(name): known.true_name("chips", name) for name in known.all_names("chips")}
    for part in named:
        word = _plain(part)
        if word in plain:
            return plain[word]
        near = {name for key, name in plain.items() if len(word) >= 4 and key.startswith(word)}
        if len(near) == 1:
            return near.pop()
    if "chip" in meta:
        raise unknown_name("chip", str(meta["chip"]), known.all_names("chips"), field="chip")
    raise InputError("names no chip, and no folder above does: say which", field="chip")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _model(name: str) -> str:
    """The catalogue's name for a model of a hub: "meta-llama/Llama-3.1-8B-Instruct"."""
    from groundplane.catalog.resolve import model_names

    short = name.rpartition("/")[2].lower()
    known = model_names()
    for candidate in (short, re.sub(r"-(instruct|chat|base|it|hf|\d{4})$", "", short)):
        trimmed = candidate
        while trimmed:
            if trimmed in known:
                return trimmed
            # Dates and tunings stand behind the model's own name.
            trimmed = trimmed.rpartition("-")[0]
    return short


def _at_the_engine(deployment: Deployment) -> Deployment:
    """Without the way to the engine and back: recorded times are its own."""
    pools = tuple(dataclasses.replace(pool, outside_ns=0, outside_token_ps=0) for pool in deployment.pools)
    return dataclasses.replace(deployment, pools=pools)
