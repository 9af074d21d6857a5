"""A process beside a launch that writes a run for trackers, again and again while the run goes on.

    python -m fleet.export.follow SPEC RUN mlflow=DIR wandb=DIR optuna=FILE

Rank 0 starts it, and writes a byte whenever there is something new. Its input ends when the launch does. What goes
wrong with a tracker is said once, as a line of JSON on its output; the tracker is then tried again at the end alone.
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

# between two writings: so many times as long as the last one took, or so many seconds
_PAUSE = 4
_LEAST_S = 1.0
_ALONE_S = 120.0  # for which it outlives the launch at most


def main(argv: list[str]) -> None:
    """Follow a run until its launch has ended."""
    spec, run, *wanted = argv
    with suppress(OSError):
        os.nice(19)  # training comes first
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes into the log
    threading.Thread(target=_end_in_time, args=(os.getppid(),), daemon=True).start()
    allow_imports_beside(spec)
    follower = Follower(
        RunPaths(Path(run)),
        [(name, Path(path)) for name, _, path in (one.partition("=") for one in wanted)],
        out,
    )
    for name, _ in follower.targets:
        with suppress(BaseException):  # it is imported again when it is wanted, and that is told
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
        """Write what is new."""
        for name, path in self.targets:
            if (name, path) in self._failed and not is_last:
                continue
            try:
                write(name, read_tracked_run(self.paths), path)
            except BaseException as error:  # a library may raise anything, or exit
                traceback.print_exc()
                self._say(name, path, error)

    def _say(self, name: str, path: Path, error: BaseException) -> None:
        if (name, path) not in self._failed:
            self._failed.add((name, path))
            if isinstance(error, FleetError):
                why = str(error)
            else:
                why = f"{type(error).__name__}: {error}"
            said = {"tracker": name, "path": str(path), "reason": " ".join(why.split())[:500]}
            with suppress(OSError):  # nobody may be there to hear it
                print(json.dumps(said), file=self.out, flush=True)


def write_requests(source: int) -> Iterator[bool]:
    """Whether this is the last time, each time that something is to be written.

    Args:
        source: the descriptor on which bytes come.
    """
    is_last = False
    pause_s = _LEAST_S
    while not is_last:
        is_last = not os.read(source, 1 << 16) or _ends_within(source, pause_s)
        began = time.monotonic()
        yield is_last
        pause_s = max(_LEAST_S, _PAUSE * (time.monotonic() - began))


def _ends_within(source: int, seconds: float) -> bool:
    """Whether a source ends within so many seconds; what comes in them is one call with what came before."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if select.select([source], [], [], left_s)[0] and not os.read(source, 1 << 16):
            return True
    return False


def _end_in_time(parent: int) -> None:
    """End this process a while after the launch has ended, whatever hangs here."""
    while os.getppid() == parent:
        time.sleep(5.0)
    time.sleep(_ALONE_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
