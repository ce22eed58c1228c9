"""Generated requests: rates, burstiness, shared prefixes, conversations, clients; other loads of a trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.sim.serving.workload import load_workload, simulated
from groundplane.sim.serving.workload_arrivals import arrivals_s, piecewise_arrivals_s
from groundplane.sim.serving.workload_generate import mixed
from groundplane.sim.serving.workload_rows import RequestRows
from groundplane.sim.serving.workload_scale import families, scaled
from groundplane.spec.errors import InputError
from groundplane.spec.request_trace import (
    ArrivalSpec,
    ClientsSpec,
    LengthSpec,
    PrefixSpec,
    ScaleSpec,
    SessionSpec,
    TraceSpec,
    WorkloadSpec,
)


def spec(**changes: object) -> WorkloadSpec:
    given_ = {
        "arrivals": ArrivalSpec(50.0),
        "prompt": LengthSpec(1000.0),
        "output": LengthSpec(200.0),
        "requests": 20_000,
    }
    return WorkloadSpec(**(given_ | changes))  # type: ignore[arg-type]


def count_cv(rows: RequestRows, window_s: float) -> float:
    counts = np.bincount((rows.arrival_ns / (window_s * 1e9)).astype(int))
    return float(counts.std() / counts.mean())


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    rows = load_workload(spec(arrivals=ArrivalSpec(50.0, burstiness), requests=100_000))
    assert len(rows) == 100_000
    assert rows.rate_per_s == pytest.approx(50.0, rel=0.05)
    assert rows.gap_cv == pytest.approx(burstiness, rel=0.05, abs=1e-6)
    assert rows.prompt.mean() == pytest.approx(1000.0, rel=0.03)
    assert rows.output.std() / rows.output.mean() == pytest.approx(1.0, rel=0.1)


def test_same_seed_same_requests() -> None:
    first, second = load_workload(spec(seed=3)), load_workload(spec(seed=3))
    assert np.array_equal(first.arrival_ns, second.arrival_ns)
    assert np.array_equal(first.prompt, second.prompt)
    assert not np.array_equal(first.arrival_ns, load_workload(spec(seed=4)).arrival_ns)


def test_the_day_has_its_peak_and_its_mean() -> None:
    arrivals = ArrivalSpec(1.0, 1.0, diurnal=0.8, period_s=1000.0, peak_s=250.0)
    times = arrivals_s(arrivals, np.random.default_rng(0), duration_s=100_000.0)
    assert len(times) == pytest.approx(100_000, rel=0.02)
    counts = np.bincount((times % 1000.0 // 100.0).astype(int))
    assert int(counts.argmax()) == 2
    assert counts.max() / counts.min() > 5.0


def test_a_process_that_is_cut_off_has_no_bump_at_its_start() -> None:
    # A renewal process that began with an arrival would have (cv^2 - 1) / 2 = 12 too many at first.
    totals = [
        len(arrivals_s(ArrivalSpec(1.0, 5.0), np.random.default_rng(seed), duration_s=50.0))
        for seed in range(400)
    ]
    assert np.mean(totals) == pytest.approx(50.0, rel=0.1)


def test_windows_of_clients_have_their_rates() -> None:
    edges = np.array([0.0, 100.0, 200.0, 300.0])
    rates, shapes = np.array([10.0, 0.0, 40.0]), np.array([0.5, 1.0, 0.7])
    times = piecewise_arrivals_s(np.random.default_rng(1), edges, rates, np.array([0.0, 0.0, 1.0]), shapes)
    counts = np.histogram(times, edges)[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(1000, rel=0.2)
    assert counts[2] == pytest.approx(4000, rel=0.1)


def test_equal_hashes_mean_equal_prefixes() -> None:
    rows = load_workload(
        spec(prefix=PrefixSpec(groups=4, tokens=256, share=0.5), requests=2000, block_tokens=64)
    )
    starts = {}
    for index in range(len(rows)):
        hashes = rows.block_hash[rows.block_start[index] : rows.block_start[index + 1]].tolist()
        assert len(hashes) == rows.prompt[index] // 64
        for place, value in enumerate(hashes):
            # A block stands at one place only, and always behind the same block.
            assert starts.setdefault(value, (place, hashes[place - 1] if place else None)) == (
                place,
                hashes[place - 1] if place else None,
            )
    first = rows.block_hash[rows.block_start[:-1][np.diff(rows.block_start) > 4]]
    shared = np.unique(first, return_counts=True)[1]
    assert (shared > 20).sum() == 4


def test_conversations_hold_all_that_was_said() -> None:
    rows = load_workload(
        spec(
            arrivals=ArrivalSpec(20.0),
            prompt=LengthSpec(100.0, "fixed"),
            output=LengthSpec(28.0, "fixed"),
            sessions=SessionSpec(turns=4.0, think_s=10.0),
            requests=20_000,
        )
    )
    assert len(rows) == 20_000
    assert rows.rate_per_s == pytest.approx(20.0, rel=0.05)
    assert set((rows.prompt - 100) % 128) == {0}
    turns = rows.prompt // 128
    whole = np.unique(rows.session, return_counts=True)[1]
    assert whole.mean() == pytest.approx(4.0, rel=0.1)
    assert np.all(np.diff(rows.arrival_ns) >= 0)
    # A later turn finds every whole block of the one before, its answer included.
    one = int(rows.session[np.argmax(turns)])
    mine = np.flatnonzero(rows.session == one)
    chains = [rows.block_hash[rows.block_start[i] : rows.block_start[i + 1]].tolist() for i in mine]
    for before, after in itertools.pairwise(chains):
        assert after[: len(before)] == before
    simulated(rows)


def test_no_conversation_goes_beyond_the_context() -> None:
    sessions = SessionSpec(turns=20.0, context_limit=2000)
    rows = load_workload(spec(prompt=LengthSpec(300.0), sessions=sessions, requests=5000))
    assert int((rows.prompt + rows.output).max()) <= 2000


@given(st.integers(0, 2**40), st.integers(0, 2**20), st.integers(0, 2**40), st.integers(0, 2**20))
def test_hashes_do_not_meet(first: int, place: int, other: int, other_place: int) -> None:
    values = mixed(np.array([first, other]), np.array([place, other_place]))
    assert (values >= 0).all()
    assert (values[0] == values[1]) == ((first, place) == (other, other_place))


def bursty() -> RequestRows:
    rng = np.random.default_rng(0)
    bursts = np.cumsum(rng.exponential(40.0, 500))
    times = np.sort((bursts[:, None] + rng.exponential(0.5, (500, 12))).ravel())
    count = len(times)
    session = np.repeat(np.arange(count // 6), 6)
    return RequestRows(
        np.rint((times - times[0]) * 1e9).astype(np.int64),
        np.full(count, 500),
        np.full(count, 50),
        session=session,
    )


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 50.0))
def test_compressing_keeps_the_gaps_of_a_trace(factor: float) -> None:
    rows = bursty()
    other = scaled(rows, ScaleSpec(factor=factor), np.random.default_rng(0))
    assert len(other) == len(rows)
    assert other.gap_cv == pytest.approx(rows.gap_cv, rel=1e-5)
    assert other.rate_per_s == pytest.approx(rows.rate_per_s * factor, rel=1e-6)


@pytest.mark.parametrize("factor", [0.4, 2.0, 3.5, 8.0])
def test_layers_keep_the_duration_and_the_counts_in_windows(factor: float) -> None:
    rows = bursty()
    other = scaled(rows, ScaleSpec(factor=factor, how="layers"), np.random.default_rng(0))
    assert len(other) == pytest.approx(factor * len(rows), rel=0.05)
    assert other.duration_s == pytest.approx(rows.duration_s, rel=0.02)
    for window_s in (10.0, 60.0):
        # Whole layers keep it but for the second a copy may be late; thinning can only add scatter.
        assert count_cv(other, window_s) >= 0.95 * count_cv(rows, window_s)
        if factor > 1:
            assert count_cv(other, window_s) == pytest.approx(count_cv(rows, window_s), rel=0.05)
    assert np.all(np.diff(other.arrival_ns) >= 0)


def test_to_a_rate() -> None:
    other = scaled(bursty(), ScaleSpec(rate=7.0), np.random.default_rng(0))
    assert other.rate_per_s == pytest.approx(7.0, rel=1e-6)
    alone = RequestRows(np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1, np.int64))
    with pytest.raises(InputError, match="different times"):
        scaled(alone, ScaleSpec(rate=7.0), np.random.default_rng(0))


def test_copies_share_common_text_alone() -> None:
    # 40 conversations of 2 turns: block 0 is in all of them, blocks 10+ are a conversation's own.
    chains = [[0, 10 + i] for i in range(40)] + [[0, 10 + i, 100 + i] for i in range(40)]
    rows = RequestRows(
        np.arange(80, dtype=np.int64) * 10**9, np.full(80, 300), np.full(80, 5), block_tokens=100,
        block_start=np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(np.int64),
        block_hash=np.array([value for chain in chains for value in chain], dtype=np.int64),
    )  # fmt: skip
    found = families(rows)
    assert len(set(found.tolist())) == 40
    assert np.array_equal(found[:40], found[40:])
    other = scaled(rows, ScaleSpec(factor=3.0, how="layers"), np.random.default_rng(0))
    values, counts = np.unique(other.block_hash, return_counts=True)
    assert counts[values == 0].tolist() == [240]
    assert len(values) == 1 + 3 * 80
    assert set(counts[values != 0].tolist()) == {1, 2}


def write_client(folder: Path, number: int, rate: float, shape: float, kind: str, lengths: bool) -> None:
    lines = [f"{600 * i},{rate},1.0,{kind},{shape},1.0" for i in range(6)] + ["3600,0,0,,0,0"]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines) + "\n")
    if lengths:
        data = {
            "0": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{10: 1.0}", "reason_ratio": "{}"}
        }
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(data))


def test_clients_are_drawn_apart(tmp_path: Path) -> None:
    write_client(tmp_path, 0, 2.0, 1.0, "Gamma", True)
    write_client(tmp_path, 7, 1.0, 0.5, "Weibull", False)
    rows = load_workload(tmp_path, requests=6000)
    assert len(rows) == 6000
    assert rows.rate_per_s == pytest.approx(3.0, rel=0.1)
    assert np.mean(rows.session == 0) == pytest.approx(2 / 3, abs=0.05)
    assert set(rows.prompt.tolist()) == {100, 300}
    assert set(rows.output.tolist()) == {10}
    assert any("of other clients" in note for note in rows.notes)
    faster = load_workload(tmp_path, requests=6000, rate_per_s=30.0)
    assert faster.rate_per_s == pytest.approx(30.0, rel=0.1)


def test_clients_without_lengths_need_them(tmp_path: Path) -> None:
    write_client(tmp_path, 1, 1.0, 1.0, "Gamma", False)
    with pytest.raises(InputError, match="give prompt and output"):
        load_workload(tmp_path, requests=10)
    rows = load_workload(
        WorkloadSpec(
            clients=ClientsSpec(tmp_path.name), prompt=LengthSpec(50.0), output=LengthSpec(5.0), requests=10
        ),
        folder=tmp_path.parent,
    )
    assert len(rows) == 10


def test_a_length_table_is_never_run(tmp_path: Path) -> None:
    write_client(tmp_path, 1, 1.0, 1.0, "Gamma", False)
    data = {"0": {"input_tokens": "__import__('os').getcwd()", "output_tokens": "{}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="must map times to input_tokens"):
        load_workload(tmp_path, requests=10)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "exactly one of trace, clients, arrivals"),
        ({"trace": TraceSpec("t.csv"), "arrivals": ArrivalSpec(1.0)}, "exactly one of"),
        ({"arrivals": ArrivalSpec(1.0)}, "is required beside arrivals"),
        ({"clients": ClientsSpec("x")}, "needs requests or duration"),
        ({"trace": TraceSpec("t.csv"), "sessions": SessionSpec()}, "generated arrivals only"),
    ],
)
def test_specs_that_make_no_workload(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        WorkloadSpec(**fields)  # type: ignore[arg-type]


def test_a_workload_file(tmp_path: Path) -> None:
    text = (
        "kind: workload\narrivals: {rate: 20, burstiness: 2}\nprompt: {mean: 500}\noutput: {mean: 100}\n"
        "sessions: {turns: 3, think: 5s}\nduration: 10 min\nscale: {rate: 40}\n"
    )
    path = tmp_path / "load.yaml"
    path.write_text(text)
    rows = load_workload(path)
    assert rows.rate_per_s == pytest.approx(40.0, rel=1e-6)
    path.write_text(text.replace("burstiness", "burstines"))
    with pytest.raises(InputError, match=r"unknown field; did you mean 'burstiness'"):
        load_workload(path)


@pytest.mark.shared
def test_recorded_clients(shared: Path) -> None:
    rows = load_workload(shared / "traces/servegen/reason/deepseek-r1", requests=20_000)
    assert len(rows) == 20_000
    assert 10.0 < rows.rate_per_s < 40.0
