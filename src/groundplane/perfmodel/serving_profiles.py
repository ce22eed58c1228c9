"""What an engine adds to the chip's work: a few fitted numbers, and how far predictions with them were off.

Written by `calibration/fit_serving.py` to `catalog/calibration/serving.json`. Knows nothing of models but
their names: what was measured of one under an engine corrects predictions for it.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Final, Literal

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import Evidence, FloatArray
from groundplane.perfmodel.serving import Iteration
from groundplane.spec.errors import unknown_name

Timing = Literal["ttft", "tpot"]


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of one engine (name and class of versions).

    An iteration takes `host_s`, `host_sequence_s` a sequence, `floors` times the floors of kernels (one
    begins before the last has ended) and `kernel_s` for each of the others, beside the chip's work: `weights`
    times products and head, `experts` times those of the same name, `cache` times reading the cache, `links`
    times collectives. A prompt adds `prompts` times its work, and `prompt_host_s` to the iteration. A request
    waits `request_s` and `request_token_s` for each prompt token outside the engine, `echo` times its own
    prompt's work and `first_tokens` tokens more for its first token, and `handover_s` where prefill and
    decode are apart; `rush` is the weight in the mean of first requests, which all clients send at once.
    `chunk_tokens` and `max_sequences` are the most an iteration takes, `prompts_first` says that prompts and
    decoding do not share one; `acceptance` is the share of drafts that hold.
    """

    name: str
    host_s: float = 1e-3
    host_sequence_s: float = 1e-5
    kernel_s: float = 1.5e-6
    floors: float = 0.7
    weights: float = 1.0
    experts: float = 1.0
    prompts: float = 1.0
    links: float = 1.0
    cache: float = 1.0
    prompt_host_s: float = 2e-3
    request_s: float = 2e-2
    request_token_s: float = 2e-6
    first_tokens: float = 2.0
    echo: float = 0.5
    rush: float = 0.1
    handover_s: float = 5e-2
    chunk_tokens: float = 8192.0
    max_sequences: float = 1024.0
    prompts_first: bool = False
    acceptance: float = 0.6

    def work_s(self, iteration: Iteration) -> dict[str, FloatArray]:
        """Seconds of an iteration by stage."""
        return {
            "products": self.weights * (iteration.products + iteration.head),
            "experts": self.experts * iteration.experts,
            "attention": self.cache * iteration.attend,
            "prompt_attention": iteration.prompt,
            "memory_bound": iteration.passing,
            "communication": self.links * (iteration.reduce + iteration.exchange),
            "launch": self.floors * iteration.floors + self.kernel_s * iteration.kernels,
        }


FITTED: Final = (
    "host_s", "host_sequence_s", "kernel_s", "floors", "weights", "experts", "prompts", "links", "cache",
    "prompt_host_s", "request_s", "request_token_s", "first_tokens", "echo", "rush", "handover_s",
)  # fmt: skip
"""Numbers of a profile that are fitted to measurements."""


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to multiply predicted times by, from so many runs of the same kind."""

    ttft: float
    tpot: float
    num_points: int


class ServingCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration file.

    `corrections` are keyed "ENGINE/MODEL" and, beyond those, "ENGINE/MODEL/CHIP/WEIGHTS". `spreads` are keyed
    "tpot/ENGINE" and "ttft/ENGINE" for (model, chip) pairs that were not measured, with "/seen" behind for
    those that were. `without_model` holds, for each model and engine ("MODEL/ENGINE"), the profile fitted
    without any run of that model. `host_sequences_s`, keyed "ENGINE/CHIP", stand in for `host_sequence_s` on
    hosts that a recorded run shows to be slower than those of the tables.
    """

    source: str
    profiles: tuple[EngineProfile, ...]
    spreads: dict[str, Evidence]
    corrections: dict[str, Correction]
    without_model: dict[str, EngineProfile]
    host_sequences_s: dict[str, float] = {}

    def profile(self, name: str, chip: str = "") -> EngineProfile:
        """The profile of an engine; with a chip, as the hosts of its servers run it.

        Raises:
            InputError: unknown engine.
        """
        for profile in self.profiles:
            if profile.name == name:
                sequence_s = self.host_sequences_s.get(f"{name}/{chip}", profile.host_sequence_s)
                return msgspec.structs.replace(profile, host_sequence_s=sequence_s)
        raise unknown_name("serving engine", name, [profile.name for profile in self.profiles])

    def correction(self, engine: str, model: str, chip: str, weights: str) -> Correction:
        """The correction of runs of that kind, both levels multiplied; none where nothing was measured."""
        return correction_in(self.corrections, engine, model, chip, weights)

    def spread(self, what: Timing, engine: str, model: str, chip: str, weights: str) -> Evidence:
        """How far predictions of that kind were off: wide for a model and chip that was not measured."""
        seen = f"{engine}/{model}/{chip}/{weights}" in self.corrections
        return self.spreads[f"{what}/{engine}/seen" if seen else f"{what}/{engine}"]


def correction_in(
    corrections: dict[str, Correction], engine: str, model: str, chip: str, weights: str
) -> Correction:
    """As `ServingCalibration.correction`, among some corrections.

    Only where the model was measured on the chip, in whatever format: a factor of another chip says more of
    that chip's kernels than of the model.
    """
    near = f"{engine}/{model}/{chip}/"
    if not any(key.startswith(near) for key in corrections):
        return Correction(1.0, 1.0, 0)
    levels = (f"{engine}/{model}", near + weights)
    found = [corrections[key] for key in levels if key in corrections]
    return Correction(
        ttft=float(np.prod([one.ttft for one in found])),
        tpot=float(np.prod([one.tpot for one in found])),
        num_points=min(one.num_points for one in found),
    )


@functools.cache
def serving_calibration() -> ServingCalibration:
    """The shipped calibration."""
    text = resources.files("groundplane.catalog").joinpath("calibration", "serving.json").read_bytes()
    return msgspec.json.decode(text, type=ServingCalibration)


def total_s(stages: dict[str, FloatArray]) -> FloatArray:
    """The sum of all stages."""
    return np.asarray(sum(stages.values()), dtype=np.float64)
