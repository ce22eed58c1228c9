"""The compiled inside of `serving_loop`: see there for what it does.

Arrays instead of objects throughout, since numba compiles it. A rank's waiting requests form a linked list;
the ends of running ones lie in a binary heap, ordered by the count of decoding iterations at which they
end.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from groundplane.perfmodel.serving_tables import CELL_STEPS, ROW_STEPS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@numba.njit(cache=True, inline="always")
def _place(value: float, steps: int, last: int) -> tuple[int, float]:
    """Cell of a geometric grid and the share of the way through it, linear in the value."""
    if value <= 1.0:
        return 0, 0.0
    exact = np.log2(value) * steps
    cell = min(int(exact), last - 1)
    low = 2.0 ** (cell / steps)
    high = 2.0 ** ((cell + 1) / steps)
    return cell, min((value - low) / (high - low), 1.0)


@numba.njit(cache=True)
def on_line(table: Floats, value: float) -> float:
    """A table by rows at a value."""
    cell, share = _place(value, ROW_STEPS, table.size - 1)
    return float(table[cell] + (table[cell + 1] - table[cell]) * share)


@numba.njit(cache=True)
def on_plane(table: Floats, first: float, second: float, shift: int) -> float:
    """Bilinear; with `shift` 1 the second grid begins with a zero."""
    row, down = _place(first, CELL_STEPS, table.shape[0] - 1)
    if shift == 1 and second < 1.0:
        column, right = 0, second
    else:
        column, right = _place(second, CELL_STEPS, table.shape[1] - 1 - shift)
        column += shift
    upper = table[row, column] + (table[row, column + 1] - table[row, column]) * right
    lower = table[row + 1, column] + (table[row + 1, column + 1] - table[row + 1, column]) * right
    return float(upper + (lower - upper) * down)


@numba.njit(cache=True)
def _push(keys: Integers, items: Integers, size: int, key: int, item: int) -> None:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and items[parent] < item):
            break
        keys[place], items[place] = keys[parent], items[parent]
        place = parent
    keys[place], items[place] = key, item


@numba.njit(cache=True)
def _pop(keys: Integers, items: Integers, size: int) -> None:
    """Removes the first of `size` entries."""
    key, item = keys[size - 1], items[size - 1]
    last = size - 1
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            keys[other] < keys[child] or (keys[other] == keys[child] and items[other] < items[child])
        ):
            child = other
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[place], items[place] = keys[child], items[child]
        place = child
    keys[place], items[place] = key, item


@numba.njit(cache=True)
def run_loop(
    dense: Floats, expert: Floats, head: Floats, reading: Floats, prompt_s: Floats, scales: Floats,
    limits: Integers, cache_tokens: float, think_s: float, prompt: Floats, output: Floats, steps: Integers,
    arrivals: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Time to first token and time of the end of each request; fills in `arrivals` of a closed loop."""
    host_s, host_sequence_s, prompt_scale, gained = scales[0], scales[1], scales[2], scales[3]
    prompt_host_s = scales[4]
    chunk, most, ranks, first, known = limits[0], limits[1], limits[2], limits[3], limits[4]
    total = prompt.size
    ttft, end = np.zeros(total), np.zeros(total)
    following, rank_of = np.full(total, -1, np.int64), np.zeros(total, np.int64)
    done = np.zeros(total)
    keys, items, heap = np.zeros(total, np.int64), np.zeros(total, np.int64), 0
    heads, tails = np.full(ranks, -1, np.int64), np.full(ranks, -1, np.int64)
    running, held, taken = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.zeros(ranks)
    context, reserved, waiting = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks, np.int64)
    finished = np.zeros(total, np.int64)
    now, clock, arrived, ended = 0.0, 0, 0, 0
    while ended < total:
        while arrived < known and arrivals[arrived] <= now:
            best = 0
            for r in range(1, ranks):
                if waiting[r] + held[r] < waiting[best] + held[best]:
                    best = r
            rank_of[arrived] = best
            waiting[best] += 1
            if heads[best] < 0:
                heads[best] = arrived
            else:
                following[tails[best]] = arrived
            tails[best] = arrived
            arrived += 1
        # Prompts of this iteration.
        num_finished, prompt_seconds, any_prompt, sum_taken, sum_running = 0, 0.0, False, 0.0, 0
        for r in range(ranks):
            taken[r] = 0.0
            budget = float(chunk) - (0.0 if first == 1 else running[r] * gained)
            seconds = 0.0
            while heads[r] >= 0 and budget >= 1.0:
                one = heads[r]
                if done[one] == 0.0:
                    need = prompt[one] + 0.5 * output[one]
                    if held[r] >= most or (reserved[r] + need > cache_tokens and held[r] > 0):
                        break
                    held[r] += 1
                    reserved[r] += need
                part = min(budget, prompt[one] - done[one])
                seconds += on_plane(prompt_s, part, done[one], 1)
                done[one] += part
                budget -= part
                taken[r] += part
                if done[one] >= prompt[one]:
                    finished[num_finished] = one
                    num_finished += 1
                    waiting[r] -= 1
                    heads[r] = following[one]
            any_prompt = any_prompt or taken[r] > 0.0
            prompt_seconds = max(prompt_seconds, seconds)
            sum_taken += taken[r]
            sum_running += running[r]
        if not any_prompt and sum_running == 0:
            now = max(now, arrivals[arrived])
            continue
        decodes = sum_running > 0 and not (first == 1 and any_prompt)
        count = 1
        if not any_prompt:
            count = max(keys[0] - clock, 1)
        # The busiest rank sets the pace of dense work and attention, the mean that of experts.
        most_rows, most_running, read = 0.0, 0, 0.0
        for r in range(ranks):
            alone = running[r] * gained if decodes else 0.0
            most_rows = max(most_rows, alone + taken[r])
            if decodes and running[r] > 0:
                most_running = max(most_running, running[r])
                mean = context[r] / running[r] + 0.5 * count * gained
                read = max(read, on_plane(reading, float(running[r]), mean, 0))
        mean_running = sum_running * gained / ranks if decodes else 0.0
        quiet = host_s + host_sequence_s * most_running + read
        if decodes:
            quiet += on_line(dense, most_running * gained) + on_line(expert, mean_running)
            quiet += on_line(head, most_running * gained)
        step = quiet
        if any_prompt:
            rows = on_line(dense, most_rows) + on_line(expert, mean_running + sum_taken / ranks)
            if decodes:
                rows -= on_line(dense, most_running * gained) + on_line(expert, mean_running)
            else:
                rows += on_line(head, 1.0)
            step += prompt_host_s + prompt_scale * (rows + prompt_seconds)
        if count > 1 and arrived < known:
            count = min(count, max(int((arrivals[arrived] - now) / step) + 1, 1))
        now += count * step
        for place in range(num_finished):
            one = finished[place]
            ttft[one] = now - arrivals[one]
        if decodes:
            clock += count
            for r in range(ranks):
                context[r] += count * running[r] * gained
        for place in range(num_finished):
            one = finished[place]
            running[rank_of[one]] += 1
            context[rank_of[one]] += prompt[one]
            _push(keys, items, heap, clock + steps[one], one)
            heap += 1
        while heap > 0 and keys[0] <= clock:
            one = items[0]
            _pop(keys, items, heap)
            heap -= 1
            r = rank_of[one]
            running[r] -= 1
            held[r] -= 1
            context[r] = max(context[r] - prompt[one] - steps[one] * gained, 0.0)
            reserved[r] -= prompt[one] + 0.5 * output[one]
            end[one] = now
            ended += 1
            if known < total:
                arrivals[known] = now + think_s
                known += 1
    return ttft, end


@numba.njit(cache=True)
def queue_mean(clients: int, requests: int, servers: int, service_s: float, between_s: float) -> float:
    """See `serving_loop.queued_s`. With equal services, clients are served in the order they came, by the
    server that has been free longest: two rings."""
    arrivals, free = np.zeros(clients), np.zeros(servers)
    total = 0.0
    for one in range(requests):
        client, server = one % clients, one % servers
        done = max(arrivals[client], free[server]) + service_s
        total += done - arrivals[client]
        free[server] = done
        arrivals[client] = done + between_s
    return total / requests
