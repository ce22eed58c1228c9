"""Requests for the service simulator, from whatever a person names: a file, a folder, or a description.

`load_workload` is the one way in. The pieces: `workload_trace` (CSV, JSONL), `workload_servegen` (clients),
`workload_generate` (drawn), `workload_scale` (another load from the same).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from groundplane.sim.serving.requests import Requests
from groundplane.sim.serving.workload_arrivals import arrivals_s
from groundplane.sim.serving.workload_generate import generate
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.sim.serving.workload_scale import scaled
from groundplane.sim.serving.workload_servegen import generate_clients
from groundplane.sim.serving.workload_trace import read_trace
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.load import load
from groundplane.spec.request_trace import (
    MAX_REQUESTS,
    ArrivalSpec,
    ClientsSpec,
    ScaleSpec,
    TraceColumns,
    TraceSpec,
    WorkloadSpec,
)

_DESCRIPTIONS: Final = (".yaml", ".yml", ".toml")


def load_workload(
    source: str | Path | WorkloadSpec,
    *,
    columns: TraceColumns | None = None,
    scale: ScaleSpec | None = None,
    requests: int | None = None,
    rate_per_s: float | None = None,
    seed: int | None = None,
    folder: Path | None = None,
) -> RequestRows:
    """The requests of a trace file, a folder of clients, a workload file, or a spec, in order of arrival.

    Args:
        source: a CSV or JSONL trace; a folder of ServeGen clients or with a `requests.jsonl`; a workload
            file (YAML or TOML); or a spec, whose paths are relative to `folder`.
        columns: which columns a trace file has, where its names are not known ones.
        scale: replaces the spec's own.
        requests: the first so many; of clients, how many (10,000 without).
        rate_per_s: arrivals for a trace of lengths alone, Poisson; the total of clients.
        seed: replaces the spec's own.

    Raises:
        InputError: as the readers and generators raise it.
    """
    spec, base = _spec(source, columns, requests, rate_per_s)
    base = folder or base
    if scale is not None:
        spec = msgspec.structs.replace(spec, scale=scale)
    if seed is not None:
        spec = msgspec.structs.replace(spec, seed=seed)
    return requests_of(spec, folder=base)


def simulated(rows: RequestRows, *, models: Sequence[str] = ()) -> Requests:
    """The rows as the simulator takes them.

    Args:
        rows: in order of arrival.
        models: names of the deployment's models; a trace that names models must name these alone, if there
            are several.

    Raises:
        InputError: a model that the deployment does not serve.
    """
    model = None
    if len(models) > 1 and len(rows.model):
        for name in rows.model_names:
            if name not in models:
                raise unknown_name("model of the deployment", name, models, field="model")
        model = np.array([models.index(name) for name in rows.model_names], dtype=np.int64)[rows.model]
    hashed = len(rows.block_start) > 0
    return Requests.of(
        rows.arrival_ns,
        rows.prompt,
        rows.output,
        model=model,
        priority=rows.priority if len(rows.priority) else None,
        session=rows.session if len(rows.session) else None,
        block_hashes=rows.block_hash if hashed else None,
        block_offsets=rows.block_start if hashed else None,
        hash_block_tokens=rows.block_tokens or 16,
    )


def requests_of(spec: WorkloadSpec, *, folder: Path | None = None) -> RequestRows:
    """The requests that a spec describes; errors as `load_workload`."""
    rng = np.random.default_rng(spec.seed)
    if spec.trace is not None:
        rows = _traced(spec, spec.trace, rng, folder)
    elif spec.clients is not None:
        rows = generate_clients(
            spec.clients, rng, folder=(folder or Path()) / spec.clients.path, count=spec.requests,
            duration_s=spec.duration_s, prompt=spec.prompt, output=spec.output,
        )  # fmt: skip
    else:
        rows = generate(spec, rng)
    return rows if spec.scale is None else scaled(rows, spec.scale, rng)


def _traced(
    spec: WorkloadSpec, trace: TraceSpec, rng: np.random.Generator, folder: Path | None
) -> RequestRows:
    rows = read_trace(trace, folder=folder)
    if trace.rate is not None:
        times = arrivals_s(ArrivalSpec(rate=trace.rate), rng, count=len(rows))
        rows.arrival_ns = np.round((times - times[0]) * 1e9).astype(np.int64)
        rows.notes.append(f"lengths alone are used: arrivals are Poisson at {trace.rate:g} a second")
    kept = len(rows) if spec.requests is None else min(spec.requests, len(rows))
    if spec.duration_s is not None:
        kept = min(kept, int(np.searchsorted(rows.arrival_ns, spec.duration_s * 1e9, side="right")))
    return rows if kept == len(rows) else rows.take(np.arange(kept))


def _spec(
    source: str | Path | WorkloadSpec, columns: TraceColumns | None, requests: int | None,
    rate_per_s: float | None,
) -> tuple[WorkloadSpec, Path]:  # fmt: skip
    if isinstance(source, WorkloadSpec):
        return source, Path()
    path = Path(source)
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise InputError(f"must be 1 to {MAX_REQUESTS:,}", field="requests", value=requests)
    if path.suffix.lower() in _DESCRIPTIONS:
        spec = load(path, WorkloadSpec)
        if requests is not None:
            spec = msgspec.structs.replace(spec, requests=requests)
        return spec, path.parent
    if path.is_dir() and not (path / "requests.jsonl").exists():
        clients = ClientsSpec(path.name, rate=rate_per_s)
        return WorkloadSpec(clients=clients, requests=requests or 10_000), path.parent
    file = path / "requests.jsonl" if path.is_dir() else path
    trace = TraceSpec(file.name, columns=columns or TraceColumns(), rate=rate_per_s)
    return WorkloadSpec(trace=trace, requests=requests), file.parent
