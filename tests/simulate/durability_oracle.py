"""What was acknowledged is there after any crash.

- A checkpoint whose write has returned is on the disk, even if the storage crashes.
- An epoch on the screen is in a checkpoint once a later launch has ended, unless the storage has
  crashed: the last one may still have been on its way when ranks were killed.
- A network that a launch with status 0 or 3 has called finished is never trained again.
- A network that a user has stopped ends after its current epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fleet.domain import events as ev
from fleet.errors import ExitStatus
from fleet.storage.checkpoint import find_newest
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status
from tests.simulate.cluster import Launch

ORDERLY = (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE)
_EPOCH = re.compile(
    r"^\[.*?\] (\S+) (epoch|lost a rank and resumes from its last checkpoint, after epoch) (\d+)\b"
    r"(?!/\d+: \d+%)",  # the progress of an epoch
    re.MULTILINE,
)


class DurabilityOracle:
    """Remembers what was acknowledged.

    Args:
        paths: files of the run.
        object_to: is called with what is wrong.
    """

    def __init__(self, paths: RunPaths, object_to: Callable[[str], None]) -> None:
        self._paths = paths
        self._object_to = object_to
        self._saved: dict[str, tuple[int, int]] = {}  # network -> epochs and position
        self._on_screen: dict[str, int] = {}  # network -> epochs
        self._outdated: dict[int, int] = {}  # launch -> length of its output that no longer counts
        self._finished: set[str] = set()
        self._damaged: set[str] = set()  # networks whose screens no longer count
        self._last_epochs: dict[str, int] = {}  # stopped network -> its last epoch

    # ---- what is acknowledged ----

    def saved(self, name: str, state: Any) -> None:
        """A checkpoint is on the disk."""
        reached = state.epoch, state.position
        self._saved[name] = max(reached, self._saved.get(name, reached))

    def logged(self, record: Mapping[str, Any], epochs: Callable[[str], int]) -> None:
        """An event was logged; the function returns how many epochs a network has ended."""
        if record["event"] == ev.CommandReceived.word and record["do"] == "stop":
            for name in record["networks"]:
                self._last_epochs[name] = epochs(name) + 1

    def begins_part(self, name: str) -> None:
        """A network is trained."""
        if name in self._finished:
            self._object_to(f"{name} is trained, though it had finished")

    def ended(self, launches: Iterable[Launch], rows: Iterable[NetworkResult]) -> None:
        """Some launches have ended, which leave these results."""
        if any(launch.status in ORDERLY[:2] for launch in launches):
            self._finished.update(row.name for row in rows if row.status is Status.FINISHED)

    def storage_crashed(self, launches: Iterable[Launch]) -> None:
        """Allow that files are lost that were not synced."""
        self._on_screen.clear()
        for launch in launches:
            self._outdated[launch.number] = len("".join(launch.ranks[0].output))

    def damaged(self, name: str, remaining: tuple[int, int]) -> None:
        """Allow that a network loses what its newest checkpoint had."""
        self._saved[name] = remaining
        self._on_screen.pop(name, None)
        self._finished.discard(name)
        self._damaged.add(name)

    # ---- checks ----

    def check(self, launches: Sequence[Launch], ended: Sequence[Launch]) -> None:
        """Compare the checkpoints with what was acknowledged.

        Args:
            launches: all launches so far.
            ended: those which have just ended.
        """
        for launch in launches:
            text = "".join(launch.ranks[0].output)[self._outdated.get(launch.number, 0) :]
            screen: dict[str, int] = {}
            for name, how, epoch in _EPOCH.findall(text):
                before = screen.get(name, 0)
                if how == "epoch":
                    screen[name] = max(before, int(epoch))
                    continue
                screen[name] = int(epoch)
                if screen[name] < before - 1 and name not in self._damaged:
                    self._object_to(f"{name} resumes after epoch {epoch} of {before}")
            for name in screen.keys() - self._damaged:
                epochs = screen[name] - (launch.status not in ORDERLY)
                self._on_screen[name] = max(self._on_screen.get(name, 0), epochs)
        # Another one may have ended while it took over.
        is_quiet = all(launch.status in ORDERLY for launch in ended)
        for name in self._saved.keys() | self._on_screen.keys():
            # A launch was interrupted while it moved the folder; the next one moves it back.
            if any(self._paths.models.glob(f".{name}.aside.tmp")):
                continue
            lookup = find_newest(self._paths, name)
            state = lookup.state
            saved = (0, 0) if state is None else (len(lookup.history), state.position)
            if saved < self._saved.get(name, (0, 0)):
                self._object_to(
                    f"{name} was saved at {self._saved[name]}, but the checkpoint is of {saved}: "
                    f"{lookup.damage}"
                )
            if is_quiet and saved[0] < self._on_screen.get(name, 0):
                self._object_to(
                    f"{name}: epoch {self._on_screen[name]} was shown, but the checkpoint has "
                    f"{saved[0]}: {lookup.damage}"
                )

    def check_stopped(self, rows: Iterable[NetworkResult]) -> None:
        """Check that networks have ended which a user has stopped."""
        for row in rows:
            if row.epochs > self._last_epochs.get(row.name, row.epochs):
                self._object_to(
                    f"{row.name} was stopped, but trained {row.epochs} epochs instead of "
                    f"{self._last_epochs[row.name]}"
                )
