"""Check what an error names, whatever its words."""

from contextlib import contextmanager

import pytest


@contextmanager
def refused(error, *names):
    """Check that an error is raised whose message contains each of some places and values.

    Args:
        error: the expected type of exception.
        names: what the message must contain: files, keys, values.
    """
    with pytest.raises(error) as refusal:
        yield refusal
    message = str(refusal.value)
    missing = [name for name in names if str(name) not in message]
    assert not missing, f"{missing} not in: {message}"
