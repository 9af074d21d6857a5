"""Messages of C++ libraries go into the log, all other output to the screen."""

import logging
import os
import subprocess
import sys

import pytest

from launch.library_messages import logged_messages

LINE = b"E0000 00:00:1795974231.753164     919 cuda_platform.cc:52] failed call to cuInit\n"


def test_messages_of_libraries_are_logged(capfd, caplog):
    with caplog.at_level(logging.INFO), logged_messages():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are ...\n")
        os.write(2, LINE)
        os.write(2, LINE.replace(b"E0000", b"I0000"))
    assert capfd.readouterr().err == ""
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "failed call to cuInit"),
        ("INFO", "failed call to cuInit"),
    ]


def test_all_other_output_is_printed(capfd):
    with logged_messages():
        os.write(2, b"malloc(): corrupted\n" + LINE)
    assert capfd.readouterr().err == "malloc(): corrupted\n"


def test_windows_may_be_nested(capfd):
    with logged_messages(), logged_messages():
        os.write(2, LINE)
    assert capfd.readouterr().err == ""


def test_output_is_printed_despite_an_error(capfd):
    def load():
        with logged_messages():
            os.write(2, b"why\n")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        load()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "why\nafter\n"


def test_output_of_python_is_printed_at_once():
    program = (
        "import os, sys; from launch.library_messages import logged_messages\n"
        "with logged_messages():\n"
        "    print('now', file=sys.stderr); os._exit(3)"
    )
    process = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE)
    assert (process.returncode, process.stderr) == (3, b"now\n")
