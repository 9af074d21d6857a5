"""Limit the disk space of a run's checkpoints: ``checkpoint.quota`` of a spec.

Everything in the run's ``models/`` counts: checkpoints, exports, and files being written. The
writing rank checks before it writes, so simultaneous writes may exceed the quota.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fleet.errors import StorageError, UserError
from fleet.spec import Checkpoint, NetworkSpec, Spec
from fleet.spec.engine_keys import optimizer_slots
from fleet.spec.layers import count_for
from fleet.storage.files import storage_errors
from fleet.storage.paths import RunPaths
from fleet.units import format_size
from launch.errors import pluralize
from preprocess.sample import SampleSpec

log = logging.getLogger("fleet.storage.quota")


class Quota:
    """Makes room for files within the quota, or refuses them.

    Args:
        paths: files of the run.
        settings: ``checkpoint`` of the spec.
    """

    def __init__(self, paths: RunPaths, settings: Checkpoint) -> None:
        self._paths = paths
        self._limit = settings.quota

    def make_room(self, path: Path, size: int) -> None:
        """Delete previous checkpoints until a file has room.

        The one of the file's own network is deleted first, because it will soon be replaced. Saved
        predictions of finished networks are deleted last.

        Args:
            path: path of the file, in the folder of a network.
            size: size in bytes.

        Raises:
            StorageError: there is no room; no newest and no best checkpoint was deleted.
        """
        if self._limit is None:
            return
        with storage_errors(self._paths.models):
            # A launch that died between two renames leaves no newer one.
            droppable = [
                checkpoint
                for checkpoint in self._paths.all_previous()
                if self._paths.last(checkpoint.parent.name).exists()
            ]
            droppable.sort(key=lambda previous: previous.parent != path.parent)
            droppable += self._paths.all_predictions()
            while (used := self.used()) + size > self._limit:
                if not droppable:
                    raise StorageError(
                        f"{path} cannot be written: with its {format_size(size)} the checkpoints "
                        f"would take {format_size(used + size)}, and checkpoint.quota is "
                        f"{format_size(self._limit)}; what was saved before is intact: raise the "
                        "quota, or ask for `keep: last`, and the same command resumes the run"
                    )
                log.info("dropping %s for the quota", droppable[0])
                droppable.pop(0).unlink(missing_ok=True)

    def has_room(self, size: int) -> bool:
        """Return True if a number of bytes fits without deleting anything.

        Raises:
            StorageError: the folders of the networks cannot be read.
        """
        if self._limit is None:
            return True
        with storage_errors(self._paths.models):
            return self.used() + size <= self._limit

    def used(self) -> int:
        """Return the bytes of all files in the folders of the networks."""
        total = 0
        for folder, _, files in os.walk(self._paths.models, onerror=_raise):
            for name in files:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:  # another rank has just renamed it
                    continue
        return total


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a folder that was deleted meanwhile
        raise error


# ---- as far as it is known before any is written -------------------------------------------------


def checkpoint_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Return the bytes of a checkpoint's arrays: weights and optimizer state.

    Args:
        parameters: number of weights.
        network: the network that has them.
        spec: spec of the run.
    """
    return spec.engine.checkpoint_bytes(
        parameters, optimizer_slots(network.train.optimizer, spec.engine)
    )


def folder_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Return the maximum bytes of a network's files at a time.

    These are the last checkpoint, the previous one, one being written, the best, and the export in
    float32.

    Args:
        parameters: number of weights.
        network: the network that has them.
        spec: spec of the run.
    """
    copies = 3 if spec.checkpoint.keep == "last" else 4
    return copies * checkpoint_bytes(parameters, network, spec) + 4 * parameters


def check_quota(spec: Spec, sample: SampleSpec) -> None:
    """Refuse a quota that is certainly too small, by parameters known without building.

    Args:
        spec: spec of the run.
        sample: shape and type of the inputs.

    Raises:
        UserError: the quota is less than the checkpoints of each network and one being written.
    """
    quota = spec.checkpoint.quota
    if quota is None or not spec.engine.learns:
        return
    sizes = [
        checkpoint_bytes(
            count_for(network.architecture.settings, sample.for_pipeline(network.pipeline)),
            network,
            spec,
        )
        for network in spec.networks
        if network.architecture.kind == "family"
    ]
    copies = 1 if spec.checkpoint.keep == "last" else 2
    min_size = copies * sum(sizes) + max(sizes, default=0)
    if min_size > quota:
        raise UserError(
            f"checkpoint.quota: {format_size(quota)} is too small: {spec.checkpoint.keep} of "
            f"{pluralize(len(sizes), 'network')}, and one being written, need at least "
            f"{format_size(min_size)}"
        )
