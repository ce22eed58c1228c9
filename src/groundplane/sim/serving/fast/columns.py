"""Names of the columns of the compiled simulator's arrays."""

from __future__ import annotations

# Requests: what was asked, where it is, what came of it. See `reference.work.Work`.
(
    ARRIVAL, PROMPT, OUTPUT, MODEL, PRIORITY, SESSION, HASH_BEGIN, NUM_HASHES,
    GENERATED, COMPUTED, HELD, PRIVATE, PENDING, EXPECTED, SWAPPED, REMOTE, REMOTE_HELD, REMOTE_BLOCKS,
    STEP_JOINED, STEP_GAPS, LEFT, RIGHT,
    LAST_TOKEN, STATE, ADMITTED, FIRST_TOKEN, FINISHED, MAX_GAP, REPLICA, PREFILL_REPLICA,
    HIT_TOKENS, TIER_HIT_TOKENS, PREEMPTIONS, MOVES, TRANSFER, SEEN, WHERE,
) = range(37)  # fmt: skip
NUM_WORK = 37

# Where a request is (column WHERE).
NOWHERE, IN_LINE, IN_PREFILL, IN_DECODE, IN_TRANSFER, IN_GATEWAY = range(6)

# Replicas: see `reference.replica.Replica`. STEP counts decoding iterations, CONTEXT tokens in the caches of
# the sequences that decode, REST their outputs' rest, NEXT_END the step at which the first of them ends.
# LINE and LINE_LENGTH are its line's root and length; ABLE, HITS and HELD_TOKENS what routing looks at.
(
    POOL, STATUS, CHANGE, FREE, STEP, CONTEXT, REST, NEXT_END, LINE, LINE_LENGTH,
    NUM_DECODE, NUM_PREFILL, NUM_TRANSFER, NUM_ARRIVED, NUM_FRESH, NUM_PIECES, NUM_STACK, NUM_HOLDING,
    ITERATING, BEGIN, END, BATCH, TOKENS, LOADS, SWAPS, CAN_JUMP, SWAPPED_BLOCKS, RATIO, EGRESS, INGRESS,
    WAITING_TOKENS, EXPECTED_TOKENS, LAST_DECODE, GROWN, ABLE, HITS, HELD_TOKENS,
    BUSY_NS, READY_NS, UP_NS, ITERATIONS, DECODE_TOKENS, PROMPT_TOKENS, KV_BLOCK_NS, KV_PEAK, KV_SINCE,
    NUM_PREEMPTED, EVICTED_BLOCKS, TRANSFER_NS, STARTS, UP_SINCE, READY_SINCE, KV_CARRIED,
) = range(53)  # fmt: skip
FIRST_SETTING = 53

# What a replica has of its pool, and where the pool's times of iterations begin among the prices.
(
    KIND, ROLE, POOL_MODEL, MAX_SEQUENCES, MAX_BATCHED, RESERVE_PROMPT, SWAP, NUM_BLOCKS, BLOCK_TOKENS,
    UNIT_BLOCKS, UNIT_TOKENS, PREFIX, HOST_NS, DISK_NS, SWAP_BLOCKS, SWAP_NS, MAX_QUEUE, LINK_NS,
    LINK_LATENCY, START_NS, MOST_TOKENS, MIN_REPLICAS, MAX_REPLICAS, TARGET, INTERVAL, UP_PATIENCE,
    DOWN_PATIENCE, DECODE_AT, ROWS_AT, EXTRA_AT, EXTRA_WIDTH, ATTEND_AT, ATTEND_WIDTH, KNOTS_AT, CELLS_AT,
    PROMPT_AT, PROMPT_WIDTH,
) = range(FIRST_SETTING, FIRST_SETTING + 37)  # fmt: skip
NUM_REPLICA = FIRST_SETTING + 37
VLLM, SGLANG, TRTLLM, TRTLLM_MAX = range(4)
BOTH, PREFILL, DECODE = range(3)

# Lists of a replica.
(
    LIST_DECODE, LIST_PREFILL, LIST_TRANSFER, LIST_TRANSFER_END, LIST_ARRIVED, LIST_FRESH, LIST_PIECE,
    LIST_TOKENS, PHASE, STACK_STEP, STACK_GAP,
) = range(11)  # fmt: skip
NUM_LISTS = 11
STACK_DEPTH = 256

# Models: the gateway's lines (root, then length), and counts of gaps from GAPS on.
(
    PREVIOUS, PREVIOUS_DECODE, LONGEST, GATE_LINE, GATE_LENGTH, DECODE_LINE, DECODE_LENGTH, GAPS,
) = range(8)  # fmt: skip

# The simulation. HOMES_AT, FAILURES_AT and POOLS_AT say where in the same array these begin: a session's
# replica; time, replica and time down of a failure; next look and memory of a pool's autoscaling.
(
    NUM_DONE, NEXT_ARRIVAL, NEXT_FAILURE, NEXT_SAMPLE, NUM_SAMPLES, NUM_LOGGED, LOGGING, NOW, COUPLED,
    ROUTING, PROMPT_PERMILLE, FAIL_SENT, MAX_MOVES, MAX_WAITING, SAMPLE_NS, LOG_MARGIN, NUM_FAILURES,
    NUM_POOLS, HOMES_AT, FAILURES_AT, POOLS_AT,
) = range(21)  # fmt: skip
NUM_WORLD = 21
FAILURE_SIZE = 3
POOL_SIZE = 4
ROUND_ROBIN, LEAST_WORK, PREFIX_AWARE, SESSION_HOME = range(4)

# Tables of units, and their places.
FIRST_PLACE, PLACE_MASK, CAPACITY, COUNT, OLDEST, NEWEST, NUM_IDLE = range(7)
NUM_TABLE = 7
KEY, USERS, OLDER, NEWER = range(4)
NUM_PLACE = 4
LEVELS = 3
"""Tables of a replica: chip, host, disk."""

NONE = -1
KV_CARRY = 10**15
"""Block-nanoseconds that KV_CARRIED counts: the whole passes 63 bits in days."""
FOREVER = 1 << 62
