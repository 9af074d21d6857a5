"""Write a run for trackers while the run goes on, in a separate process.

    python -m fleet.export.follow SPEC RUN mlflow=DIR wandb=DIR optuna=FILE

Rank 0 starts the process, and sends it a byte whenever there are new results. Its input ends with
the launch. The first failure of a tracker is a line of JSON on its output; that tracker is then
tried again only at the end.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fleet.errors import FleetError
from fleet.export.tracked_run import read_tracked_run
from fleet.export.trackers import load, write
from fleet.spec import allow_imports_beside
from fleet.storage.paths import RunPaths

# The pause between two writes: a multiple of the last write, and a minimum.
_PAUSE = 4
_MIN_PAUSE_S = 1.0
_MAX_OUTLIVE_S = 120.0  # how long the process may outlive the launch


def main(argv: list[str]) -> None:
    """Follow a run until its launch has ended."""
    spec, run, *targets = argv
    with suppress(OSError):
        os.nice(19)  # training comes first
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to the log
    threading.Thread(target=_end_in_time, args=(os.getppid(),), daemon=True).start()
    allow_imports_beside(spec)
    follower = Follower(
        RunPaths(Path(run)),
        [(name, Path(path)) for name, _, path in (target.partition("=") for target in targets)],
        out,
    )
    for name, _ in follower.targets:
        with suppress(BaseException):  # imported again on the first write, which reports the error
            load(name)
    for is_last in write_requests(0):
        follower.write(is_last)


@dataclass
class Follower:
    """Writes a run for some trackers."""

    paths: RunPaths
    targets: list[tuple[str, Path]]
    out: IO[str]
    _failed: set[tuple[str, Path]] = field(default_factory=set)

    def write(self, is_last: bool) -> None:
        """Write new results."""
        for name, path in self.targets:
            if (name, path) in self._failed and not is_last:
                continue
            try:
                write(name, read_tracked_run(self.paths), path)
            except BaseException as error:  # a library may raise anything, or exit
                traceback.print_exc()
                self._report(name, path, error)

    def _report(self, name: str, path: Path, error: BaseException) -> None:
        if (name, path) not in self._failed:
            self._failed.add((name, path))
            if isinstance(error, FleetError):
                reason = str(error)
            else:
                reason = f"{type(error).__name__}: {error}"
            failure = {"tracker": name, "path": str(path), "reason": " ".join(reason.split())[:500]}
            with suppress(OSError):  # the launch may have ended
                print(json.dumps(failure), file=self.out, flush=True)


def write_requests(source: int) -> Iterator[bool]:
    """Yield each time there are results to write; True for the last time.

    Args:
        source: the file descriptor that delivers bytes.
    """
    is_last = False
    pause_s = _MIN_PAUSE_S
    while not is_last:
        is_last = not os.read(source, 1 << 16) or _ends_within(source, pause_s)
        began = time.monotonic()
        yield is_last
        pause_s = max(_MIN_PAUSE_S, _PAUSE * (time.monotonic() - began))


def _ends_within(source: int, seconds: float) -> bool:
    """Return True if a source ends within some seconds; bytes that arrive meanwhile are merged."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if select.select([source], [], [], left_s)[0] and not os.read(source, 1 << 16):
            return True
    return False


def _end_in_time(parent: int) -> None:
    """End this process some time after the launch has ended, even if a library hangs."""
    while os.getppid() == parent:
        time.sleep(5.0)
    time.sleep(_MAX_OUTLIVE_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
