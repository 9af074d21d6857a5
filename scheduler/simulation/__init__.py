"""What the algorithms would do on machines and days that are not here: event kernel, simulators, traces, drawn work.

One module for each ``fleet simulate`` command, and what feeds it. It imports all families, and no family imports it.
"""
