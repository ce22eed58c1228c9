"""Iterations of one engine on grids: priced once, turned into seconds for every profile that is tried.

Dense work follows the rows of the busiest data-parallel rank, experts and their exchange the rows of all
ranks: ranks run in lock step. Knows nothing of queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from groundplane.perfmodel.evidence import FloatArray
from groundplane.perfmodel.serving import Iteration, IterationPricer
from groundplane.perfmodel.serving_profiles import EngineProfile

ROW_STEPS: Final = 8
CELL_STEPS: Final = 3
"""Grid points an octave: of rows, and of the two-dimensional grids."""

MOST_ROWS: Final = 32768
MOST_SEQUENCES: Final = 4096
MOST_CONTEXT: Final = 262144


def grid(most: float, steps: int) -> FloatArray:
    """1 to at least `most`, `steps` points an octave."""
    return np.asarray(2.0 ** (np.arange(int(np.ceil(np.log2(most) * steps)) + 1) / steps), dtype=np.float64)


@dataclass(frozen=True)
class EngineGrids:
    """Iterations by rows, cache reads by (sequences, context), attention of prompts by (tokens, before)."""

    rows: Iteration
    reading: FloatArray
    prompts: FloatArray
    ranks: int
    drafts: float


@dataclass(frozen=True)
class EngineSeconds:
    """The same in seconds under a profile: what `serving_loop` runs on.

    `dense_s` and `expert_s` by rows of a rank, `head_s` by rows that yield a token, `reading_s` and
    `prompt_s` as the grids; `host_s` an iteration, `prompt_host_s` more with prompts, and `host_sequence_s` a
    sequence. `prompts` multiplies what prompts add. `tokens` a sequence gains in an iteration.
    """

    dense_s: FloatArray
    expert_s: FloatArray
    head_s: FloatArray
    reading_s: FloatArray
    prompt_s: FloatArray
    host_s: float
    host_sequence_s: float
    prompts: float
    tokens: float
    ranks: int = 1
    prompt_host_s: float = 0.0


def engine_grids(pricer: IterationPricer, drafts: float = 0.0) -> EngineGrids:
    """Prices the grids of an engine; `drafts` are tokens that speculative decoding proposes at a time."""
    queries = 1.0 + drafts
    rows = pricer.price(grid(MOST_ROWS, ROW_STEPS), 1.0)
    sequences, context = grid(MOST_SEQUENCES, CELL_STEPS), grid(MOST_CONTEXT, CELL_STEPS)
    reading = pricer.price(sequences[:, None], context[None, :], queries=queries).attend
    tokens, before = grid(MOST_ROWS, CELL_STEPS), np.concatenate([[0.0], grid(MOST_CONTEXT, CELL_STEPS)])
    prompt = pricer.price(0.0, 1.0, tokens[:, None], before[None, :]).prompt
    return EngineGrids(rows, reading, prompt, pricer.layout.attention_dp, drafts)


def engine_seconds(grids: EngineGrids, profile: EngineProfile) -> EngineSeconds:
    """The grids in seconds under a profile."""
    rows = grids.rows
    accepted = tokens_per_iteration(grids.drafts, profile.acceptance)
    return EngineSeconds(
        dense_s=profile.weights * rows.products
        + rows.passing
        + profile.links * rows.reduce
        + profile.floors * rows.floors
        + profile.kernel_s * rows.kernels,
        expert_s=profile.experts * rows.experts + profile.links * rows.exchange,
        head_s=profile.weights * rows.head,
        reading_s=profile.cache * grids.reading,
        prompt_s=grids.prompts,
        host_s=profile.host_s,
        host_sequence_s=profile.host_sequence_s,
        prompts=profile.prompts,
        tokens=accepted,
        ranks=grids.ranks,
        prompt_host_s=profile.prompt_host_s,
    )


def tokens_per_iteration(drafts: float, acceptance: float) -> float:
    """Tokens that a sequence gains in an iteration: 1 + a + a^2 + ... up to the drafts (Leviathan 2023)."""
    return float((1.0 - acceptance ** (drafts + 1.0)) / (1.0 - acceptance))
