"""Processes and threads of a simulated cluster, in virtual time.

Every thread of every process is a greenlet, because product code waits deep inside other calls,
which a generator cannot suspend. One runs at a time: it goes on until it sleeps, waits for a lock,
or calls the simulated MPI or disk. Which one is next depends on the virtual clock and on a seed, so
a seed replays everything.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import greenlet

close_file = os.close
WALL_S = 1_800_000_000.0  # the time of day at which the simulation begins
_SHORT_S = 5e-3  # a longer pause is no poll
_LONGEST_POLL_S = 1e-2  # the longest pause that waiting in vain makes of a shorter one
_TICK_S = 1e-6  # virtual time that reading a clock takes
_RECENT = 2000  # events of the history that are kept


class Killed(BaseException):
    """Is raised in a thread of a process that no longer exists."""


class ProcessExit(BaseException):
    """Ends the process of the thread that raises it.

    Attributes:
        status: the exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Deadlock(AssertionError):
    """All threads wait for each other."""


class Endless(AssertionError):
    """The simulation takes more virtual time or steps than it may."""


@dataclass(eq=False)
class Node:
    """A machine.

    Attributes:
        name: host name.
        clock_offset_s: how far its time of day is ahead.
        boot: changes when it crashes.
        processes: processes since the boot, by their ids; two nodes have equal ids.
    """

    name: str
    number: int
    clock_offset_s: float = 0.0
    boot: int = 1
    processes: dict[int, Process] = field(default_factory=dict, repr=False)


@dataclass
class Doom:
    """What happens to a process at one of its next calls.

    Attributes:
        moment: the kind of call, such as ``write``.
        calls: number of such calls until then.
        happen: what happens.
    """

    moment: str
    calls: int
    happen: Callable[[], object]


@dataclass(eq=False)
class Process:
    """A process of the simulated cluster.

    Attributes:
        pid: its number, unique on its node until the next boot.
        label: what it is, for the history.
        parent: the process that started it; None for one that a user started.
        environ: its environment.
        status: its exit status; None while it lives, a negative number after a signal.
        ended_s: when it ended.
        descriptors: files that it has opened, which the kernel closes when it ends.
        frozen_until: it takes no step before this time.
        slowness: factor on everything that takes time.
        mappings: its mappings of modules, by the identity of what replaces them.
        on_end: functions to call after it has ended.
        before_end: functions to call when rank 0 begins to end its launch.
        has_returned: whether it has ended by itself: its main function has returned.
        doom: waits for a moment at which the process ends, or None.
    """

    pid: int
    node: Node
    label: str
    environ: dict[str, str]
    began_s: float
    parent: Process | None = None
    status: int | None = None
    ended_s: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    descriptors: set[int] = field(default_factory=set)
    frozen_until: float = 0.0
    slowness: float = 1.0
    output: list[str] = field(default_factory=list)
    log_handlers: list[Any] = field(default_factory=list)
    mappings: dict[int, Any] = field(default_factory=dict)
    at_exit: list[Callable[[], object]] = field(default_factory=list)
    signal_handlers: dict[int, Any] = field(default_factory=dict)
    pending_signals: deque[int] = field(default_factory=deque)
    wakeup: Any = None
    polls: list[Any] = field(default_factory=list)
    on_end: list[Callable[[], object]] = field(default_factory=list)
    before_end: list[Callable[[], object]] = field(default_factory=list)
    doom: Doom | None = None
    mpi: Any = None
    has_finalized: bool = False
    has_returned: bool = False
    parent_death_signal: int = 0
    timer: int = 0

    @property
    def is_alive(self) -> bool:
        """True until it exits or is killed."""
        return self.status is None

    def __repr__(self) -> str:
        return self.label


class Task:
    """A thread of a simulated process.

    Attributes:
        waits_for: what it waits for, for messages; empty while it runs.
        order: is incremented whenever it is scheduled; an older entry of the queue is obsolete.
        polls: number of polls since it has made progress.
        is_sleeping: whether a signal interrupts its pause.
    """

    def __init__(
        self,
        process: Process,
        number: int,
        function: Callable[[], object],
        name: str,
        hub: greenlet.greenlet,
    ) -> None:
        self.process = process
        self.number = number
        self.name = name
        self.is_done = False
        self.waits_for = "its first turn"
        self.order = 0
        self.polls = 0
        self.is_sleeping = False
        self.local: dict[int, dict[str, Any]] = {}
        self.thread: Any = None
        self._function = function
        self.greenlet = greenlet.greenlet(self._run, hub)

    def _run(self) -> None:
        try:
            self._function()
        finally:
            self.is_done = True

    def __repr__(self) -> str:
        return f"{self.process.label}/{self.name}"


