"""Send commands to a running launch, and follow the progress of its networks.

Everything goes through files in the run's folder: commands through its mailbox
(:mod:`fleet.runtime.external.command_queue`), reports through its event log. So it works on any
machine that mounts the folder, without a port or a server.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet.domain.events import (
    CommandReceived,
    EpochEnded,
    Event,
    LaunchStarted,
    NetworkAdded,
)
from fleet.domain.network import SCORES, EpochRecord
from fleet.domain.run import RunNetwork, RunState
from fleet.errors import EXPLAINED, ExitStatus, InfrastructureError, UserError, shortened
from fleet.monitor.report import best_rows
from fleet.monitor.view import NotebookView
from fleet.runtime.cloning import clone_for_next_launch
from fleet.runtime.external.command_handler import NetworkEnded
from fleet.runtime.external.command_queue import CommandQueue
from fleet.spec.clones import CloneRequest
from fleet.spec.schema import ModelEntry
from fleet.spec.section import plain
from fleet.storage.event_log import DatedEvent, RunTail, first_line, read_events
from fleet.storage.lease import is_held
from fleet.storage.network_leases import find_held_lease
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from fleet.storage.run_spec import load_run_spec
from launch.mpirun_messages import request_stop, wait

PATIENCE_S = 60.0  # for the answer to a command, and for the start of a launch
_POLL_S = 0.2


# ---- commands -----------------------------------------------------------------------------------


def command(run: str | Path, content: Mapping[str, Any]) -> list[str]:
    """Send a command to the launch of a run, and wait for its answer.

    Args:
        run: the run's folder.
        content: see :mod:`fleet.runtime.external.command_handler`.

    Returns:
        The networks that the command concerned.

    Raises:
        UserError: not exactly one launch is running there, it does not answer, or it refuses.
    """
    return [str(network) for network in request_answer(run, content)[1].get("networks", ())]


def request_answer(run: str | Path, content: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Send a command; return its name and its answer. See :func:`command`."""
    paths = RunPaths(Path(run))
    if not paths.marker.exists():
        raise UserError(f"{run} is not the folder of a run")
    _check_takes_commands(paths)
    mailbox = CommandQueue(paths.mailbox)
    name = mailbox.put(content)
    until = time.monotonic() + PATIENCE_S
    while (answer := mailbox.take_answer(name, 1.0)) is None:
        if is_held(paths.lease) and time.monotonic() < until:
            continue
        if mailbox.withdraw(name):
            _check_takes_commands(paths)
            raise UserError(
                f"{run}: the launch did not answer within {PATIENCE_S:.0f} s; the command was "
                "withdrawn"
            )
        if time.monotonic() > until + PATIENCE_S:
            raise UserError(
                f"{run}: the launch received the command but does not answer; fleet watch shows "
                "whether it was carried out"
            )
    if "error" in answer:
        raise (NetworkEnded if answer.get("is_over") else UserError)(str(answer["error"]))
    return name, answer


def _check_takes_commands(paths: RunPaths) -> None:
    if is_held(paths.lease):
        return
    if find_held_lease(paths) is not None:
        raise UserError(
            f"{paths.root}: several launches share its networks (fleet harvest), and shared "
            "launches take no commands; to free nodes, end one of their jobs (the others take over "
            "its networks); for anything else, start a single launch after all of them have ended"
        )
    raise UserError(
        f"{paths.root}: no launch is running: the run has ended, or waits for its next job"
    )


def add(run: str | Path, entry: Mapping[str, Any] | ModelEntry) -> list[str]:
    """Add an entry of ``models`` to a run; return the names of its networks once they are accepted.

    A network with invalid values is accepted, too, and fails by itself.

    Args:
        run: the run's folder.
        entry: one entry, which may stand for several networks.

    Raises:
        UserError: the entry is invalid, or no launch accepts it.
    """
    return command(run, {"do": "add", "entry": _checked(entry)})


def clone(
    run: str | Path,
    network: str,
    values: Mapping[str, Any] | None = None,
    *,
    warm: bool = False,
    name: str | None = None,
) -> list[str]:
    """Clone a network with other settings, in the running launch or else in the next one.

    Args:
        run: the run's folder.
        network: name of any network of the run, however it has ended.
        values: settings that differ, by keys as in a space, such as
            ``train.optimizer.learning_rate`` or ``filters.0``.
        warm: whether it starts from the newest checkpoint of the network: weights and optimizer.
        name: name of the clone; by default that of the network with ``-clone``, and a number if it
            is taken.

    Returns:
        The name of the clone; with folds, that of each fold.

    Raises:
        UserError: the clone cannot be trained, or the network has no checkpoint that fits.
    """
    paths = RunPaths(Path(run))
    if not paths.marker.exists():
        raise UserError(f"{run} is not the folder of a run")
    content = {
        "do": "clone",
        "network": network,
        "values": _checked_values(values or {}),
        "warm": warm,
        "name": name,
    }
    if find_held_lease(paths) is not None:
        return command(run, content)
    return clone_for_next_launch(paths, CloneRequest.parse(content))


