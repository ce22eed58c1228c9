"""Workloads of many clients, each with its own rate, burstiness and lengths: folders as ServeGen publishes.

`chunk-N-trace.csv` has a window a line without a header: start_s, rate, gap_cv, distribution, shape, scale;
`chunk-N-dataset.json` has, for windows of lengths, histograms of input and output tokens, written as Python
literals inside JSON strings (read as literals, never evaluated). Clients differ so much that their sum is
what is bursty: they are drawn apart and merged (Xiang et al. 2025).
"""

from __future__ import annotations

import ast
import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.sim.serving.workload_arrivals import piecewise_arrivals_s
from groundplane.sim.serving.workload_lengths import drawn_tokens
from groundplane.sim.serving.workload_rows import IntArray, RequestRows
from groundplane.spec.errors import InputError
from groundplane.spec.load import read_text
from groundplane.spec.request_trace import ClientsSpec, LengthSpec

_NAME: Final = re.compile(r"chunk-(\d+)-trace\.csv")


@dataclass(frozen=True)
class Histogram:
    """Token counts and their cumulative shares."""

    tokens: IntArray
    cumulative: FloatArray

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Token counts, at least 1."""
        place = np.searchsorted(self.cumulative, rng.random(count) * self.cumulative[-1], side="right")
        drawn = self.tokens[np.minimum(place, len(self.tokens) - 1)]
        return np.asarray(np.maximum(drawn, 1), dtype=np.int64)


@dataclass(frozen=True)
class Client:
    """One client: windows of arrivals, and histograms by the time from which they hold (empty without)."""

    name: str
    edges_s: FloatArray
    rates: FloatArray
    kinds: FloatArray
    shapes: FloatArray
    lengths: tuple[tuple[float, Histogram, Histogram], ...]


def read_clients(folder: Path) -> list[Client]:
    """The clients of a folder, by number.

    Raises:
        InputError: no such folder, no clients in it, or a file of another form.
    """
    if not folder.is_dir():
        raise InputError("no such folder", file=str(folder))
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path))
    if not found:
        raise InputError("holds no clients: chunk-N-trace.csv", file=str(folder))
    return [_client(path) for _, path in sorted(found)]


def generate_clients(
    spec: ClientsSpec,
    rng: np.random.Generator,
    *,
    folder: Path,
    count: int | None,
    duration_s: float | None,
    prompt: LengthSpec | None = None,
    output: LengthSpec | None = None,
) -> RequestRows:
    """Requests of all clients of `folder` together, in order; `session` is the client.

    Lengths are drawn for each request from its client's histograms of the hour (prompt and output apart, as
    ServeGen does); `prompt` and `output` replace them. Clients without histograms draw from the others'.

    Raises:
        InputError: as `read_clients`; no length known for any client; nothing arrives from `start` on.
    """
    clients = read_clients(folder)
    end_s = max(float(client.edges_s[-1]) for client in clients)
    length_s = _span_s(clients, spec, count, duration_s, end_s)
    until_s = min(spec.start_s + length_s, end_s)
    total = sum(_mean_count(client, spec.start_s, until_s) for client in clients)
    if total <= 0:
        raise InputError(f"no client sends anything from {spec.start_s:g} s on", field="clients.start")
    factor = 1.0 if spec.rate is None else spec.rate * (until_s - spec.start_s) / total
    times, owners = [], []
    for index, client in enumerate(clients):
        edges, rates, windows = _cut(client, spec.start_s, until_s)
        mine = piecewise_arrivals_s(rng, edges, rates * factor, client.kinds[windows], client.shapes[windows])
        times.append(mine)
        owners.append(np.full(len(mine), index, dtype=np.int64))
    arrival_s, owner = np.concatenate(times), np.concatenate(owners)
    order = np.argsort(arrival_s, kind="stable")[:count]
    if not len(order):
        raise InputError("leaves no request: ask for more", field="requests", value=count)
    arrival_s, owner = arrival_s[order], owner[order]
    rows = RequestRows(
        np.round((arrival_s - arrival_s[0]) * 1e9).astype(np.int64),
        np.ones(len(order), dtype=np.int64),
        np.ones(len(order), dtype=np.int64),
        session=owner,
    )
    _add_lengths(rows, clients, arrival_s, rng, folder, prompt, output)
    return rows


def _span_s(
    clients: list[Client], spec: ClientsSpec, count: int | None, duration_s: float | None, end_s: float
) -> float:
    """Seconds of the recording to draw: what is asked for, or enough for `count` with a margin."""
    if duration_s is not None:
        return duration_s
    if spec.rate is not None:
        return 1.2 * (count or 1) / spec.rate + 60.0
    rest = end_s - spec.start_s
    mean = sum(_mean_count(client, spec.start_s, end_s) for client in clients) / max(rest, 1.0)
    span = 600.0
    while span < rest and mean > 0:
        if sum(_mean_count(client, spec.start_s, spec.start_s + span) for client in clients) > 1.2 * (
            count or 1
        ):
            break
        span *= 1.5
    return min(span, max(rest, 0.0))


def _mean_count(client: Client, from_s: float, until_s: float) -> float:
    edges, rates, _ = _cut(client, from_s, until_s)
    return float((np.diff(edges) * rates).sum())


def _cut(client: Client, from_s: float, until_s: float) -> tuple[FloatArray, FloatArray, IntArray]:
    """Windows of the client between two times: limits, rates, and which windows they are."""
    starts, ends = client.edges_s[:-1], client.edges_s[1:]
    inside = np.flatnonzero((ends > from_s) & (starts < until_s))
    if not len(inside):
        return np.array([from_s, from_s]), np.zeros(1), np.zeros(1, dtype=np.int64)
    edges = np.clip(np.concatenate([starts[inside], ends[inside][-1:]]), from_s, until_s)
    return edges, client.rates[inside], inside


def _add_lengths(
    rows: RequestRows, clients: list[Client], arrival_s: FloatArray, rng: np.random.Generator, folder: Path,
    prompt: LengthSpec | None, output: LengthSpec | None,
) -> None:  # fmt: skip
    known = [client for client in clients if client.lengths]
    if not known and (prompt is None or output is None):
        raise InputError("holds no lengths (chunk-N-dataset.json): give prompt and output", file=str(folder))
    without = 0
    for index, client in enumerate(clients):
        mine = np.flatnonzero(rows.session == index)
        if not known or not len(mine):
            continue
        source = client if client.lengths else known[int(rng.integers(len(known)))]
        without += 0 if client.lengths else len(mine)
        starts = np.array([start for start, _, _ in source.lengths])
        window = np.maximum(np.searchsorted(starts, arrival_s[mine], side="right") - 1, 0)
        for place in np.unique(window):
            here = mine[window == place]
            _, inputs, outputs = source.lengths[int(place)]
            rows.prompt[here] = inputs.draw(rng, len(here))
            rows.output[here] = outputs.draw(rng, len(here))
    if without and (prompt is None or output is None):
        rows.notes.append(
            f"{without:,} requests of clients without lengths of their own use those of other clients"
        )
    if prompt is not None:
        rows.prompt = drawn_tokens(prompt, rng, len(rows))
    if output is not None:
        rows.output = drawn_tokens(output, rng, len(rows))


# Files
# ----------------------------------------------------------------------------------------------------


def _client(path: Path) -> Client:
    starts: list[float] = []
    rates: list[float] = []
    kinds: list[float] = []
    shapes: list[float] = []
    for number, row in enumerate(csv.reader(io.StringIO(read_text(path))), start=1):
        if not row:
            continue
        try:
            start, rate = float(row[0]), float(row[1])
            shape = float(row[4] or 0)
            kind = row[3]
        except (IndexError, ValueError):
            raise InputError(
                "must be start_s,rate,gap_cv,distribution,shape,scale", file=str(path), line=number
            ) from None
        good = 0 <= start < float("inf") and 0 <= rate < float("inf") and kind in ("", "Gamma", "Weibull")
        if not good or (rate > 0 and not 0 < shape < float("inf")) or (starts and start <= starts[-1]):
            raise InputError(
                "needs ascending windows, rates of 0 or more, and Gamma or Weibull with a shape",
                file=str(path), line=number,
            )  # fmt: skip
        starts.append(start)
        rates.append(rate)
        kinds.append(1.0 if kind == "Weibull" else 0.0)
        shapes.append(shape or 1.0)
    if not starts:
        raise InputError("holds no windows", file=str(path))
    width = starts[1] - starts[0] if len(starts) > 1 else 600.0
    edges = np.array([*starts, starts[-1] + width])
    dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    lengths = _lengths(dataset) if dataset.exists() else ()
    return Client(path.stem, edges, np.array(rates), np.array(kinds), np.array(shapes), lengths)


def _lengths(path: Path) -> tuple[tuple[float, Histogram, Histogram], ...]:
    try:
        data = msgspec.json.decode(read_text(path), type=dict[str, dict[str, str]])
        found = [
            (float(start), _histogram(window["input_tokens"]), _histogram(window["output_tokens"]))
            for start, window in data.items()
        ]
    except (msgspec.MsgspecError, KeyError, ValueError, SyntaxError, TypeError, AttributeError):
        raise InputError(
            "must map times to input_tokens and output_tokens, each a dict of tokens to shares",
            file=str(path),
        ) from None
    usable = [
        one for one in sorted(found, key=lambda one: one[0]) if len(one[1].tokens) and len(one[2].tokens)
    ]
    return tuple(usable)


def _histogram(text: str) -> Histogram:
    shares = ast.literal_eval(text)
    tokens = np.array(list(shares), dtype=np.float64)
    weights = np.array(list(shares.values()), dtype=np.float64)
    kept = np.isfinite(tokens) & (weights > 0)
    return Histogram(tokens[kept].astype(np.int64), np.cumsum(weights[kept]))
