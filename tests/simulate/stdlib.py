"""Replace what the standard library takes from the operating system.

:func:`install` must run before FLEET is imported, since modules keep references. Outside of a
simulation, and in the simulation's own code, every replacement does what the original does.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import io
import itertools
import logging
import os
import queue
import secrets
import select
import signal
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from tests.simulate import kernel as k

_real = {
    name: getattr(time, name)
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "thread_time",
        "sleep",
    )
}


# ---- clocks ------------------------------------------------------------------------------------


def _clock(name: str, wall: bool, nanoseconds: bool) -> Callable[[], float | int]:
    original = _real[name]

    def read() -> float | int:
        kernel = k.active()
        if kernel is None:
            return original()
        process = kernel.process
        assert process is not None
        now = kernel.tick() + (k.WALL_S + process.node.clock_offset_s if wall else 0.0)
        return int(now * 1e9) if nanoseconds else now

    return read


def _sleep(seconds: float) -> None:
    kernel = k.active()
    if kernel is None:
        _real["sleep"](seconds)
    else:
        kernel.sleep(kernel.stretched(seconds), "a pause")


# ---- threads -----------------------------------------------------------------------------------


class Lock:
    """Replaces ``threading.Lock``."""

    def __init__(self) -> None:
        self._owner: k.Task | None = None
        self._is_locked = False
        self._waiting: deque[k.Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = k.active()
        if not self._is_locked or (self._owner is not None and not self._owner.process.is_alive):
            self._is_locked = True
            self._owner = None if kernel is None else kernel.current
            return True
        if not blocking or timeout == 0:
            return False
        if kernel is None:
            raise AssertionError("the simulation would wait for a lock")
        task = kernel.current
        assert task is not None
        until = None if timeout < 0 else kernel.now + timeout
        while self._is_locked:
            self._waiting.append(task)
            remaining_s = None if until is None else max(0.0, until - kernel.now)
            woken = kernel.block("a lock", remaining_s)
            if task in self._waiting:
                self._waiting.remove(task)
            if not woken and self._is_locked:
                return False
        self._is_locked = True
        self._owner = task
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._owner = None
        kernel = k.KERNEL
        while self._waiting and kernel is not None:
            task = self._waiting.popleft()
            if not task.is_done:
                kernel.wake(task)
                break

    def locked(self) -> bool:
        return self._is_locked

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._is_locked = False


class RLock:
    """Replaces ``threading.RLock``."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not None and self._owner == _ident():
            self._count += 1
            return True
        if self._lock.acquire(blocking, timeout):
            self._owner = _ident()
            self._count = 1
            return True
        return False

    def release(self) -> None:
        if self._owner != _ident():
            kernel = k.active()
            if kernel is not None and not kernel.current.process.is_alive:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    # for threading.Condition
    def _release_save(self) -> tuple[int, object]:
        saved = self._count, self._owner
        self._count = 0
        self._owner = None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, object]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved

    def _is_owned(self) -> bool:
        return self._owner == _ident()

    def _at_fork_reinit(self) -> None:
        self.__init__()


_real_ident = threading.get_ident
_RealThread = threading.Thread
_real_current = threading.current_thread


def _ident() -> int:
    kernel = k.active()
    if kernel is None:
        return _real_ident()
    return -kernel.current.number


