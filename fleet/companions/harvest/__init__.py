"""Harvests: jobs that train on idle nodes and may be preempted; imports batch_jobs."""