class Kernel:
    """The scheduler of a simulation.

    Attributes:
        now: virtual seconds since the simulation began.
        random: decides all that is left open.
        current: the running thread; None in the simulation itself.
        steps: turns so far.
        stretch: longest factor on the pauses between two polls.
        cores: number of cores of a node.
        watts: power of each trainer, if a counter measures it.
        terminal: whether mpirun runs in one.
        phase_watches: are called whenever a group enters a phase, until they return True.
        message_watches: are called with each message that is sent, until they return True.
        history: what has happened: (time, process, text).
        unhandled: errors that threads have raised and not caught.
        witness: receives what product code reports (:mod:`tests.simulate.witness`).
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.current: Task | None = None
        self.steps = 0
        self._threads = 0
        self.stretch = 1.0
        self.cores = 64
        self.watts = 0.0
        self.terminal = False
        self.phase_watches: list[Callable[[Process, Any], bool]] = []
        self.message_watches: list[Callable[[Process, Any], bool]] = []
        self.history: deque[tuple[float, str, str]] = deque(maxlen=_RECENT)
        self.processes: list[Process] = []
        self.unhandled: list[tuple[Task, BaseException]] = []
        self.witness: Any = None
        self.counts: Counter[str] = Counter()
        self.trace: Callable[[str], object] | None = None
        self._queue: list[tuple[float, float, int, Any, int]] = []
        self._numbers = itertools.count(1)
        self._hub = greenlet.getcurrent()

    # ---- processes ----

    def start_process(
        self,
        node: Node,
        label: str,
        environ: dict[str, str],
        main: Callable[[], int | None],
        parent: Process | None = None,
    ) -> Process:
        """Start a process whose main thread returns its exit status."""
        process = self.add_process(node, label, environ, parent)

        def run() -> None:
            status = 0
            try:
                status = main() or 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else int(bool(error.code))
            for function in reversed(process.at_exit):
                function()
            process.has_returned = True
            raise ProcessExit(status)

        self.start_task(process, run, "main", self.random.uniform(0, 0.01))
        return process

    def add_process(
        self,
        node: Node,
        label: str,
        environ: dict[str, str],
        parent: Process | None = None,
    ) -> Process:
        """Create a process without a thread."""
        pid = 1000 + len(node.processes)
        process = node.processes[pid] = Process(pid, node, label, environ, self.now, parent)
        self.processes.append(process)
        return process

    def start_task(
        self, process: Process, function: Callable[[], object], name: str, delay_s: float = 0.0
    ) -> Task:
        """Start a thread of a process."""
        task = Task(process, next(self._numbers), function, name, self._hub)
        process.tasks.append(task)
        self._schedule(self.now + delay_s, task)
        return task

    def next_thread_number(self) -> int:
        """Return a number for a thread, the same one whenever a seed is replayed."""
        self._threads += 1
        return self._threads

    def end_process(self, process: Process, status: int) -> None:
        """End a process at once, wherever its threads are."""
        if not process.is_alive:
            return
        process.status = status
        process.ended_s = self.now
        self.note(process.label, f"ends: {status}")
        for function in process.on_end:
            function()
        for task in process.tasks:
            # The caller may be one of them; it ends when it next calls the kernel.
            if not task.is_done and task is not self.current and task.greenlet:
                self._throw(task)
            task.is_done = True
        for descriptor in process.descriptors:
            with suppress(OSError):
                close_file(descriptor)
        process.descriptors.clear()
        for child in list(self.living()):
            if child.parent is process and child.parent_death_signal:
                self.send_signal(child, child.parent_death_signal)

    def _throw(self, task: Task) -> None:
        """Unwind a thread of a dead process; whatever it tries meanwhile raises Killed."""
        before = self.current
        self.current = task
        task.greenlet.parent = greenlet.getcurrent()
        try:
            task.greenlet.throw(Killed)
        except (Killed, ProcessExit):
            pass
        except BaseException as error:  # raised while unwinding, after the process has died
            self.note(task.process.label, f"while unwinding: {error!r}")
        finally:
            self.current = before

    @property
    def process(self) -> Process | None:
        """The process of the running thread."""
        return None if self.current is None else self.current.process

    def check_alive(self) -> None:
        """Raise Killed in a thread whose process has ended."""
        if self.current is not None and not self.current.process.is_alive:
            raise Killed

    def reach(self, moment: str) -> None:
        """Let a process meet its doom if it waits for this moment."""
        process = self.process
        if process is None or process.doom is None or process.doom.moment != moment:
            return
        doom = process.doom
        doom.calls -= 1
        if doom.calls <= 0:
            process.doom = None
            self.note(process.label, f"meets its doom: {moment}")
            self.call_at(self.now, doom.happen)
            self.sleep(1e-9, "its doom")

    def watch_message(self, process: Process, envelope: Any) -> None:
        """Let events happen that wait for a message."""
        self.message_watches = [
            watch for watch in self.message_watches if not watch(process, envelope)
        ]

    # ---- time ----

    def call_at(self, time_s: float, function: Callable[[], object]) -> None:
        """Call a function of the simulation, not of a process, at a virtual time."""
        heapq.heappush(
            self._queue,
            (max(time_s, self.now), self.random.random(), next(self._numbers), function, 0),
        )

    def tick(self) -> float:
        """Return the virtual time for a reading of a clock, which takes time itself."""
        self.now += _TICK_S
        return self.now

    def sleep(self, seconds: float, reason: str = "a pause") -> None:
        """Let the running thread sleep."""
        task = self.current
        if task is None:
            raise AssertionError("only a thread of a simulated process can sleep")
        self.check_alive()
        end_s = self.now + max(seconds, 0.0) * task.process.slowness
        task.is_sleeping = True
        try:
            self._schedule(end_s, task)
            self._switch(task, reason)
            while self.now < end_s:  # a signal was handled
                self._schedule(end_s, task)
                self._switch(task, reason)
        finally:
            task.is_sleeping = False

    def stretched(self, seconds: float) -> float:
        """Return how long a short pause really takes: other work keeps a polling rank waiting.

        A thread that has polled in vain for long is kept waiting for longer, which saves turns.
        """
        task = self.current
        if seconds > _SHORT_S or task is None:
            return seconds
        task.polls += 1
        longer = seconds * self.random.uniform(1.0, self.stretch) * (1 + task.polls / 8)
        return min(longer, max(_LONGEST_POLL_S, seconds * self.stretch))

    def progress(self) -> None:
        """Note that the running thread no longer polls in vain."""
        if self.current is not None:
            self.current.polls = 0

    def pause(self) -> None:
        """Let others run, perhaps, before the running thread goes on."""
        if self.current is not None:
            self.sleep(self.random.uniform(0, 2e-5), "its turn")

    def block(self, reason: str, timeout_s: float | None = None) -> bool:
        """Wait until another thread calls :meth:`wake`; returns False after the timeout."""
        task = self.current
        if task is None:
            raise AssertionError(f"the simulation itself would wait for {reason}")
        self.check_alive()
        task.order += 1
        order = task.order
        if timeout_s is not None:
            self._push(self.now + max(timeout_s, 0.0), task)
        self._switch(task, reason)
        return task.order != order

    def wake(self, task: Task) -> None:
        """Let a blocked thread go on."""
        if not task.is_done:
            self._schedule(self.now + self.random.uniform(0, 5e-5), task)

    def _schedule(self, time_s: float, task: Task) -> None:
        task.order += 1
        self._push(time_s, task)

    def _push(self, time_s: float, task: Task) -> None:
        heapq.heappush(
            self._queue, (time_s, self.random.random(), next(self._numbers), task, task.order)
        )

    def _switch(self, task: Task, reason: str) -> None:
        task.waits_for = reason
        self._hub.switch()
        task.waits_for = ""
        self.check_alive()
        if task.name == "main":
            self._handle_signals(task.process)

    # ---- signals ----

    def send_signal(self, process: Process, number: int) -> None:
        """Send a signal to a process; its main thread handles it when it next runs."""
        if not process.is_alive:
            return
        self.note(process.label, f"signal {number}")
        self.counts["signal"] += 1
        handler = process.signal_handlers.get(number)
        if number == 9 or (handler is None and number not in _IGNORED):
            self.end_process(process, -number)
            if self.process is process:
                raise Killed
            return
        if handler is not None:
            process.pending_signals.append(number)
            if process.wakeup is not None:
                process.wakeup(number)
            main = process.tasks[0]
            if main.is_sleeping:
                self._schedule(self.now, main)

    def _handle_signals(self, process: Process) -> None:
        while process.pending_signals:
            number = process.pending_signals.popleft()
            handler = process.signal_handlers.get(number)
            if callable(handler):
                handler(number, None)

    # ---- the run ----

    def run(self, until: Callable[[], bool], longest_s: float, most_steps: int) -> None:
        """Run until a condition holds.

        Raises:
            Deadlock: no thread can go on.
            Endless: it takes too long.
        """
        first = self.steps
        while not until():
            if not self._queue:
                raise Deadlock(self.describe())
            time_s, _, _, item, order = heapq.heappop(self._queue)
            if not isinstance(item, Task):
                self.now = max(self.now, time_s)
                item()
                continue
            if item.order != order or item.is_done:
                continue
            process = item.process
            if time_s < process.frozen_until:
                self._push(process.frozen_until, item)
                continue
            self.now = max(self.now, time_s)
            self.steps += 1
            if self.now > longest_s or self.steps > first + most_steps:
                raise Endless(f"{self.now:.1f} s, {self.steps} steps\n{self.describe()}")
            self._resume(item)

    def _resume(self, task: Task) -> None:
        self.current = task
        try:
            task.greenlet.switch()
        except ProcessExit as end:
            self.current = None
            self.end_process(task.process, end.status)
        except Killed:
            pass
        except BaseException as error:
            self.unhandled.append((task, error))
            self.note(repr(task), "".join(traceback.format_exception(error)))
            if task.name == "main":
                self.current = None
                self.end_process(task.process, 1)
        finally:
            self.current = None

    def note(self, process: str, text: str) -> None:
        """Add an event to the history."""
        self.history.append((self.now, process, text))
        if self.trace is not None:
            self.trace(f"{self.now:12.6f} {process}: {text}")

    # ---- for people ----

    def living(self) -> Iterator[Process]:
        """Iterate over the processes that live."""
        return (process for process in self.processes if process.is_alive)

    def describe(self) -> str:
        """Describe what each thread waits for."""
        lines = []
        for process in self.living():
            for task in process.tasks:
                if not task.is_done:
                    lines.append(f"{task!r} waits for {task.waits_for or 'nothing'}")
                    frame = task.greenlet.gr_frame
                    lines += [
                        f"    {line}"
                        for line in _interesting(traceback.extract_stack(frame) if frame else [])
                    ]
        return "\n".join(lines)


_IGNORED = {17, 18, 23, 28}  # SIGCHLD, SIGCONT, SIGURG, SIGWINCH


def _interesting(stack: Any) -> list[str]:
    product_lines = [entry for entry in stack if "/simulate/" not in entry.filename]
    return [f"{entry.filename}:{entry.lineno} {entry.name}" for entry in product_lines[-4:]]


KERNEL: Kernel | None = None


@contextmanager
def running(kernel: Kernel) -> Iterator[Kernel]:
    """Let the replaced functions of the standard library use a kernel."""
    global KERNEL
    KERNEL = kernel
    limit = sys.getrecursionlimit()
    hook = sys.unraisablehook
    sys.unraisablehook = lambda error: _note_unraisable(kernel, error.exc_value)
    try:
        yield kernel
    finally:
        for process in list(kernel.living()):
            kernel.end_process(process, -9)
        KERNEL = None
        sys.unraisablehook = hook
        sys.setrecursionlimit(limit)


def _note_unraisable(kernel: Kernel, error: BaseException | None) -> None:
    """Note an error that Python cannot raise, such as one in ``__del__``."""
    task = kernel.current
    if task is not None and task.process.is_alive and error is not None:
        kernel.unhandled.append((task, error))


def active() -> Kernel | None:
    """Return the kernel if a thread of a simulated process runs; None elsewhere."""
    return KERNEL if KERNEL is not None and KERNEL.current is not None else None
