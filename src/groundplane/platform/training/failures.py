"""How a training run fails other than by what a person wrote (which is `InputError`)."""

from __future__ import annotations

from groundplane.spec.errors import GroundplaneError


class TrainingFailure(GroundplaneError):
    """A run that cannot go on: loss that is no number, a lost rank, a superseded attempt, a full disk.

    Args:
        message: one line.
        exit_code: 1, or 2 where starting again would fail in the same way until a person acts.
    """

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
