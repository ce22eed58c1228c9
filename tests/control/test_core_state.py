"""Snapshots, digests, and what the core must not know: clocks, chance, floats, the order of hashes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_hand import Hand

import groundplane.control
from groundplane.control.actions import SetTimer, StartWork
from groundplane.control.core import SCHEMA_VERSION, ControlCore, Snapshot
from groundplane.control.events import Gang, NodeJoined, RestartPolicy, ServiceScaled
from groundplane.control.state import CoreState
from groundplane.sim.fuzz import run_seed
from groundplane.spec.errors import InputError, InvariantError

SOURCES = sorted(Path(groundplane.control.__file__).parent.rglob("*.py"))
BANNED = {"time", "random", "uuid", "datetime", "secrets", "os", "socket", "asyncio", "threading", "numpy"}


def test_a_snapshot_goes_on_as_the_core_would_have(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", ranks=2)
    restored = ControlCore.restore(hand.core.snapshot())
    event = NodeJoined("n1", "gpu", 2, 10)
    assert restored.handle(5, event) == hand.core.handle(5, event)
    assert restored.digest() == hand.core.digest()


def test_what_may_be_lost_is_pending(hand: Hand) -> None:
    hand.node("n0")
    start = hand.submit("j")
    assert hand.core.pending_actions() == start
    hand.started("j.a1")
    assert hand.core.pending_actions() == []
    hand.gone("j.a1", "failed")
    assert hand.core.pending_actions() == [SetTimer("j.backoff", 10**9)]
    assert isinstance(start[0], StartWork)


def test_a_snapshot_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InputError, match="is not a snapshot"):
        ControlCore.restore(b"nonsense")
    other = msgspec.msgpack.encode(Snapshot(SCHEMA_VERSION + 1, "9.9", CoreState()))
    with pytest.raises(InputError, match=r"snapshot of schema \d+ \(groundplane 9.9\) cannot be read"):
        ControlCore.restore(other)


def test_time_does_not_run_backwards() -> None:
    core = ControlCore()
    core.handle(5, NodeJoined("n0", "gpu", 1, 1))
    with pytest.raises(InvariantError, match="time ran backwards"):
        core.handle(4, NodeJoined("n1", "gpu", 1, 1))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_core_knows_no_clock_and_no_chance(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & BANNED, f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.For | ast.comprehension):
            assert not isinstance(node.iter, ast.Set | ast.SetComp), "nothing iterates a set"
            called = node.iter.func if isinstance(node.iter, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in {"set", "frozenset"})
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), "no floats"
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), "no true division"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gang(0, 1, 0),
        lambda: Gang(1, 0, 0),
        lambda: Gang(1, 1, -1),
        lambda: RestartPolicy(-1, 0, 0),
        lambda: NodeJoined("n0", "gpu", 0, 0),
        lambda: ServiceScaled("s", -1),
    ],
)
def test_numbers_out_of_range_never_reach_the_core(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="must be at least"):
        make()


def floats_in(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value]
    if isinstance(value, dict):
        return [found for pair in value.items() for item in pair for found in floats_in(item)]
    if isinstance(value, list):
        return [found for item in value for found in floats_in(item)]
    return []


def test_no_float_gets_into_the_state(hand: Hand) -> None:
    hand.node("n0")
    hand.submit("j", predicted_s=3)
    hand.deploy("s", 2)
    hand.submit("head", devices=4)
    assert floats_in(msgspec.msgpack.decode(hand.core.snapshot())) == []


def test_the_same_digest_under_any_hash_seed() -> None:
    code = (
        "from groundplane.sim.fuzz import run_seed\n"
        "print(*[run_seed(seed).digest for seed in range(8)], sep='\\n')"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] == [run_seed(seed).digest for seed in range(8)]
