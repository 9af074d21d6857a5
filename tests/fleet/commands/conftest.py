"""Fixtures that run commands within this process."""

import json

import pytest

from fleet.__main__ import main


@pytest.fixture
def fleet(capsys):
    """Return a function that runs a command: status, JSON (or text or None), standard error."""

    def run(*words):
        status = main([*map(str, words)])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out.startswith("{") else out or None, err

    return run


@pytest.fixture
def refused(fleet):
    """Return a function that runs a command with invalid arguments: the line that explains it."""

    def run(*words):
        status, out, err = fleet(*words)
        assert (status, out, err.count("\n")) == (2, None, 1)
        return err

    return run
