"""The past of a run, step 2 of a start: what earlier launches have left in its folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fleet.domain.events import Event
from fleet.domain.run import LaunchKilled, RunState
from fleet.domain.timeline import LoggedEvent, dated_events, merge_logs, replay_log
from fleet.errors import UserError
from fleet.prediction.sample_file import read_columns
from fleet.runtime.startup.request import Request
from fleet.spec import Spec
from fleet.storage.checkpoint import CheckpointLookup
from fleet.storage.event_log import RunTail
from fleet.storage.paths import RunPaths
from preprocess.fingerprint import Fingerprint, read_fingerprint


class Past:
    """The past of a run.

    The logs are read once: at first all of them, and with :meth:`catch_up` what other launches have
    added since.

    Args:
        request: continues the run, replays it, or starts over, so that nothing of it is used.
        paths: the files of the run of the spec.
        spec: the spec, without networks that were added later.

    Attributes:
        paths: the files of the run; None if it starts over.
        run: the state of the run by its logs alone.
        tail: reads what other launches log from now on.
        fingerprint: the fingerprint of the data on which networks were trained; None if none was.
        features: columns of a table in the order in which it was read.
        changes: accepted changes of networks and data since then, for the event log.
        checkpoints: network -> its checkpoint, as far as the launch has read it.
    """

    def __init__(self, request: Request, paths: RunPaths, spec: Spec) -> None:
        paths = request.replayed or paths
        is_fresh = request.fresh and request.replayed is None
        self.paths = None if is_fresh else paths
        self.run = RunState(spec)
        self.tail = RunTail(paths)
        self.changes: tuple[Event, ...] = ()
        self.checkpoints: dict[str, CheckpointLookup] = {}
        self.fingerprint: Fingerprint | None = None
        self.features: tuple[str, ...] = ()
        self._spec = spec
        self._logs = defaultdict[Path, list[LoggedEvent]](list)
        if not is_fresh:
            self.catch_up()
            self.fingerprint = read_known_fingerprint(paths, request.fresh_network)
            self.features = _read_features(paths)

    def catch_up(self) -> bool:
        """Read what was logged since the last call; return whether there is anything.

        Raises:
            OSError: the file system does not answer.
        """
        new = self.tail.poll()
        for _, event, t_s, log in new:
            self._logs[log].append(LoggedEvent(t_s, event))
        if new:
            self.run = replay_log(merge_logs(self._logs.values()), self._spec)
        return bool(new)

    def events_of(self, log: Path) -> list[Event]:
        """Return the events of one log."""
        return [logged.event for logged in self._logs.get(log, ())]

    def events(self) -> list[Event]:
        """Return the events of all logs, in the order in which they happened."""
        if len(self._logs) == 1:  # dates do not matter
            return [logged.event for log in self._logs.values() for logged in log]
        return [
            event
            for _, event, _ in dated_events(merge_logs(self._logs.values()))
            if not isinstance(event, LaunchKilled)
        ]


def read_known_fingerprint(
    paths: RunPaths, fresh_networks: Collection[str] = ()
) -> Fingerprint | None:
    """Read the fingerprint of the data on which a run was trained.

    Args:
        fresh_networks: networks that start over, whose checkpoints are ignored.

    Returns:
        None if nothing was trained, or if FLEET 0.1.0 trained it.
    """
    is_trained = any(path.parent.name not in fresh_networks for path in paths.models.glob("*/*.h5"))
    if is_trained:
        return read_fingerprint(paths.data)
    return None


def _read_features(paths: RunPaths) -> tuple[str, ...]:
    """Return a table's columns in the order in which earlier launches have read them."""
    with suppress(UserError):  # the file is missing or damaged, and will be written anew
        columns = read_columns(paths)
        if columns is not None:
            return columns.inputs
    return ()
