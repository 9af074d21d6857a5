"""Training one network again on the stream epochs of its history: how far do the losses agree?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from fleet.errors import UserError
from fleet.spec import Batch, NetworkSpec, Spec, with_output
from fleet.storage.checkpoint import newest
from fleet.storage.identity import identity
from fleet.storage.paths import RunPaths
from fleet.storage.state import EpochRecord, State
from preprocess.sample import SampleSpec

_COMPARED = ("loss", "accuracy", "val_loss", "val_accuracy")


def largest_difference(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> float:
    """The largest relative difference of any loss or accuracy of any epoch.

    Args:
        recorded, replayed: two histories of one network.

    Raises:
        ValueError: they are not of the same stream epochs.
    """
    if [record.stream_epoch for record in recorded] != [record.stream_epoch for record in replayed]:
        raise ValueError("these histories are not of the same stream epochs")
    largest = 0.0
    for one, other in zip(recorded, replayed, strict=True):
        for name in _COMPARED:
            largest = max(largest, _difference(getattr(one, name), getattr(other, name)))
    return largest


def _difference(a: float, b: float) -> float:
    """Relative; none between what is no number twice, infinite between a number and none."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def compare(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> str:
    """Both histories beside each other, and how far they agree."""
    lines = ["epoch  stream epoch  loss recorded  replayed   val recorded  replayed"]
    lines += [f"{one.epoch:5d}  {one.stream_epoch:12d}  {one.loss:13.6f}  {other.loss:8.6f}  "
              f"{one.val_loss:12.6f}  {other.val_loss:8.6f}" for one, other in zip(recorded, replayed, strict=True)]
    return "\n".join([*lines, f"largest relative difference: {largest_difference(recorded, replayed):.2e}"])


def _replaying(spec: Spec, paths: RunPaths, name: str) -> tuple[Spec, tuple[EpochRecord, ...]]:
    """A spec of one network, trained for as many epochs as its history has."""
    if name not in spec.by_name:
        raise UserError(f"--only {name}: the spec has no such network; it has {', '.join(spec.by_name)}")
    history = _left_by(name, paths).history
    if not history:
        raise UserError(f"--replay {paths.root}: {name} has not finished an epoch there")
    network = spec.by_name[name]
    batch, optimizer = network.train.batch, network.train.optimizer
    if batch.when_scaled == "per_gpu":
        gpus = {record.gpus for record in history}
        if len(gpus) > 1 or not isinstance(optimizer.learning_rate, float):
            raise UserError(f"{name} cannot be replayed: its batch followed the GPUs (when_scaled: per_gpu), and their "
                            f"number changed ({sorted(gpus)}) or its learning rate is a schedule")
        scale = gpus.pop()
        batch = Batch(batch.size * scale)
        optimizer = dataclasses.replace(optimizer, learning_rate=optimizer.learning_rate * scale)
    converge = dataclasses.replace(network.train.converge, max_epochs=len(history), patience=None, target=None)
    train = dataclasses.replace(network.train, batch=batch, optimizer=optimizer, converge=converge)
    alone = dataclasses.replace(network, train=train, min_gpus=1, max_gpus=1)
    return dataclasses.replace(with_output(spec, paths.replay(name)), networks=(alone,)), history


def _left_by(name: str, paths: RunPaths) -> State:
    """The record of a network of the run that is replayed."""
    found = newest(paths, name, with_arrays=False)
    if found.state is None:
        raise UserError(f"--replay {paths.root}: {found.damage or f'{name} has no checkpoint there'}")
    return found.state


def _check_identity(network: NetworkSpec, spec: Spec, sample: SampleSpec, paths: RunPaths) -> None:
    if _left_by(network.name, paths).identity != identity(network, spec, sample):
        raise UserError(f"--replay {paths.root}: {network.name} was trained there with other settings than this spec "
                        f"has; the spec of that run is {paths.spec}")
