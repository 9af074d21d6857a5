"""The controller of a launch, a pure state machine: no MPI, no clock, no disk.

It imports values of other packages.
"""
