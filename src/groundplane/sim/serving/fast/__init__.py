"""The compiled simulator: the same as `reference`, on arrays, many decoding iterations at a time.

Imported only when a simulation starts: importing numba takes longer than most simulations. State is a few
two-dimensional int64 arrays whose columns have names (`columns.py`); `state.py` makes them. Sequences that
decode are not touched one by one: a replica counts decoding steps, and what a sequence has is known from the
step at which it joined. Between arrivals, ends and shortages of blocks, iterations are a loop over a few
numbers (`batch.jump`).
"""
