"""How much of the disk the checkpoints of a run may take: ``checkpoint.quota`` of a spec.

All that lies in the run's ``models/`` counts: checkpoints, exports, and what is being written. The rank that
writes looks before it does; ranks that write at the same moment may pass the quota by what they write.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fleet.errors import StorageError
from fleet.spec import Checkpoint
from fleet.storage.paths import RunPaths
from fleet.units import format_size

log = logging.getLogger("fleet.storage.quota")


class Quota:
    """Makes room for a file, or refuses it.

    Args:
        settings: of the spec.
    """

    def __init__(self, paths: RunPaths, settings: Checkpoint) -> None:
        self._paths, self._limit = paths, settings.quota

    def make_room(self, path: Path, wanted: int) -> None:
        """Drop checkpoints from which nobody goes on, those before the newest, until a file has room.

        That of the file's own network goes first: it will have another one soon. What finished networks gave for
        samples goes last.

        Args:
            path: of the file, in the folder of a network.
            wanted: its bytes.

        Raises:
            StorageError: there is no room; no newest checkpoint, and no best one, was touched.
        """
        if self._limit is None:
            return
        droppable = sorted(filter(self._has_newer, self._paths.all_previous()),
                           key=lambda previous: previous.parent != path.parent)
        droppable += self._paths.all_predictions()
        while (used := self.used()) + wanted > self._limit:
            if not droppable:
                raise StorageError(
                    f"{path} cannot be written: with its {format_size(wanted)} the checkpoints would take "
                    f"{format_size(used + wanted)}, and checkpoint.quota is {format_size(self._limit)}; what was saved "
                    "before is intact: raise the quota, or ask for `keep: last`, and the same command resumes the run")
            log.info("dropping %s for the quota", droppable[0])
            droppable.pop(0).unlink(missing_ok=True)

    def _has_newer(self, previous: Path) -> bool:
        """Whether there is a newer one: a launch that died between two renames leaves none."""
        return self._paths.last(previous.parent.name).exists()

    def has_room(self, wanted: int) -> bool:
        """Whether so many bytes have room without anything being dropped."""
        return self._limit is None or self.used() + wanted <= self._limit

    def used(self) -> int:
        """Bytes of all that lies in the folders of the networks."""
        total = 0
        for folder, _, files in os.walk(self._paths.models):
            for name in files:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:  # another rank has just renamed it
                    continue
        return total
