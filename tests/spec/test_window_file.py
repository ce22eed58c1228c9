"""Window files: read, and refused with one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundplane.control.policy import window_event
from groundplane.spec.errors import InputError
from groundplane.spec.load import load
from groundplane.spec.window import WindowSpec

S = 10**9


def read(tmp_path: Path, text: str) -> WindowSpec:
    path = tmp_path / "window.yaml"
    path.write_text("kind: window\nname: swap\n" + text)
    return load(path, WindowSpec)


def test_a_window_by_the_clock(tmp_path: Path) -> None:
    spec = read(tmp_path, "nodes: [n1, n2]\nduration: 4 h\nbegin_at: 1970-01-02T01:00:00+01:00\n")
    event = window_event(spec, 5 * S)
    assert (event.window_id, event.node_ids, event.queue) == ("swap", ("n1", "n2"), "")
    assert (event.begin_ns, event.end_ns) == (86_400 * S, (86_400 + 4 * 3600) * S)


def test_a_reservation_from_now(tmp_path: Path) -> None:
    later = window_event(read(tmp_path, "nodes: [n1]\nduration: 1 h\nbegin_in: 2 min\nqueue: team\n"), 5 * S)
    assert (later.begin_ns, later.end_ns, later.queue) == (125 * S, 3725 * S, "team")
    assert window_event(read(tmp_path, "nodes: [n1]\nduration: 1 h\n"), 5 * S).begin_ns == 5 * S


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: []\nduration: 1 h\n", "nodes: must name at least one node"),
        ("nodes: [a, a]\nduration: 1 h\n", "nodes[1]: must name each node once"),
        ("nodes: [a]\nduration: 0 s\n", "duration: must be more than 0"),
        ("nodes: [a]\n", "duration"),
        ("nodes: [a]\nduration: 1 h\nbegin_at: 2026-12-05T22:00:00\n", "begin_at: must say its zone"),
        ("nodes: [a]\nduration: 1 h\nbegin_at: tomorrow\n", "begin_at"),
        (
            "nodes: [a]\nduration: 1 h\nbegin_in: 1 h\nbegin_at: 2026-12-05T22:00:00+00:00\n",
            "begin_at and begin_in cannot both be given",
        ),
    ],
)
def test_bad_windows(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "window.yaml" in str(caught.value)
