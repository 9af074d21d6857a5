"""Commands of batch systems."""

import pytest

from launch.base import InputError, call


def test_what_is_no_text_is_read_all_the_same():
    # For example, the name of another user's job.
    assert call(["printf", r"17 \377\n"]) == "17 \\xff\n"


def test_the_last_words_of_a_command_that_fails_are_told():
    with pytest.raises(InputError, match="sh failed: unknown queue"):
        call(["sh", "-c", "echo first >&2; echo unknown queue >&2; exit 1"])
    with pytest.raises(InputError, match="false failed: exit status 1"):
        call(["false"])
