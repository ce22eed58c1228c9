"""What an engine adds to the chip's work: a few fitted numbers, and how far predictions with them were off.

Written by `calibration/fit_serving.py` to `catalog/calibration/serving.json`. Knows nothing of models.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Final

import msgspec
import numpy as np

from groundplane.perfmodel.evidence import Evidence, FloatArray
from groundplane.perfmodel.serving import Iteration
from groundplane.spec.errors import unknown_name


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of one engine (name and class of versions).

    An iteration takes `host_s`, `host_sequence_s` a sequence and `kernel_s` a kernel, beside the chip's work:
    `weights` times products and head, `experts`, `narrow` and `widened` times those of the same
    names, `cache` times reading the cache, `links` times collectives. A prompt adds `prompts` times its work;
    decoding sequences feel `stall` of it. A request waits `request_s` and `request_token_s` for each prompt
    token outside the engine, for `first_tokens` tokens that are sent together (`stream_interval`), and behind
    `line` of the prompts that would be before it if all requests under way arrived at once. `chunk_tokens` is
    the most an iteration takes, `acceptance` the share of drafts that hold.
    """

    name: str
    host_s: float = 1e-3
    host_sequence_s: float = 1e-5
    kernel_s: float = 1.5e-6
    weights: float = 1.0
    experts: float = 1.0
    narrow: float = 1.0
    widened: float = 1.0
    prompts: float = 1.0
    links: float = 1.0
    cache: float = 1.0
    stall: float = 1.0
    request_s: float = 2e-2
    request_token_s: float = 2e-6
    line: float = 0.1
    first_tokens: float = 5.0
    chunk_tokens: float = 8192.0
    acceptance: float = 0.6

    def work_s(self, iteration: Iteration) -> dict[str, FloatArray]:
        """Seconds of an iteration by stage."""
        return {
            "products": self.weights * (iteration.products + iteration.head),
            "experts": self.experts * iteration.experts
            + self.narrow * iteration.narrow
            + self.widened * iteration.widened,
            "attention": self.cache * iteration.attend,
            "prompt_attention": iteration.prompt,
            "memory_bound": iteration.passing,
            "communication": self.links * (iteration.reduce + iteration.exchange),
            "launch": self.kernel_s * iteration.kernels,
        }


FITTED: Final = (
    "host_s", "host_sequence_s", "kernel_s", "weights", "experts", "narrow", "widened",
    "prompts", "links", "cache", "stall",
    "request_s", "request_token_s", "line", "first_tokens",
)  # fmt: skip
"""Numbers of a profile that are fitted to measurements."""


class ServingCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration file: profiles, spreads of time to first token and per token, profiles of the folds.

    `spreads` are keyed "tpot/ENGINE" and "ttft/ENGINE". `without_model` holds, for each model and engine
    ("MODEL/ENGINE"), the profile fitted without any row of that model.
    """

    source: str
    profiles: tuple[EngineProfile, ...]
    spreads: dict[str, Evidence]
    without_model: dict[str, EngineProfile]

    def profile(self, name: str) -> EngineProfile:
        """The profile of an engine.

        Raises:
            InputError: unknown engine.
        """
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise unknown_name("serving engine", name, [profile.name for profile in self.profiles])


@functools.cache
def serving_calibration() -> ServingCalibration:
    """The shipped calibration."""
    text = resources.files("groundplane.catalog").joinpath("calibration", "serving.json").read_bytes()
    return msgspec.json.decode(text, type=ServingCalibration)


def total_s(stages: dict[str, FloatArray]) -> FloatArray:
    """The sum of all stages."""
    return np.asarray(sum(stages.values()), dtype=np.float64)
