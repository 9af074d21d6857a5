"""Which errors may pass when one tries again."""

import errno
import socket
import urllib.error

import pytest

from fleet.errors import CheckpointError, DamagedError, ModelError
from preprocess.passing import may_pass


def after(cause, error=None):
    """An error as Python makes it when it is raised because of another one, or while another is handled."""
    try:
        try:
            raise cause
        except Exception as caught:
            if error is None:
                raise CheckpointError("last.h5 cannot be read") from caught
            raise error  # noqa: B904 - the other way to raise
    except Exception as raised:
        return raised


@pytest.mark.parametrize("error", [
    OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle"), TimeoutError(),
    ConnectionResetError(errno.ECONNRESET, "reset"), after(OSError(errno.ESTALE, "Stale file handle")),
    after(OSError(errno.EIO, ""), RuntimeError("weights cannot be loaded")),
    after(urllib.error.URLError(TimeoutError()), Exception("URL fetch failure")),
    after(urllib.error.URLError(OSError(errno.ENETUNREACH, "")), Exception("URL fetch failure")),
])
def test_what_file_systems_and_networks_do_in_a_bad_moment_may_pass(error):
    assert may_pass(error)


@pytest.mark.parametrize("error", [
    MemoryError("wanted 900 GB"), ValueError("no such layer"), ModelError("a bad model function"), KeyError("x"),
    FileNotFoundError(errno.ENOENT, "No such file"), PermissionError(errno.EACCES, "Permission denied"),
    OSError("Unable to open file (file signature not found)"), DamagedError("last.h5 is torn"),
    after(ValueError("shape"), RuntimeError("layer")), urllib.error.URLError("unknown url type"), None,
    urllib.error.URLError(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
])
def test_what_is_wrong_with_a_network_or_a_name_will_not_pass(error):
    assert not may_pass(error)
