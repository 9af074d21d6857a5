"""Waiting for what comes."""

import time


def wait_until(condition, process=None, seconds=120):
    """Wait for something that comes, however slow the machine is, unless the launch that should bring it has ended."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.02)
    return value
