"""The iteration table and the cache of an engine, from the performance model's description of it."""

from __future__ import annotations

from typing import Final

import numpy as np

from groundplane.perfmodel.serving import Iteration, IterationPricer
from groundplane.perfmodel.serving_layout import CacheCapacity
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.sim.serving.deployment import CacheSpec
from groundplane.sim.serving.iteration import FloatArray, IterationTable, PriceParts, tabulate

_ATTEND: Final = "attention"
_PROMPT: Final = "prompt_attention"


def engine_table(
    pricer: IterationPricer,
    profile: EngineProfile,
    *,
    max_sequences: int = 256,
    max_batched_tokens: int = 8192,
    max_context: int = 131072,
) -> IterationTable:
    """The table of one engine (of one rank of it, with data-parallel attention).

    Args:
        pricer: prices the chip's work of model, layout and formats.
        profile: what the engine adds.
        max_sequences, max_batched_tokens, max_context: bounds of an iteration and of a sequence.
    """
    return tabulate(
        engine_parts(pricer, profile),
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        max_context=max_context,
    )


def engine_parts(pricer: IterationPricer, profile: EngineProfile) -> PriceParts:
    """The three parts of an iteration's time under a profile; prompts stretch it by `profile.prompts`."""

    def parts(
        decode: FloatArray, context: FloatArray, prefill: FloatArray, before: FloatArray, prompts: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        quiet = _split(profile, pricer.price(decode, context))
        mixed = _split(profile, pricer.price(decode, context, prefill, before, prompts))
        some = np.where(prefill > 0, prompts, 0.0)
        rest = quiet[0] + profile.prompts * np.where(prefill > 0, mixed[0] - quiet[0], 0.0)
        rest = rest + profile.host_s + profile.host_sequence_s * (decode + some)
        rest = rest + np.where(prefill > 0, profile.prompt_host_s, 0.0)
        return rest, quiet[1], profile.prompts * mixed[2]

    return parts


def _split(profile: EngineProfile, iteration: Iteration) -> tuple[FloatArray, FloatArray, FloatArray]:
    stages = profile.work_s(iteration)
    rest = sum(seconds for name, seconds in stages.items() if name not in (_ATTEND, _PROMPT))
    return np.asarray(rest, dtype=np.float64), stages[_ATTEND], stages[_PROMPT]


def cache_spec(capacity: CacheCapacity, *, prefix: bool = True) -> CacheSpec:
    """The cache that is left of the chips' memory, without lower tiers."""
    return CacheSpec(num_blocks=capacity.num_blocks, block_tokens=capacity.block_tokens, prefix=prefix)
