"""Nothing is left open or behind, and what is open does not grow with the number of networks."""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from tests.simulate import kernel as k
from tests.simulate import mpi
from tests.simulate.cluster import Launch
from tests.simulate.disk import Disk

# For any number of networks.
MOST_FILES = 16
MOST_THREADS = 12
MOST_NETWORKS = 4
# A rank keeps these until it exits: the pipe of signals, its log, and shared memory.
_UNTIL_EXIT = re.compile(
    r"pipe:.*|.*/logs/(.*/)?rank-\d+\.log|.*/dev/shm/fleet-(?!\d+-sum-)[^/]*( \(deleted\))?"
)
# A searcher of the user may hang.
_THREADS_UNTIL_EXIT = {"main", "signals", "searcher"}


class ResourceOracle:
    """Watches open files, threads and temporary files of all ranks.

    Args:
        object_to: is called with what is wrong.

    Attributes:
        most_files, most_threads, most_networks: the largest numbers of a rank so far.
    """

    def __init__(self, disk: Disk, object_to: Callable[[str], None]) -> None:
        self._disk = disk
        self._object_to = object_to
        self._temporary: defaultdict[k.Process, set[str]] = defaultdict(set)
        self._networks = defaultdict[k.Process, WeakSet[Any]](WeakSet)
        self.most_files = self.most_threads = self.most_networks = 0

    def begin(self, launch: Launch) -> None:
        """Watch the ranks of a launch."""
        for rank in launch.ranks:
            rank.on_end.append(partial(self._end, rank))

    def did(self, call: str, path: str) -> None:
        """A process has changed a file."""
        name = posixpath.basename(path)
        process = self._disk.kernel.process
        if process is None or not (name.startswith(".") and ".tmp" in name):
            return
        if call == "create":
            self._temporary[process].add(path)
        elif call in ("unlink", "rename"):
            self._temporary[process].discard(path)

    def count(self, process: k.Process) -> None:
        """Count what a rank has open."""
        self.most_files = max(self.most_files, len(process.descriptors))
        threads = sum(not task.is_done for task in process.tasks)
        self.most_threads = max(self.most_threads, threads)
        if len(process.descriptors) > MOST_FILES:
            self._object_to(f"{process} has {len(process.descriptors)} files open")
        if threads > MOST_THREADS:
            self._object_to(f"{process} has {threads} threads")

    def begins_part(self, process: k.Process, trainable: Any) -> None:
        """A rank trains a network; count those which are in its memory."""
        networks = self._networks[process]
        networks.add(trainable)
        self.most_networks = max(self.most_networks, len(networks))
        if len(networks) > MOST_NETWORKS:
            self._object_to(f"{process} has {len(networks)} networks in memory")

    def _end(self, process: k.Process) -> None:
        """Check what a rank leaves that exits by itself."""
        if not process.has_returned:
            return
        files = [_target(descriptor) for descriptor in process.descriptors]
        if left_open := [file for file in files if not _UNTIL_EXIT.fullmatch(file)]:
            self._object_to(f"{process} exits with open files: {left_open}")
        threads = {
            task.name
            for task in process.tasks
            if not task.is_done and task.waits_for != mpi.AFTER_ABORT
        }
        if threads - _THREADS_UNTIL_EXIT:
            self._object_to(f"{process} exits with threads: {threads}")
        faults = self._disk.faults
        if faults.errors or faults.fills or faults.quotas:  # which may refuse to delete a file
            return
        for path in self._temporary[process]:
            if os.path.lexists(path):
                self._object_to(f"{process} leaves {path}")


def _target(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return f"closed descriptor {descriptor}"