class Thread:
    """Replaces ``threading.Thread``; in the simulation itself it runs at once, to its end."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._args = args
        self._kwargs = kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._task: k.Task | None = None
        self._joining: list[k.Task] = []
        self._has_ended = False
        kernel = k.active()
        self._number = 0 if kernel is None else kernel.next_thread_number()

    def __hash__(self) -> int:
        return self._number  # pools keep sets of threads, whose order would follow addresses

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        kernel = k.active()
        if kernel is None:
            raise AssertionError("the simulation itself starts a thread")
        self._task = kernel.start_task(
            kernel.process, self._run, self.name, kernel.random.uniform(0, 1e-4)
        )
        self._task.thread = self

    def _run(self) -> None:
        try:
            self.run()
        except SystemExit:
            pass
        finally:
            self._has_ended = True
            if k.KERNEL is not None and self._task.process.is_alive:
                for task in self._joining:
                    k.KERNEL.wake(task)

    def join(self, timeout: float | None = None) -> None:
        kernel = k.active()
        if self._has_ended or self._task is None or kernel is None:
            return
        task = kernel.current
        self._joining.append(task)
        until = None if timeout is None else kernel.now + timeout
        while not self._has_ended:
            remaining_s = None if until is None else max(0.0, until - kernel.now)
            if not kernel.block(f"the end of {self.name}", remaining_s):
                break
        self._joining.remove(task)

    def is_alive(self) -> bool:
        return self._task is not None and not self._has_ended and not self._task.is_done

    @property
    def ident(self) -> int | None:
        return None if self._task is None else -self._task.number

    native_id = ident

    def setDaemon(self, daemon: bool) -> None:
        self.daemon = daemon

    def getName(self) -> str:
        return self.name


class _MainThread(Thread):
    def __init__(self, task: k.Task) -> None:
        super().__init__(name="MainThread")
        self._task = task


def _current_thread() -> Any:
    kernel = k.active()
    if kernel is None:
        return _real_current()
    task = kernel.current
    if task.thread is None:
        task.thread = _MainThread(task)
    return task.thread


def _main_thread() -> Any:
    kernel = k.active()
    if kernel is None:
        return _real_main_thread()
    task = kernel.process.tasks[0]
    if task.thread is None:
        task.thread = _MainThread(task)
    return task.thread


def _enumerate() -> list[Any]:
    kernel = k.active()
    if kernel is None:
        return _real_enumerate()
    return [_main_thread()] + [
        task.thread
        for task in kernel.process.tasks[1:]
        if not task.is_done and task.thread is not None
    ]


_real_main_thread = threading.main_thread
_real_enumerate = threading.enumerate


class Local:
    """Replaces ``threading.local``."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Local:
        self = object.__new__(cls)
        object.__setattr__(self, "_hidden", (next(_locals), {}, arguments, keywords))
        return self

    def _values(self) -> dict[str, Any]:
        number, outside, arguments, keywords = object.__getattribute__(self, "_hidden")
        kernel = k.active()
        if kernel is None:
            return outside
        values = kernel.current.local
        if number not in values:
            values[number] = {}
            if type(self).__init__ is not object.__init__:
                type(self).__init__(self, *arguments, **keywords)
        return values[number]

    def __getattribute__(self, name: str) -> Any:
        if name in ("_values", "__class__"):
            return object.__getattribute__(self, name)
        values = object.__getattribute__(self, "_values")()
        if name == "__dict__":
            return values
        if name in values:
            return values[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._values()[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self._values()[name]
        except KeyError:
            raise AttributeError(name) from None


_locals = itertools.count()


# ---- what belongs to a process -----------------------------------------------------------------


class ProcessMapping(MutableMapping[Any, Any]):
    """A mapping of which each simulated process has its own."""

    @property
    def _now(self) -> Any:
        """The mapping of the running process."""
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        return self._now[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._now[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._now[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(dict(self._now))

    def __len__(self) -> int:
        return len(self._now)

    def copy(self) -> dict[Any, Any]:
        return dict(self._now)


class Environ(ProcessMapping):
    """Replaces ``os.environ``."""

    def __init__(self, original: Any) -> None:
        self._original = original

    @property
    def _now(self) -> Any:
        kernel = k.active()
        return self._original if kernel is None else kernel.process.environ

    @property
    def _data(self) -> Any:
        kernel = k.active()
        if kernel is None:
            return self._original._data
        return {key.encode(): value.encode() for key, value in self.items()}


class EnvironBytes(MutableMapping[bytes, bytes]):
    """Replaces ``os.environb``: the bytes of an :class:`Environ`."""

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def __getitem__(self, key: bytes) -> bytes:
        return os.fsencode(self._environ[os.fsdecode(key)])

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._environ[os.fsdecode(key)] = os.fsdecode(value)

    def __delitem__(self, key: bytes) -> None:
        del self._environ[os.fsdecode(key)]

    def __iter__(self) -> Iterator[bytes]:
        return map(os.fsencode, self._environ)

    def __len__(self) -> int:
        return len(self._environ)


class ModuleMapping(ProcessMapping):
    """Replaces a mapping of a module.

    Args:
        make: makes the mapping of a process.
    """

    def __init__(self, make: Callable[[], MutableMapping[Any, Any]]) -> None:
        self._make = make
        self._outside = make()

    @property
    def _now(self) -> Any:
        kernel = k.active()
        if kernel is None:
            return self._outside
        mappings = kernel.process.mappings
        if id(self) not in mappings:
            mappings[id(self)] = self._make()
        return mappings[id(self)]


class Output(io.TextIOBase):
    """Replaces a standard stream: a simulated process writes into its own list."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, original: Any) -> None:
        self._original = original

    def write(self, text: str) -> int:
        kernel = k.active()
        if kernel is None:
            return self._original.write(text)
        kernel.check_alive()
        kernel.process.output.append(text)
        return len(text)

    def flush(self) -> None:
        if k.active() is None:
            self._original.flush()

    def isatty(self) -> bool:
        return k.active() is None and self._original.isatty()

    def fileno(self) -> int:
        return self._original.fileno()

    def reconfigure(self, **options: Any) -> None:
        """Do nothing: the text is never encoded."""

    @property
    def buffer(self) -> Any:
        return self._original.buffer


class ProcessLogger(logging.Logger):
    """A logger with separate handlers in each simulated process."""

    def __init__(self, name: str, level: int = logging.NOTSET) -> None:
        self._outside: list[Any] = []
        super().__init__(name, level)

    @property
    def handlers(self) -> list[Any]:
        kernel = k.active()
        if kernel is None or self.name != "fleet":
            return self._outside
        return kernel.process.log_handlers

    @handlers.setter
    def handlers(self, handlers: list[Any]) -> None:
        self._outside = handlers


def _per_process(simulated: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the kernel as well inside a simulated process."""

    def called(*arguments: Any, **keywords: Any) -> Any:
        kernel = k.active()
        if kernel is None:
            return original(*arguments, **keywords)
        kernel.check_alive()
        return simulated(kernel, *arguments, **keywords)

    return called


def _set_signal(kernel: k.Kernel, number: int, handler: Any) -> Any:
    handlers = kernel.process.signal_handlers
    before = handlers.get(number, signal.SIG_DFL)
    handlers[number] = handler
    if handler in (signal.SIG_DFL, None):
        del handlers[number]
    return before


def _set_wakeup(kernel: k.Kernel, descriptor: int, **options: Any) -> int:
    process = kernel.process

    def wakeup(number: int) -> None:
        _real_write(descriptor, bytes([number]))
        for poll in process.polls:
            poll.notify(kernel)

    process.wakeup = wakeup
    return -1


_real_write = os.write
_real_pipe = os.pipe


def _pipe(kernel: k.Kernel) -> tuple[int, int]:
    ends = _real_pipe()
    kernel.process.descriptors.update(ends)
    return ends


class Poll:
    """Replaces ``select.poll`` for the pipe of signals."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._waiting: k.Task | None = None
        k.active().process.polls.append(self)

    def register(self, descriptor: int, events: int = 0) -> None:
        self._descriptors.append(descriptor)

    def notify(self, kernel: k.Kernel) -> None:
        if self._waiting is not None:
            kernel.wake(self._waiting)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        kernel = k.active()
        while True:
            poll = _real_poll()
            for descriptor in self._descriptors:
                poll.register(descriptor, select.POLLIN)
            ready = poll.poll(0)
            if ready:
                return ready
            self._waiting = kernel.current
            kernel.block("signals")
            self._waiting = None


_real_poll = select.poll


def _set_timer(
    kernel: k.Kernel, kind: int, seconds: float, interval: float = 0.0
) -> tuple[float, float]:
    process = kernel.process
    process.timer += 1
    number = process.timer

    def ring() -> None:
        if process.timer == number and process.is_alive:
            kernel.send_signal(process, signal.SIGALRM)
            if interval:
                kernel.call_at(kernel.now + interval, ring)

    if seconds > 0:
        kernel.call_at(kernel.now + seconds, ring)
    return 0.0, 0.0


def _kill(kernel: k.Kernel, pid: int, number: int) -> None:
    process = kernel.process.node.processes.get(pid)
    if process is None or not process.is_alive:
        raise ProcessLookupError(3, os.strerror(3))
    if number:
        kernel.send_signal(process, number)


def _parent(kernel: k.Kernel) -> int:
    """Return the id of the parent; on other nodes than mpirun's it is a daemon of mpirun."""
    parent = kernel.process.parent
    if parent is None or not parent.is_alive:
        return 1
    return parent.pid if parent.node is kernel.process.node else 500


def _exit(kernel: k.Kernel, status: int) -> None:
    kernel.end_process(kernel.process, status)
    raise k.Killed


# ---- random numbers ----------------------------------------------------------------------------


def _token_bytes(kernel: k.Kernel, count: int | None = None) -> bytes:
    return kernel.random.randbytes(32 if count is None else count)


def _uuid4(kernel: k.Kernel) -> uuid.UUID:
    return uuid.UUID(int=kernel.random.getrandbits(128), version=4)


# ---- installation ------------------------------------------------------------------------------


def install() -> None:
    """Replace everything above; once, before FLEET is imported."""
    for name in _real:
        if name == "sleep":
            time.sleep = _sleep
        else:
            wall = name.startswith("time")
            setattr(time, name, _clock(name, wall, name.endswith("_ns")))
    time.clock_gettime = _per_process(lambda kernel, clock: kernel.tick(), time.clock_gettime)
    threading.Lock = threading._allocate_lock = Lock
    threading.RLock = RLock
    threading.Thread = Thread
    threading.local = Local
    threading.get_ident = _ident
    threading.current_thread = _current_thread
    threading.main_thread = _main_thread
    threading.enumerate = _enumerate
    queue.SimpleQueue = queue._PySimpleQueue
    concurrent.futures.thread._global_shutdown_lock = Lock()
    os.environ = Environ(os.environ)  # noqa: B003
    os.environb = EnvironBytes(os.environ)
    sys.stdout = Output(sys.stdout)
    sys.stderr = Output(sys.stderr)
    logging.setLoggerClass(ProcessLogger)
    os.getpid = _per_process(lambda kernel: kernel.process.pid, os.getpid)
    os.getppid = _per_process(_parent, os.getppid)
    socket.gethostname = _per_process(lambda kernel: kernel.process.node.name, socket.gethostname)
    os.kill = _per_process(_kill, os.kill)
    os._exit = _per_process(_exit, os._exit)
    os.sched_yield = _per_process(lambda kernel: kernel.pause(), os.sched_yield)
    signal.signal = _per_process(_set_signal, signal.signal)
    signal.set_wakeup_fd = _per_process(_set_wakeup, signal.set_wakeup_fd)
    signal.setitimer = _per_process(_set_timer, signal.setitimer)
    os.cpu_count = _per_process(lambda kernel: kernel.cores, os.cpu_count)
    os.sched_getaffinity = _per_process(
        lambda kernel, pid: set(range(kernel.cores)), os.sched_getaffinity
    )
    os.pipe = _per_process(_pipe, os.pipe)
    select.poll = lambda: Poll() if k.active() is not None else _real_poll()
    atexit.register = _per_process(_at_exit, atexit.register)
    secrets.token_bytes = _per_process(_token_bytes, secrets.token_bytes)
    os.urandom = _per_process(_token_bytes, os.urandom)
    uuid.uuid4 = _per_process(_uuid4, uuid.uuid4)


def _at_exit(kernel: k.Kernel, function: Callable[..., object], *arguments: Any) -> Any:
    kernel.process.at_exit.append(lambda: function(*arguments))
    return function
