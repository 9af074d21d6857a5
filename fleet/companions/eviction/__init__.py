"""Evictions: they free nodes of a cluster in time; imports batch_jobs and node_release."""
