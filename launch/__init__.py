"""Batch systems and the machine of a rank: scripts, submission, walltime, cores and GPUs.

It imports only the standard library.
"""
