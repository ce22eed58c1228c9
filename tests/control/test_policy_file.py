"""Policy files: read, and refused with one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.control.events import PreemptionRules
from groundplane.control.policy import policy_event
from groundplane.spec.errors import InputError
from groundplane.spec.load import load
from groundplane.spec.policy import PolicySpec


def read(tmp_path: Path, text: str) -> PolicySpec:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return load(path, PolicySpec)


def test_a_policy_is_read(tmp_path: Path) -> None:
    policy = read(
        tmp_path,
        "kind: policy\nhalf_life: 2 h\nqueues:\n"
        "  - {name: research, weight: 3, guaranteed_devices: 64}\n"
        "  - {name: vision, parent: research, limit_devices: 32}\n",
    )
    assert policy.half_life_s == 7200.0
    assert [(queue.name, queue.parent, queue.limit_devices) for queue in policy.queues] == [
        ("research", "", None),
        ("vision", "research", 32),
    ]


def test_preemption_is_off_unless_written(tmp_path: Path) -> None:
    assert policy_event(read(tmp_path, "kind: policy\n")).preemption is None
    text = "kind: policy\npreemption: {checkpoint_wait: 2 min, priority_gap: 50}\n"
    rules = policy_event(read(tmp_path, text)).preemption
    assert rules == PreemptionRules(True, 50, 120 * 10**9, 60 * 10**9, 5)
    with pytest.raises(InputError, match="priority_gap"):
        read(tmp_path, "kind: policy\npreemption: {priority_gap: -1}\n")


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ("[{name: a}, {name: a}]", "queues[1].name"),
        ("[{name: team}, {name: a, parent: tem}]", "team"),
        ("[{name: a, parent: b}, {name: b, parent: a}]", "must not be below the queue itself"),
        ("[{name: a, guaranteed_devices: 4, limit_devices: 2}]", "must be at least the guaranteed_devices"),
        (
            "[{name: a, guaranteed_devices: 2}, {name: b, parent: a, guaranteed_devices: 3}]",
            "must be at least 3, what the queues below are guaranteed",
        ),
        ("[{name: a, weight: 0}]", "queues[0].weight"),
        ("[{name: a, wieght: 2}]", "weight"),
    ],
)
def test_what_is_no_policy_is_refused(tmp_path: Path, queues: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, f"kind: policy\nqueues: {queues}\n")
    assert text in str(caught.value)
    assert "policy.yaml" in str(caught.value)
