"""Requests for walltimes, from past or simulated runs; imports batch_jobs and chains."""
