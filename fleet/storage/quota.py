"""How much of the disk the checkpoints of a run may take: ``checkpoint.quota`` of a spec.

All that lies in the run's ``models/`` counts: checkpoints, exports, and what is being written. The rank that
writes looks before it does; ranks that write at the same moment may pass the quota by what they write.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fleet.errors import StorageError, UserError
from fleet.spec import Checkpoint, NetworkSpec, Spec
from fleet.spec.parameters import count_parameters
from fleet.storage.paths import RunPaths
from fleet.units import format_size
from preprocess.sample import SampleSpec

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

        That of the file's own network goes first: it will have another one soon.

        Args:
            path: of the file, in the folder of a network.
            wanted: its bytes.

        Raises:
            StorageError: there is no room; no newest checkpoint, and no best one, was touched.
        """
        if self._limit is None:
            return
        droppable = sorted(self._paths.all_previous(), key=lambda previous: previous.parent != path.parent)
        while (used := self.used()) + wanted > self._limit:
            if not droppable:
                raise StorageError(
                    f"{path} cannot be written: with its {format_size(wanted)} the checkpoints would take "
                    f"{format_size(used + wanted)}, and checkpoint.quota is {format_size(self._limit)}; what was saved "
                    "before is whole: raise the quota, or ask for `keep: last`, and the same command goes on")
            log.info("dropping %s for the quota", droppable[0])
            droppable.pop(0).unlink(missing_ok=True)

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


def check_quota(spec: Spec, sample: SampleSpec) -> None:
    """Refuse a quota that cannot be enough, as far as parameters can be counted without building networks.

    Raises:
        UserError: it is less than what is kept of each network, and one checkpoint that is being written.
    """
    quota = spec.checkpoint.quota
    sizes = [size for network in spec.networks if (size := _state_bytes(network, spec, sample))]
    if quota is None or not sizes:
        return
    kept = 1 if spec.checkpoint.keep == "last" else 2
    if (least := kept * sum(sizes) + max(sizes)) > quota:
        raise UserError(f"checkpoint.quota: {format_size(quota)} is too little: {spec.checkpoint.keep} of "
                        f"{len(sizes)} networks, and one being written, take {format_size(least)} at least")


def _state_bytes(network: NetworkSpec, spec: Spec, sample: SampleSpec) -> int:
    """Bytes of a checkpoint's arrays, without building the network; 0 where nobody knows."""
    if network.architecture.kind != "family" or not spec.engine.learns:
        return 0
    parameters = count_parameters(network.architecture.settings, sample.image.shape, sample.classes)
    return array_bytes(parameters, network, spec)


def array_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Bytes of a checkpoint's arrays: the weights, so many, and what the optimizer keeps of each."""
    return spec.engine.checkpoint_bytes(parameters, network.train.optimizer.slots)
