"""Batch systems: templates, submission, walltime, idle nodes."""
