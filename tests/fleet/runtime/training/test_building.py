"""Building networks within a time limit, in the main thread of a process."""

import os
import subprocess
import sys
import time

import pytest

from fleet.errors import ModelError
from tests.places import ROOT

pytest.importorskip("mpi4py")


def build_within(*arguments):
    from fleet.runtime.training.building import build_within

    return build_within(*arguments)


def sleep_stubbornly():
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def raising(error):
    def build():
        raise error

    return build


def test_build_within_returns_result_in_time():
    assert build_within(0.05, lambda: 5) == 5
    time.sleep(0.1)


def test_build_within_interrupts_hanging_function():
    with pytest.raises(
        ModelError,
        match=rf"building took longer than 0.1 s \(train.build_timeout\); it was at "
        rf"{__file__}, line \d+, in sleep_stubbornly",
    ):
        build_within(0.1, sleep_stubbornly)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), r"it exited, by sys.exit\(3\)"),
        (KeyboardInterrupt(), "it raised KeyboardInterrupt"),
        (GeneratorExit(), "it raised GeneratorExit"),
    ],
)
def test_build_within_turns_base_exceptions_into_failures(error, reason):
    with pytest.raises(ModelError, match=reason):
        build_within(5.0, raising(error))


def test_build_within_raises_exceptions_unchanged():
    with pytest.raises(ZeroDivisionError):
        build_within(5.0, raising(ZeroDivisionError()))


def test_build_within_turns_interrupts_into_failures():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(ModelError, match="KeyboardInterrupt"):
        build_within(5.0, interrupted)


def test_build_within_runs_background_tasks():
    calls = []
    build_within(
        5.0, lambda: time.sleep(1.2) or time.sleep(0.1), lambda: calls.append(time.monotonic())
    )
    assert calls


def test_kill_after_kills_a_blocked_process():
    program = (
        "import ctypes\nfrom fleet.runtime.training.building import kill_after\n"
        "with kill_after(0.2):\n"
        "    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)\n"
        "    libc.pthread_mutex_lock(mutex)\n    libc.pthread_mutex_lock(mutex)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert ended.returncode == -9
