"""Calls of a command within this process."""

import json

import pytest

from fleet.__main__ import main


@pytest.fixture
def fleet(capsys):
    """Run a command; its status, its JSON (or text, None where it says nothing), and what it complained."""

    def run(*words):
        status = main([*map(str, words)])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out.startswith("{") else out or None, err

    return run


@pytest.fixture
def refused(fleet):
    """Run a command that refuses what it is given; the one line that says why."""

    def run(*words):
        status, out, err = fleet(*words)
        assert (status, out, err.count("\n")) == (2, None, 1)
        return err

    return run
