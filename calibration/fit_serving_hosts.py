"""Fits what a sequence costs the host of a server that the serving tables do not have, to one recorded run.

Called by `fit_serving.py`. The run is of vLLM 0.19 serving Llama-3.1-8B on one RTX PRO 6000 (300 requests at
10 a second, LLMServingSim): its mean time per token decides. The other recorded run, of Qwen3-30B-A3B on two
of these chips, has no part.
"""

from __future__ import annotations

import json
import sys

import common
import msgspec
import numpy as np
from scipy.optimize import brentq

from groundplane.catalog.resolve import resolve_cluster, resolve_llm
from groundplane.perfmodel.serving import IterationPricer
from groundplane.perfmodel.serving_layout import ServingLayout, cache_capacity, formats_of
from groundplane.perfmodel.serving_links import serving_links
from groundplane.perfmodel.serving_loop import LoopLimits, open_loop
from groundplane.perfmodel.serving_profiles import EngineProfile
from groundplane.perfmodel.serving_tables import engine_grids, engine_seconds

FILE = "../traces/llmservingsim-measured/RTXPRO6000/Llama-3.1-8B/vllm/requests.jsonl"
ENGINE = "vllm"
CHIP = "rtx-pro-6000-server"
CHUNK_TOKENS, MOST_SEQUENCES = 2048, 128
"""As the run's `meta.json` states them."""

LEAST_S, MOST_S = 1e-6, 1e-4


def host_sequences(profile: EngineProfile) -> dict[str, float]:
    """Seconds a sequence by "ENGINE/CHIP"."""
    with (common.measured_folder() / FILE).open(encoding="utf-8") as handle:
        rows = sorted((json.loads(line) for line in handle), key=lambda row: row["queued_ts"])
    prompt, output = (np.array([float(row[name]) for row in rows]) for name in ("input_toks", "output_toks"))
    arrivals = np.array([row["queued_ts"] - rows[0]["queued_ts"] for row in rows])
    decoding = np.array([row["last_token_ts"] - row["first_token_ts"] for row in rows])
    several = output > 1
    measured_s = float(np.mean(decoding[several] / (output[several] - 1.0)))
    cluster, model = resolve_cluster(f"{CHIP}x1"), resolve_llm("llama-3.1-8b")
    formats = formats_of(model, "bf16", "bf16")
    pricer = IterationPricer(
        cluster.chip, serving_links(cluster), model, ServingLayout(), formats, engine=ENGINE
    )
    grids = engine_grids(pricer)
    tokens = cache_capacity(cluster.chip, model, ServingLayout(), formats).num_tokens

    def beyond_s(sequence_s: float) -> float:
        own = msgspec.structs.replace(profile, host_sequence_s=sequence_s)
        limits = LoopLimits(CHUNK_TOKENS, MOST_SEQUENCES, float(tokens))
        times = open_loop(engine_seconds(grids, own), limits, prompt, output, arrivals)
        return float(np.mean(times.decode_s[several] / (output[several] - 1.0))) - measured_s

    found = float(brentq(beyond_s, LEAST_S, MOST_S, rtol=1e-3))
    usual_s = profile.host_sequence_s
    sys.stdout.write(f"{ENGINE} on {CHIP}: {found:.3g} s a sequence, {usual_s:.3g} elsewhere\n")
    return {f"{ENGINE}/{CHIP}": float(f"{found:.3g}")}
