"""A lifecycle as one table: (state, trigger) -> state. What is not in it is illegal and changes nothing.

Reports from outside may be late, repeated or out of order: callers ask `allows` and ignore what does not fit.
`after` is for what the core itself decided, where an illegal step is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping

from groundplane.spec.errors import InvariantError


class Lifecycle:
    """The legal transitions of one kind of thing.

    Args:
        kind: what lives it, in the singular ("job").
        initial: state in which it begins.
        transitions: (state, trigger) -> next state.
    """

    def __init__(self, kind: str, initial: str, transitions: Mapping[tuple[str, str], str]) -> None:
        self.kind = kind
        self.initial = initial
        self.transitions = dict(transitions)
        sources = {state for state, _ in self.transitions}
        self.final = tuple(dict.fromkeys(s for s in self.transitions.values() if s not in sources))

    def allows(self, state: str, trigger: str) -> bool:
        """Whether `trigger` is legal in `state`."""
        return (state, trigger) in self.transitions

    def after(self, state: str, trigger: str) -> str:
        """The state that `trigger` leads to.

        Raises:
            InvariantError: the table has no such transition.
        """
        try:
            return self.transitions[state, trigger]
        except KeyError:
            raise InvariantError(f"a {self.kind} in state {state!r} cannot take {trigger!r}") from None

    def diagram(self) -> str:
        """The table as a mermaid state diagram, one line a transition, in the table's order."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        lines += [f"    {source} --> {to}: {trigger}" for (source, trigger), to in self.transitions.items()]
        lines += [f"    {state} --> [*]" for state in self.final]
        return "\n".join(lines)
