"""Batch systems: templates, submission, walltime, the jobs that run now."""