def _checked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values of a space to JSON.

    Raises:
        UserError: they cannot be written as JSON.
    """
    content = dict(plain(dict(values)))
    _check_writable(content, "clone: the values")
    return content


def _checked(entry: Any) -> dict[str, Any]:
    """Convert an entry of ``models`` to JSON; the launch checks its keys.

    Raises:
        UserError: it is not a mapping, or cannot be written as JSON.
    """
    content = plain(entry)
    if not isinstance(content, dict):
        raise UserError(
            "add: an entry is a mapping with the keys of one entry of `models:`, such as "
            f"{{'family': 'cnn'}}, not {shortened(repr(entry), 80)}"
        )
    _check_writable(content, "add: the entry")
    return content


def _check_writable(content: Mapping[str, Any], subject: str) -> None:
    """Check that a command can be written to the run's folder.

    Raises:
        UserError: its content is no JSON; the message begins with the subject.
    """
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{subject} cannot be written as YAML: {error}") from None


# ---- reports ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """A network has ended an epoch.

    Attributes:
        network: its name.
        number: number of the network: within its entry if a search proposed it, otherwise among all
            of the run.
        epoch: counted from 1.
        value: the monitored value; NaN if there is none.
        metrics: losses, accuracies and all metrics of its spec by name; None where they cannot be
            computed.
        is_last: whether it has reached its maximum number of epochs; networks may also end earlier.
    """

    network: str
    number: int
    epoch: int
    value: float
    metrics: Mapping[str, float | None] = field(default_factory=dict, hash=False)
    is_last: bool = False


def report_of(event: Event, run: RunState) -> Report | None:
    """Return a report if the event ends an epoch, else None.

    Args:
        event: the event.
        run: the state of the run after the event.
    """
    if not isinstance(event, EpochEnded):
        return None
    network = run.networks[event.network]
    record = event.record
    metrics = {name: _none_if_nan(record.value(name)) for name in (*SCORES, *record.metrics)}
    return Report(
        event.network,
        network.number,
        record.epoch,
        _value(network, record),
        metrics,
        record.epoch >= network.max_epochs,
    )


def _value(network: RunNetwork, record: EpochRecord) -> float:
    """Return the monitored value: by default the validation accuracy, or the loss."""
    if network.monitor is not None:
        return record.value(network.monitor)
    accuracy = record.value("val_accuracy")
    if math.isnan(accuracy):
        return record.value("val_loss")
    return accuracy


def _none_if_nan(value: float) -> float | None:
    if math.isnan(value):
        return None
    return value


def replay_networks(run: RunState, logs: Iterable[Path]) -> None:
    """Apply only the events that begin launches or add networks, from the logs so far.

    Other lines are skipped unparsed: in a long log parsing them takes many seconds.

    Args:
        run: the state of the run, which changes.
        logs: event logs.
    """
    for log in logs:
        for t_s, event in read_events(log, kinds=(LaunchStarted, CommandReceived, NetworkAdded)):
            run.apply(t_s, event, log)


def follow(tail: RunTail, is_over: Callable[[], bool]) -> Iterator[DatedEvent]:
    """Yield the events of a run as they are logged, until it is over.

    Args:
        tail: reads the logs of the run.
        is_over: called before each poll.
    """
    while True:
        ends = is_over()  # before the poll, so that the last events are seen
        with suppress(FileNotFoundError):
            yield from tail.poll()
        if ends:
            return
        time.sleep(_POLL_S)


def new_run_state(paths: RunPaths) -> RunState:
    """Return the state of a run that has begun, from its spec.

    Raises:
        UserError: the folder holds no run.
    """
    return RunState(load_run_spec(paths))


# ---- a running launch ----------------------------------------------------------------------


class Running:
    """A launch that this process has started; see :func:`fleet.api.launch`.

    It is a context manager: at the end it waits for the launch. If an exception ends the context,
    the launch saves everything and stops.

    Args:
        process: the launcher.
        paths: files of the run.
        start: the size of the event log before the launch, in bytes.
        end: returns how it ended, given the exit status of the launcher.
        stale: the first line of an event log that the launch deletes; empty if it deletes none.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        paths: RunPaths,
        start: int,
        end: Callable[[int], ExitStatus],
        stale: bytes = b"",
    ) -> None:
        self._process = process
        self._paths = paths
        self._start = start
        self._end = end
        self._stale = stale
        self._status: ExitStatus | None = None
        self._is_interrupted = False
        self._lock = threading.Lock()
        self._shows: threading.Thread | None = None

    def show_table(self) -> None:
        """Show a live table in the cell of a notebook, from a thread, and then the results."""
        self._shows = threading.Thread(
            target=self._show, args=(NotebookView.make_display(),), daemon=True
        )
        self._shows.start()

    def _show(self, display: Any) -> None:
        view: NotebookView | None = None

        def draw() -> None:
            if view is not None:
                view.draw()

        for event, run in self._events(draw):
            view = view or NotebookView(run, display)
            view.on_event(event)
        if view is not None:
            with suppress(UserError):  # a failed launch may have no results
                view.finish(*best_rows(self.results())[:2])

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self._paths.root

    @property
    def is_over(self) -> bool:
        """Whether the launch has ended."""
        return self._process.poll() is not None

    def add(self, entry: Mapping[str, Any] | ModelEntry) -> str:
        """Add a network; return its name once it is accepted.

        Args:
            entry: an entry of ``models`` for one network; :meth:`add_all` accepts entries for
                several.

        Raises:
            UserError: the entry is invalid, or the run has ended.
        """
        content = _checked(entry)
        if "grid" in content or content.get("count", 1) != 1:
            raise UserError(
                "add takes an entry of one network; use add_all for `grid:` or `count:`"
            )
        return self.add_all(content)[0]

    def clone(
        self,
        network: str,
        values: Mapping[str, Any] | None = None,
        *,
        warm: bool = False,
        name: str | None = None,
    ) -> str:
        """Clone a network with other settings; return the name of the clone.

        Args:
            network, values, warm, name: as in :func:`fleet.api.clone`.

        Raises:
            UserError: the clone cannot be trained, or the run has ended.
        """
        if not self._has_begun():
            raise UserError(f"{self.run}: the run has ended")
        return clone(self.run, network, values, warm=warm, name=name)[0]

    def add_all(self, entry: Mapping[str, Any] | ModelEntry) -> list[str]:
        """Add all networks of an entry; return their names."""
        return self._command({"do": "add", "entry": _checked(entry)})

    def stop(self, network: str) -> bool:
        """Prune a network after its current epoch, unless that is its last one.

        Args:
            network: its name.

        Returns:
            False if it had ended before the command arrived.

        Raises:
            UserError: the network does not exist, or the run has ended.
        """
        return self._send_verdict("stop", network)

    def pause(self, network: str) -> bool:
        """Pause a network after its current epoch and free its devices; see :meth:`stop`."""
        return self._send_verdict("pause", network)

    def resume(self, network: str) -> bool:
        """Resume a paused network; see :meth:`stop`."""
        return self._send_verdict("resume", network)

    def _send_verdict(self, do: str, network: str) -> bool:
        if not isinstance(network, str):
            raise UserError(
                f"{do}: the name of a network is a string, such as 'net-3', not "
                f"{shortened(repr(network), 80)}"
            )
        try:
            self._command({"do": do, "network": network})
        except NetworkEnded:
            return False
        return True

    def _command(self, content: Mapping[str, Any]) -> list[str]:
        if not self._has_begun():
            raise UserError(f"{self.run}: the run has ended")
        return command(self.run, content)

    def _has_begun(self, patience_s: float = math.inf) -> bool:
        """Wait until the launch has begun; return False if it has ended, or does not in time."""
        until = time.monotonic() + patience_s
        while find_held_lease(self._paths) is None:
            if self.is_over or time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return not self.is_over

    def reports(self) -> Iterator[Report]:
        """Yield a report after each epoch of this launch, until the launch ends."""
        for event, run in self._events():
            report = report_of(event, run)
            if report is not None:
                yield report

    def _events(
        self, before_poll: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Event, RunState]]:
        """Yield the events of this launch, each with the run's state after it, until it ends.

        Args:
            before_poll: called before each poll.
        """

        def is_over() -> bool:
            before_poll()
            return self.is_over

        while self._stale and first_line(self._paths.events) == self._stale:
            if self.is_over:  # before it deleted anything
                return
            time.sleep(_POLL_S)
        run: RunState | None = None
        tail = RunTail(self._paths, from_end=True, starts={self._paths.events: self._start})
        for dated in follow(tail, is_over):
            run = run or new_run_state(self._paths)
            run.apply(dated.at, dated.event, dated.log)
            yield dated.event, run

    def results(self) -> list[Any]:
        """Return the networks, best first; see :func:`fleet.storage.results.read_results`."""
        return read_results(self.run)

    def wait(self) -> ExitStatus:
        """Wait for the launch; return how it ended, like :func:`fleet.api.run`.

        Raises:
            UserError, InfrastructureError, KeyboardInterrupt: see :func:`fleet.api.run`.
        """
        status = wait(self._process, EXPLAINED, self._stop)
        with self._lock:
            if self._status is None:
                self._status = self._end(status)
        if self._shows is not None:
            self._shows.join(PATIENCE_S)
            if self._status is ExitStatus.RESUMABLE:
                print(f"{self.run}: stopped with everything saved; run the cell again to resume it")
        return self._status

    def interrupt(self) -> None:
        """Let the launch save everything and stop; the same command resumes it.

        A signal would kill a launch that is still starting, so this waits for up to a minute until
        it has begun. After that it is killed; it has nothing to save.
        """
        self._is_interrupted = True
        if self._has_begun(PATIENCE_S):
            request_stop(self._process)
        else:
            self._process.send_signal(signal.SIGTERM)

    def _stop(self) -> None:
        """Handle Ctrl-C; a second one raises."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self.interrupt()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.wait()
            return
        self.interrupt()
        with suppress(UserError, InfrastructureError):  # the exception of the context says more
            self.wait()
