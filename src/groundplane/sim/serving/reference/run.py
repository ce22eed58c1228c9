"""Runs the plain simulator and gathers what came of it."""

from __future__ import annotations

import numpy as np

from groundplane.sim.serving.outcome import (
    NUM_GAP_BINS,
    EventLog,
    IntArray,
    Outcome,
    ReplicaTotals,
    Samples,
)
from groundplane.sim.serving.prepare import Prepared
from groundplane.sim.serving.reference.service import Service


def run(prepared: Prepared) -> Outcome:
    """Simulates, always with the log."""
    service = Service(prepared)
    service.run()
    works, replicas = service.works, service.replicas

    def of(name: str) -> IntArray:
        return np.array([getattr(work, name) for work in works], dtype=np.int64)

    def totals(name: str) -> IntArray:
        return np.array([getattr(replica, name) for replica in replicas], dtype=np.int64)

    gap_counts = np.zeros((prepared.num_models, NUM_GAP_BINS), dtype=np.int64)
    for model, counts in enumerate(service.gap_counts):
        for place, count in counts.items():
            gap_counts[model, place] = count
    rows = np.array([row for _, row in service.samples], dtype=np.int64).reshape(-1, len(replicas), 4)
    events = sorted(service.events, key=lambda event: (event[0], event[2]))
    columns = np.array(events, dtype=np.int64).reshape(-1, 6)
    return Outcome(
        state=of("state"),
        admitted_ns=of("admitted_ns"),
        first_token_ns=of("first_token_ns"),
        finish_ns=of("finish_ns"),
        max_gap_ns=of("max_gap_ns"),
        replica=of("replica"),
        prefill_replica=of("prefill_replica"),
        hit_tokens=of("hit_tokens"),
        tier_hit_tokens=of("tier_hit_tokens"),
        output_tokens=of("generated"),
        preemptions=of("preemptions"),
        moves=of("moves"),
        transfer_ns=of("transfer_ns"),
        gap_counts=gap_counts,
        replicas=ReplicaTotals(
            pool=prepared.pool_of.astype(np.int64),
            busy_ns=totals("busy_ns"),
            ready_ns=totals("ready_ns"),
            up_ns=totals("up_ns"),
            iterations=totals("iterations"),
            decode_tokens=totals("decode_tokens"),
            prompt_tokens=totals("prompt_tokens"),
            kv_block_ns=np.array([replica.kv_block_ns for replica in replicas], dtype=np.float64),
            kv_peak_blocks=totals("kv_peak_blocks"),
            preemptions=totals("preemptions"),
            evicted_blocks=np.array([replica.cache.evicted_blocks for replica in replicas], dtype=np.int64),
            transfer_ns=totals("transfer_ns"),
            starts=totals("starts"),
        ),
        samples=Samples(
            time_ns=np.array([time_ns for time_ns, _ in service.samples], dtype=np.int64),
            used_blocks=rows[:, :, 0],
            cached_blocks=rows[:, :, 1],
            running=rows[:, :, 2],
            waiting=rows[:, :, 3],
        ),
        end_ns=service.now_ns,
        log=EventLog(*(np.ascontiguousarray(columns[:, place]) for place in range(6))),
    )
