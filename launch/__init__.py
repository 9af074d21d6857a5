"""Batch systems and the machine beneath a rank: scripts, submission, walltime, cores, GPUs; imports the standard
library.
"""
