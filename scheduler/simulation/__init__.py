"""Simulate the algorithms: event kernel, simulators, traces, random workloads.

One module for each ``fleet simulate`` command, and what feeds it. It imports all families, and no
family imports it.
"""
