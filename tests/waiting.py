"""Wait for a condition in tests."""

import time


def wait_until(condition, process=None, seconds=120):
    """Wait until a condition holds; fail if the launch ends before, or after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.02)
    return value
