"""Companions of a run: programs beside it that a launch on its own does not need.

Each folder is one: chains of batch jobs, harvests of idle nodes, evictions, the release of nodes,
requests for walltimes, and launches that share a run. A companion may import everything but
:mod:`fleet.__main__`. Nothing else imports it: the table of commands in :mod:`fleet.__main__` and
the table of hooks in :mod:`fleet.hooks` name its modules, and do without the missing ones.
"""
