"""Code of users does not change the state of the process."""

import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest

from preprocess.user_code import (
    SETTINGS,
    UserCode,
    abandon,
    exclusive_generators,
    import_user_module,
    register,
    restoring_process,
)

CHANGES = {
    "cwd": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(FLEET_TEST="1"),
    "limit": lambda: sys.setrecursionlimit(4321),
    "path": lambda: sys.path.append("/nowhere"),
    "warnings": lambda: warnings.simplefilter("error"),
    "level": lambda: logging.getLogger("fleet").setLevel(7),
    "disabled": lambda: logging.disable(logging.CRITICAL),
    "handler": lambda: logging.getLogger().addHandler(logging.NullHandler()),
    "errors": lambda: np.seterr(all="raise"),
    "printing": lambda: np.set_printoptions(precision=1),
    "output": lambda: setattr(sys, "stdout", None),
    "mask": lambda: os.umask(0o077),
    "python": lambda: random.seed(1),
    "numpy": lambda: np.random.seed(1),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
}


def state():
    return {name: setting.get() for name, setting in SETTINGS.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_user_code_changes_are_restored(change):
    before = state()
    with UserCode().running():
        CHANGES[change]()
    assert state() == before
    with suppress(ZeroDivisionError), UserCode().running():
        CHANGES[change]()
        raise ZeroDivisionError
    assert state() == before


def test_handlers_of_signals_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with UserCode().running():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


def test_code_goes_on_with_its_own_random_numbers():
    first, second = UserCode(), UserCode()
    with first.running():
        random.seed(5)
        np.random.seed(5)
    drawn = []
    for code in (second, first, second, first):
        with code.running():
            drawn.append((random.random(), np.random.rand()))
    random.seed(5)
    np.random.seed(5)
    assert drawn[1::2] == [(random.random(), np.random.rand()) for _ in range(2)]


def test_code_finds_its_environment_but_not_its_folder():
    code, folder = UserCode(), os.getcwd()
    with code.running():
        os.environ["FLEET_TEST"] = "1"
        os.chdir("/")
    assert "FLEET_TEST" not in os.environ
    with code.running():
        assert (os.environ["FLEET_TEST"], os.getcwd()) == ("1", folder)


def test_two_threads_leave_the_process_as_it_was():
    before, inside, go = os.getcwd(), threading.Event(), threading.Event()

    def work():
        with UserCode().running():
            os.chdir("/")
            inside.set()
            go.wait(5)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(5)
    with UserCode().running():
        os.chdir("/tmp")
    go.set()
    thread.join()
    assert os.getcwd() == before


def test_exclusive_generators_are_seeded_by_no_other_thread():
    drawn = []

    def transform():
        with exclusive_generators():
            random.seed(2)

    with exclusive_generators():
        random.seed(1)
        thread = threading.Thread(target=transform)
        thread.start()
        thread.join(0.1)
        drawn.append(random.random())
    thread.join()
    assert drawn == [random.Random(1).random()]


def test_exclusive_generators_do_not_wait_for_a_hung_thread(monkeypatch):
    monkeypatch.setattr("preprocess.user_code._PATIENCE_S", 0.01)
    inside, go = threading.Event(), threading.Event()

    def hang():
        with exclusive_generators():
            inside.set()
            go.wait(5)

    thread = threading.Thread(target=hang)
    thread.start()
    inside.wait(5)
    with exclusive_generators():
        assert thread.is_alive()
    go.set()
    thread.join()


def test_import_user_module_is_the_same_in_every_process(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "drawing.py").write_text(
        "import os, random\nos.environ['FLEET_TEST'] = 'x'\nDRAWN = random.random()\n"
    )
    random.seed(3)
    expected = random.random()
    for code in (UserCode(), UserCode()):
        random.seed(3)
        with code.running():
            drawn = import_user_module("drawing").DRAWN
            assert os.environ["FLEET_TEST"] == "x"
        assert random.random() == expected
    random.seed(0)
    assert drawn == random.random()
    assert "FLEET_TEST" not in os.environ
    sys.modules.pop("drawing")


def test_user_code_state_lasts_over_several_calls():
    before = os.getcwd()
    with restoring_process():
        os.chdir("/")
        with UserCode().running():
            assert os.getcwd() == before
    assert os.getcwd() == before


@pytest.mark.parametrize("quick", [True, False])
def test_user_code_reads_each_setting_twice(quick):
    looks, cwd = [], SETTINGS["the working folder"]
    register("the working folder", lambda: looks.append(1), cwd.set)
    try:
        with UserCode().running(quick):
            assert len(looks) == 1
        assert len(looks) == 2
    finally:
        register("the working folder", cwd.get, cwd.set)


def test_user_code_abandoned_thread_restores_nothing_later(monkeypatch):
    inside, go = threading.Event(), threading.Event()

    def hang():
        with UserCode().running():
            inside.set()
            go.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    inside.wait()
    abandon(thread)
    monkeypatch.syspath_prepend("/later")
    with UserCode().running():
        assert "/later" in sys.path
    go.set()
    thread.join()
    assert "/later" in sys.path
