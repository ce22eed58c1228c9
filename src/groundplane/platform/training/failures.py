"""How a training run fails other than by what a person wrote (which is `InputError`)."""

from __future__ import annotations

from groundplane.spec.errors import GroundplaneError


class TrainingFailure(GroundplaneError):
    """A run that cannot go on: loss that is no number, a lost rank, an attempt that was superseded. Exit
    code 1."""
