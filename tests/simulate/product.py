"""Replace what FLEET itself asks Linux about processes, and give training a duration."""

from __future__ import annotations

import io
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulate import kernel as k
from tests.simulate import witness
from tests.simulate.stdlib import ModuleMapping


def _started(pid: int) -> str | None:
    kernel = k.active()
    if kernel is None:
        return None
    process = kernel.process.node.processes.get(pid)
    if process is None or not process.is_alive:
        return None
    return str(int(process.began_s * 100))


def _end_with_parent(number: int = 9) -> None:
    kernel = k.active()
    if kernel is not None:
        kernel.process.parent_death_signal = number


@contextmanager
def _kill_after(seconds: float) -> Iterator[None]:
    """Kill this process unless the block ends in time."""
    kernel = k.active()
    is_over = kernel is None
    if kernel is not None:
        process = kernel.process
        kernel.call_at(
            kernel.now + seconds, lambda: None if is_over else kernel.send_signal(process, 9)
        )
    try:
        yield
    finally:
        is_over = True


def _find_counters(*arguments: Any) -> list[Any]:
    """Return the counter of a trainer, whose watts are constant."""
    from launch.energy import Counter

    kernel = k.active()
    if kernel is None or not kernel.watts:
        return []
    watts = kernel.watts
    return [Counter(kernel.process.label, "the trainer", lambda: watts * kernel.now)]


def _terminal() -> io.StringIO | None:
    """Return a terminal of unknown size."""
    kernel = k.active()
    return io.StringIO() if kernel is not None and kernel.terminal else None


@contextmanager
def _hdf5_in_memory(self: Any, **options: Any) -> Iterator[Any]:
    """Open an HDF5 file in memory; it is written when the context ends.

    No other greenlet may run within a call of HDF5, which keeps pointers into its caller's stack.
    """
    import h5py

    image = io.BytesIO()
    with h5py.File(image, "w", **options) as file:
        yield file
    self.write(image.getvalue())
    self.check()


def install() -> None:
    """Replace functions, before the modules that import them are imported."""
    from launch import devices, energy, memory, processes, stale_files

    uname = os.uname
    os.uname = lambda: os.uname_result(("Linux", socket.gethostname(), *uname()[2:]))
    processes.started = _started
    processes.end_with_parent = _end_with_parent
    processes.end_children = lambda patience_s=1.0: None
    processes.command_began_s = lambda pid, proc=None: None
    stale_files.remove_leftovers = lambda *arguments: []
    stale_files.use_separate_folder = lambda: None
    memory.free_shared_memory = lambda *arguments: 2**34
    devices.visible_gpus = lambda *arguments: ()
    energy.find_counters = _find_counters

    from fleet.runtime.training import building
    from fleet.storage import lease

    building.kill_after = _kill_after
    lease._text = _boot
    lease._namespace = lambda: "pid:[1]"
    lease.started = _started

    from fleet.storage import files

    files._HOST = _HostName()

    from preprocess.files.deferred_errors import DeferredErrorFile

    DeferredErrorFile.hdf5 = _hdf5_in_memory

    from preprocess import user_code
    from preprocess.lazy_numba import NUMBA

    NUMBA.add_slow_time = lambda seconds: None  # they would be loaded for all later seeds
    user_code._BASELINE = ModuleMapping(dict)
    user_code._CONTEXTS = ModuleMapping(Counter)

    from fleet.monitor import live_view

    live_view.terminal = _terminal

    from fleet.engines import softmax

    step = softmax.SoftmaxRegression.step

    def timed(self: Any, *arguments: Any, **keywords: Any) -> Any:
        kernel = k.active()
        if kernel is not None:
            kernel.sleep(kernel.random.uniform(1e-3, 2e-2), "a step")
        return step(self, *arguments, **keywords)

    softmax.SoftmaxRegression.step = timed
    witness.install()

    from fleet.runtime.rank_zero import RankZero

    write_end = RankZero._write_end

    def ending(self: Any) -> Any:
        kernel = k.active()
        if kernel is not None:
            for function in kernel.process.before_end:
                function()
        return write_end(self)

    RankZero._write_end = ending

    from fleet.control.group import TrainingGroup

    begin = TrainingGroup.__post_init__
    advance = TrainingGroup.advance

    def begun(self: Any) -> None:
        begin(self)
        _enter_phase(self)

    def advanced(self: Any, step: Any) -> None:
        advance(self, step)
        _enter_phase(self)

    TrainingGroup.__post_init__ = begun
    TrainingGroup.advance = advanced


def _enter_phase(group: Any) -> None:
    kernel = k.active()
    if kernel is not None:
        kernel.phase_watches = [
            watch for watch in kernel.phase_watches if not watch(kernel.process, group)
        ]


class _HostName(str):
    """The name of the running process's host."""

    def __format__(self, form: str) -> str:
        return socket.gethostname()

    def __str__(self) -> str:
        return socket.gethostname()


def _boot(path: str) -> str:
    kernel = k.active()
    assert kernel is not None
    node = kernel.process.node
    return f"{node.name} boot {node.boot}"
