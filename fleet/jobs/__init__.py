"""Chains of batch jobs, harvests, evictions, preflight checks and dry runs.

This package imports engines, storage and spec, but never runtime.
"""
