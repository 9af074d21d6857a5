"""Replay: training one network again on the stream epochs of its history."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.domain.network import SCORES, Code, EpochRecord, TrainingState
from fleet.errors import UserError
from fleet.runtime.startup.folder import writing_into
from fleet.spec import Batch, Spec, with_output
from fleet.storage.checkpoint import find_newest
from fleet.storage.files import atomic_write
from fleet.storage.identity import code_of, file_checksum, find_changes
from fleet.storage.paths import RunPaths
from launch.errors import pluralize
from preprocess.sample import SampleSpec


def _list_compared(recorded: Sequence[EpochRecord]) -> tuple[str, ...]:
    """Return the names of compared quantities: losses, accuracies and metrics."""
    return (*SCORES, *dict.fromkeys(name for record in recorded for name in record.metrics))


def largest_difference(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> float:
    """Return the largest relative difference of any loss or accuracy of any epoch.

    Args:
        recorded, replayed: two histories of one network.

    Raises:
        ValueError: the histories differ in their stream epochs.
    """
    if [record.stream_epoch for record in recorded] != [record.stream_epoch for record in replayed]:
        raise ValueError("the histories differ in their stream epochs")
    largest = 0.0
    for old, new in zip(recorded, replayed, strict=True):
        for name in _list_compared(recorded):
            largest = max(largest, _difference(old.value(name), new.value(name)))
    return largest


def _difference(a: float, b: float) -> float:
    """Return a relative difference: 0 for two NaN, infinite for NaN and a number."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def compare(
    recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord], deterministic: bool = False
) -> str:
    """Compare two histories of a network in a table, with causes of differences.

    Args:
        recorded, replayed: two histories of one network.
        deterministic: whether the network was replayed with ``train.deterministic``.
    """
    lines = ["epoch  stream epoch  loss recorded  replayed   val recorded  replayed"]
    lines += [
        f"{old.epoch:5d}  {old.stream_epoch:12d}  {old.loss:13.6f}  {new.loss:8.6f}  "
        f"{old.val_loss:12.6f}  {new.val_loss:8.6f}"
        for old, new in zip(recorded, replayed, strict=True)
    ]
    lines += [_describe_agreement(name, recorded, replayed) for name in _list_compared(recorded)]
    lines += [_describe_scope(recorded, replayed, deterministic)]
    return "\n".join(
        [*lines, f"largest relative difference: {largest_difference(recorded, replayed):.2e}"]
    )


def _describe_agreement(
    name: str, recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]
) -> str:
    """Describe how far one quantity agrees over all epochs."""
    pairs = [
        (old.value(name), new.value(name)) for old, new in zip(recorded, replayed, strict=True)
    ]
    if all(math.isnan(old) and math.isnan(new) for old, new in pairs):
        return f"{name}: not evaluated in either training"
    equal = sum(_difference(*pair) == 0 for pair in pairs)
    if equal == len(pairs):
        return f"{name}: bitwise equal in all of {pluralize(len(pairs), 'epoch')}"
    largest = max(range(len(pairs)), key=lambda index: _difference(*pairs[index]))
    old, new = pairs[largest]
    return (
        f"{name}: bitwise equal in {equal} of {pluralize(len(pairs), 'epoch')}; largest difference "
        f"in epoch {recorded[largest].epoch}: {old:.6g} and {new:.6g} (absolute "
        f"{abs(old - new):.1e}, relative {_difference(old, new):.1e})"
    )


def _describe_scope(
    recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord], deterministic: bool
) -> str:
    """Describe what was equal in both trainings, and why results may differ."""
    before, now = (
        " and ".join(map(str, sorted({record.gpus for record in history})))
        for history in (recorded, replayed)
    )
    sizes = f"trained on groups of {before}, replayed on {now}"
    if before != now:
        return f"{sizes}: groups of another size sum in another order"
    if not deterministic:
        return (
            f"{sizes}, without train.deterministic: the engine may sum in another order each time"
        )
    return (
        f"{sizes}, with train.deterministic: bitwise equal on the same machine and version of the "
        "engine, if the run also used train.deterministic"
    )


