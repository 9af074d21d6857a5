"""Chains of batch jobs, of which each continues the run; imports batch_jobs."""
