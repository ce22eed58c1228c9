"""Works as local processes: one keeper a work, which starts its ranks and ends the whole tree with proof.

Import `LocalEngine` from `.engine` and `sweep` from `.sweep`; nothing is imported here, so that a keeper
starts quickly.
"""
