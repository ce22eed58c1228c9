"""The plain simulator: event by event, one object a request, a replica, a cache. Meant to be read.

`fast/` must give the same answer; a change of what happens is made here first.
"""