@dataclass(frozen=True)
class Replay:
    """A network to train again.

    Attributes:
        run: the folder of the run.
        name: the network's name.
        history: the network's history in this run.
    """

    run: RunPaths
    name: str
    history: tuple[EpochRecord, ...]

    def check(
        self,
        spec: Spec,
        sample: SampleSpec,
        codes: Mapping[str, Code],
        changed: Sequence[str],
        accepts_changes: bool,
    ) -> None:
        """Refuse to replay if data, code or settings have changed.

        Args:
            spec: the spec of the replay.
            sample: the specification of a training sample.
            codes: import path of a ``build:`` function -> its files.
            changed: descriptions of changes of the data.
            accepts_changes: whether changes of data and code are accepted.

        Raises:
            UserError: data, code or settings have changed.
        """
        remedy = "restore it, or compare nevertheless with --accept-changes"
        network = spec.by_name[self.name]
        if changed and not accepts_changes:
            raise UserError(
                f"--replay {self.run.root}: the data has changed since this run: "
                f"{'; '.join(changed)}: {remedy}"
            )
        files = find_changes(
            network,
            spec,
            sample,
            code_of(network, spec, codes),
            _read_history(self.name, self.run),
        )
        if files and not accepts_changes:
            raise UserError(
                f"--replay {self.run.root}: the code of {self.name} ({', '.join(files)}) has "
                f"changed since this run: {remedy}"
            )
        start = network.train.initial_weights
        if (
            self.history[0].start
            and start
            and not accepts_changes
            and (file_checksum(Path(start.file)) != self.history[0].start)
        ):
            raise UserError(
                f"--replay {self.run.root}: {start.file}, the initial weights of {self.name}, has "
                f"changed since this run or is missing: {remedy}"
            )
        if files is None:
            raise UserError(
                f"--replay {self.run.root}: {self.name} was trained with other settings than in "
                f"this spec; the spec of the run is {self.run.spec}"
            )

    def copy_initial_weights(self, paths: RunPaths) -> None:
        """Copy the weights that the network inherited from its parent."""
        first = self.run.first(self.name)
        if first.exists():
            with writing_into(paths):
                paths.model(self.name).mkdir(parents=True, exist_ok=True)
                with atomic_write(paths.first(self.name), "wb") as file:
                    file.write(first.read_bytes())


def make_replay(spec: Spec, paths: RunPaths, name: str, trainers: int) -> tuple[Spec, Replay]:
    """Make the spec of one network with as many epochs as its history has.

    It is trained on the same number of GPUs as in the run, if that number did not change and there
    are enough trainers; otherwise on one.

    Args:
        spec: the spec of the run.
        paths: the folder of the run.
        name: the network's name.
        trainers: number of trainers.

    Raises:
        UserError: the network cannot be replayed.
    """
    if name not in spec.by_name:
        raise UserError(
            f"--only {name}: the spec has no network of this name; it has {', '.join(spec.by_name)}"
        )
    # A replay takes another time, so it cannot end an epoch at a time limit.
    history = tuple(record for record in _read_history(name, paths).history if not record.cut_at)
    if not history:
        raise UserError(f"--replay {paths.root}: {name} has not finished an epoch in this run")
    network = spec.by_name[name]
    batch = network.train.batch
    optimizer = network.train.optimizer
    if batch.when_scaled == "per_gpu":
        gpus = {record.gpus for record in history}
        if len(gpus) > 1 or not isinstance(optimizer.learning_rate, float):
            raise UserError(
                f"--only {name}: {name} cannot be replayed: its batch depended on the number of "
                f"GPUs (when_scaled: per_gpu), and that number changed ({sorted(gpus)}) or its "
                "learning rate is not a number in the spec"
            )
        scale = gpus.pop()
        batch = Batch(batch.bounds[0] * scale)
        optimizer = dataclasses.replace(optimizer, learning_rate=optimizer.learning_rate * scale)
    stopping = dataclasses.replace(
        network.train.stopping, max_epochs=len(history), patience=None, stop_at=None, max_time=None
    )
    train = dataclasses.replace(network.train, batch=batch, optimizer=optimizer, stopping=stopping)
    sizes = {record.gpus for record in history}
    size = max(sizes) if len(sizes) == 1 and max(sizes) <= trainers else 1
    network = dataclasses.replace(network, train=train, min_gpus=size, max_gpus=size)
    spec = dataclasses.replace(with_output(spec, paths.replay(name)), networks=(network,))
    return spec, Replay(paths, name, history)


def _read_history(name: str, paths: RunPaths) -> TrainingState:
    """Read the state of a network of the replayed run."""
    lookup = find_newest(paths, name, with_arrays=False)
    if lookup.state is None:
        raise UserError(
            f"--replay {paths.root}: {lookup.damage or f'{name} has no checkpoint in this run'}"
        )
    return dataclasses.replace(lookup.state, history=lookup.history)
