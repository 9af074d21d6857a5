"""The thread that ends a launch whose main thread is stuck."""

import threading

import pytest

from fleet.errors import ExitStatus, StorageError
from fleet.runtime import watchdog
from fleet.runtime.watchdog import Watchdog

PATIENCE_S = 0.05


class World:
    def __init__(self):
        self.has_run_tasks = threading.Event()

    def run_background_tasks(self):
        self.has_run_tasks.set()
        return True


class Interruption:
    patience_s = PATIENCE_S

    def __init__(self, reason):
        self._reason = reason

    def reason(self):
        return self._reason


@pytest.fixture
def watch(monkeypatch):
    for name in ("_CHECK_EVERY_S", "_LATE_S", "_GRACE_S", "_EXIT_S"):
        monkeypatch.setattr(watchdog, name, 0.05)
    started = []

    def watch(reason, status=None):
        world, cut, cause = World(), threading.Event(), []
        watchdog_thread = Watchdog(
            world,
            Interruption(reason),
            lambda: status,
            lambda message: (cause.append(message), cut.set()),
        )
        started.append(watchdog_thread)
        watchdog_thread.start()
        return world, cut, cause

    yield watch
    for watchdog_thread in started:
        watchdog_thread.stop()


def test_watchdog_coordinates_then_ends_stuck_launch(watch):
    world, cut, reason = watch("the walltime is nearly over")
    assert world.has_run_tasks.wait(10)
    assert cut.wait(10)
    assert "test_watchdog.py" in reason[0]


def test_watchdog_ends_launch_whose_ranks_do_not_leave(watch):
    assert watch("", ExitStatus.OK)[1].wait(10)


def test_watchdog_does_nothing_while_the_launch_runs(watch):
    world, cut, _ = watch("")
    assert not cut.wait(0.5)
    assert not world.has_run_tasks.is_set()


def test_watchdog_leaves_errors_of_tasks_to_the_main_thread(monkeypatch):
    for name in ("_CHECK_EVERY_S", "_LATE_S", "_GRACE_S"):
        monkeypatch.setattr(watchdog, name, 0.05)
    cut = threading.Event()

    class Failing(World):
        def run_background_tasks(self):
            super().run_background_tasks()
            raise StorageError("the disk is full")

    world = Failing()
    running = Watchdog(world, Interruption("a signal"), lambda: None, lambda reason: cut.set())
    running.start()
    assert world.has_run_tasks.wait(10)
    assert cut.wait(10)
    running.stop()
    with pytest.raises(StorageError):
        running.note_task_run()
