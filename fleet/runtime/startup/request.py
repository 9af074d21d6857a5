"""The request, step 1 of a start: the command line; and the durations of the start."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.storage.paths import RunPaths
from launch.processes import command_began_s

IDLE_S = 300.0


@dataclass(frozen=True)
class Request:
    """The options of the command line.

    Attributes:
        spec: path of the spec.
        fresh: whether to start over.
        fresh_network: names of networks to start over.
        accept_changes: whether to continue if data or code have changed.
        replay, only: train one network of a run again: its folder, and the network's name.
        plain: whether to print plain lines.
        walltime: how long the launch may take, in seconds; None for no limit.
        remeasure: whether to ignore cached rates.
        shares_run: whether to share the run with other launches.
        idle_timeout: seconds without a network after which a launch that shares its run ends.
    """

    spec: str
    fresh: bool = False
    fresh_network: tuple[str, ...] = ()
    accept_changes: bool = False
    replay: str | None = None
    only: str | None = None
    plain: bool = False
    walltime: float | None = None
    remeasure: bool = False
    shares_run: bool = False
    idle_timeout: float = IDLE_S

    @property
    def replayed(self) -> RunPaths | None:
        """The run of the network to train again."""
        if self.replay is None:
            return None
        return RunPaths(Path(self.replay).absolute())

    @property
    def spec_folder(self) -> Path:
        """The folder of the spec."""
        return Path(self.spec).absolute().parent

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders from which the spec's modules are imported: the working folder, the spec's."""
        return tuple(dict.fromkeys(map(str, (Path.cwd(), self.spec_folder))))


class StartupTimer:
    """The durations of the parts of a start-up.

    Two parts are over when the timer is made: the launcher, if there is one, and Python with the
    first modules.
    """

    def __init__(self) -> None:
        self._now = time.clock_gettime(time.CLOCK_BOOTTIME)
        began = command_began_s(os.getpid())
        self._parts: dict[str, float] = {}
        if began is not None:
            self._parts["launcher"] = began[1] - began[0]
            self._parts["python"] = max(0.0, self._now - began[1])

    def end(self, part: str) -> None:
        """Record the end of a part, which began at the end of the last one."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._parts[part] = self._parts.get(part, 0.0) + now - self._now
        self._now = now

    @property
    def seconds(self) -> Mapping[str, float]:
        """Part -> seconds, rounded to milliseconds."""
        return {part: round(seconds, 3) for part, seconds in self._parts.items()}
