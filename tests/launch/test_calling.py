"""Commands of batch systems."""

import pytest

from launch.base import call
from launch.errors import InputError


def test_call_reads_output_that_is_not_utf_8():
    # For example, the name of another user's job.
    assert call(["printf", r"17 \377\n"]) == "17 \\xff\n"


def test_call_quotes_the_last_line_of_a_failed_command():
    with pytest.raises(InputError, match="sh failed: unknown queue"):
        call(["sh", "-c", "echo first >&2; echo unknown queue >&2; exit 1"])
    with pytest.raises(InputError, match="false failed: exit status 1"):
        call(["false"])
