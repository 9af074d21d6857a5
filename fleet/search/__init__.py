"""Searches: networks that are proposed and pruned during a run; no MPI, no clock, no disk.

It imports values of other packages.
"""
