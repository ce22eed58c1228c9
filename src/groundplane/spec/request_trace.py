"""A workload of a model service as a person describes it: a recorded trace or a generator, and its scaling.

A trace file alone (CSV, JSONL, a folder of ServeGen clients) needs no such description; this file is for what
goes beyond it. Knows nothing of how requests are read or drawn: that is `groundplane.sim.serving.workload`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Count, Fraction, PositiveInt, Seconds

TimeUnit = Literal["s", "ms", "us", "ns"]
Positive = Annotated[float, Meta(gt=0.0, le=1e12)]
MAX_REQUESTS = 50_000_000
"""Most requests of one workload: beyond, the arrays alone take several gigabytes."""


class TraceColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """Names of a trace's columns; empty ones are found by the names that public traces use.

    `arrival` is a time of day or a number in `time_unit`, `prompt` and `output` are tokens, `blocks` the
    hashes of the prompt's blocks, `session` joins the turns of a conversation, `priority` is a whole number
    (larger goes first), `model` the name of the model asked for.
    """

    arrival: str = ""
    prompt: str = ""
    output: str = ""
    blocks: str = ""
    session: str = ""
    priority: str = ""
    model: str = ""


class TraceSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A recorded trace: `path` relative to the file that names it.

    `block_tokens` is how many prompt tokens one hash stands for. `rate` gives arrivals to a trace of lengths
    alone. `limit` keeps the first so many requests.
    """

    path: str
    columns: TraceColumns = TraceColumns()
    time_unit: TimeUnit | None = None
    block_tokens: PositiveInt = 512
    rate: Positive | None = None
    limit: PositiveInt | None = None


class LengthSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens of a prompt or an output.

    `fixed`: all alike. `lognormal`: of that mean, with `cv` standard deviations a mean. `uniform`: from
    `low` x mean to mean + (1 - `low`) x mean.
    """

    mean: Annotated[float, Meta(ge=1.0, le=1e7)]
    shape: Literal["fixed", "lognormal", "uniform"] = "lognormal"
    cv: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    low: Fraction = 0.8
    most: PositiveInt | None = None


class ArrivalSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How requests (or sessions) arrive.

    Gaps are gamma distributed: `burstiness` is their coefficient of variation, 1 for Poisson arrivals, 0 for
    a clock's. The rate follows 1 + `diurnal` cos over each `period`, with its peak at `peak`.
    """

    rate: Positive
    burstiness: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    diurnal: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    period_s: Seconds = msgspec.field(default=86400.0, name="period")
    peak_s: Seconds = msgspec.field(default=14 * 3600.0, name="peak")


class PrefixSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Prompts that begin alike: `share` of requests begin with one of `groups` prefixes of `tokens` tokens.

    The k-th most popular prefix is drawn in proportion to k^-`skew` (Zipf).
    """

    groups: PositiveInt = 16
    tokens: PositiveInt = 1024
    share: Fraction = 1.0
    skew: Annotated[float, Meta(ge=0.0, le=10.0)] = 1.0


class SessionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations: turns are geometric with mean `turns`, each prompt holds all that was said before.

    The next turn comes `think` (exponential mean) after the answer, whose length is taken as
    `token_time` a token: arrivals are set before the service is known.
    """

    turns: Annotated[float, Meta(ge=1.0, le=1000.0)] = 4.0
    think_s: Seconds = msgspec.field(default=30.0, name="think")
    token_time_s: Seconds = msgspec.field(default=0.03, name="token_time")
    context_limit: PositiveInt = 131072


class ClientsSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of ServeGen clients: `start` and the number of requests pick a part of the recorded days.

    `rate` scales all clients alike to a total; without it, theirs.
    """

    path: str
    rate: Positive | None = None
    start_s: Seconds = msgspec.field(default=0.0, name="start")


class ScaleSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Another load than the recorded one, to `rate` requests a second or by a `factor`.

    `compress` divides all times: gaps keep their coefficient of variation exactly, the duration changes.
    `layers` keeps the duration: so many copies of each request, with prefixes of their own, arrive around
    it; counts in windows keep their coefficient of variation.
    """

    rate: Positive | None = None
    factor: Positive | None = None
    how: Literal["compress", "layers"] = "compress"

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.factor is None):
            raise InputError("needs rate or factor, one of both", field="scale")


class WorkloadSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="workload"):
    """One source of requests: `trace`, `clients`, or `arrivals` with lengths; then its scaling.

    `duration` or `requests` ends a generated workload; of a trace they keep the beginning. `block_tokens`
    is how many prompt tokens a generated block hash stands for.
    """

    trace: TraceSpec | None = None
    clients: ClientsSpec | None = None
    arrivals: ArrivalSpec | None = None
    prompt: LengthSpec | None = None
    output: LengthSpec | None = None
    prefix: PrefixSpec | None = None
    sessions: SessionSpec | None = None
    scale: ScaleSpec | None = None
    requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS)] | None = None
    duration_s: Seconds | None = msgspec.field(default=None, name="duration")
    block_tokens: PositiveInt = 64
    seed: Count = 0

    def __post_init__(self) -> None:
        sources = [name for name in ("trace", "clients", "arrivals") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise InputError(
                "needs exactly one of trace, clients, arrivals",
                field="kind",
                value=", ".join(sources) or None,
            )
        if self.arrivals is not None:
            for name in ("prompt", "output"):
                if getattr(self, name) is None:
                    raise InputError("is required beside arrivals", field=name)
        elif self.prefix is not None or self.sessions is not None:
            raise InputError("is for generated arrivals only", field="prefix" if self.prefix else "sessions")
        if self.trace is None and self.requests is None and self.duration_s is None:
            raise InputError("needs requests or duration, to know where to end", field="requests")
