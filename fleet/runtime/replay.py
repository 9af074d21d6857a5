"""Replay: training one network again on the stream epochs of its history."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.domain.network import SCORES, Code, EpochRecord, TrainingState
from fleet.errors import UserError
from fleet.runtime.folder import writing_into
from fleet.spec import Batch, Spec, with_output
from fleet.storage.checkpoint import find_newest
from fleet.storage.files import atomic_write
from fleet.storage.identity import file_checksum, find_changes
from fleet.storage.paths import RunPaths
from fleet.units import pluralize
from preprocess.sample import SampleSpec


def _list_compared(recorded: Sequence[EpochRecord]) -> tuple[str, ...]:
    """Return the names of compared quantities: losses, accuracies and metrics."""
    return (*SCORES, *dict.fromkeys(name for record in recorded for name in record.metrics))


def largest_difference(recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord]) -> float:
    """Return the largest relative difference of any loss or accuracy of any epoch.

    Args:
        recorded, replayed: two histories of one network.

    Raises:
        ValueError: they are not of the same stream epochs.
    """
    if [record.stream_epoch for record in recorded] != [record.stream_epoch for record in replayed]:
        raise ValueError("these histories are not of the same stream epochs")
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
        deterministic: whether the second was made so.
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
        return f"{name}: not judged, neither then nor now"
    equal = sum(_difference(*pair) == 0 for pair in pairs)
    if equal == len(pairs):
        return f"{name}: equal to the last bit in all of {pluralize(len(pairs), 'epoch')}"
    furthest = max(range(len(pairs)), key=lambda place: _difference(*pairs[place]))
    old, new = pairs[furthest]
    return (
        f"{name}: equal in {equal} of {pluralize(len(pairs), 'epoch')}, furthest apart in epoch "
        f"{recorded[furthest].epoch}: {old:.6g} and {new:.6g} (by {abs(old - new):.1e}, or "
        f"{_difference(old, new):.1e} of it)"
    )


def _describe_scope(
    recorded: Sequence[EpochRecord], replayed: Sequence[EpochRecord], deterministic: bool
) -> str:
    """Describe what was equal in both trainings, and what may differ."""
    before, now = ({record.gpus for record in history} for history in (recorded, replayed))
    sizes = f"on groups of {' and '.join(map(str, sorted(before)))}, replayed on {' and '.join(map(str, sorted(now)))}"
    if before != now:
        return f"trained {sizes}: sums over other groups are added up in another order"
    if not deterministic:
        return f"trained {sizes}, without train.deterministic: its engine may add up in another order each time"
    return (
        f"trained {sizes}, with train.deterministic: equal on the same machine and version of its engine, if the "
        "run was trained so too"
    )


@dataclass(frozen=True)
class Replay:
    """A network to train again.

    Attributes:
        run: of which.
        name: of the network.
        history: that it has there.
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
            changed: what has changed of the data, in words.
            accepts_changes: whether other data and other code are asked for.

        Raises:
            UserError: data, code or settings have changed.
        """
        network = spec.by_name[self.name]
        if changed and not accepts_changes:
            raise UserError(
                f"--replay {self.run.root}: the data has changed since networks were trained there: "
                f"{'; '.join(changed)}: go back to what it was, or compare all the same with "
                "--accept-changes"
            )
        files = find_changes(
            network,
            spec,
            sample,
            codes[network.architecture.target],
            _read_history(self.name, self.run),
        )
        if files and not accepts_changes:
            raise UserError(
                f"--replay {self.run.root}: the code of {self.name} ({', '.join(files)}) has changed since "
                "it was trained there: go back to what it was, or compare all the same with "
                "--accept-changes"
            )
        start = network.train.initial_weights
        if (
            self.history[0].start
            and start
            and not accepts_changes
            and (file_checksum(Path(start.file)) != self.history[0].start)
        ):
            raise UserError(
                f"--replay {self.run.root}: {start.file}, with whose weights {self.name} began there, has "
                "changed since, or is gone: go back to what it was, or compare all the same with "
                "--accept-changes"
            )
        if files is None:
            raise UserError(
                f"--replay {self.run.root}: {self.name} was trained there with other settings than this "
                f"spec has; the spec of that run is {self.run.spec}"
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

    On as many GPUs as it had, if that number did not change and there are so many; otherwise on
    one.

    Args:
        trainers: how many there are.
    """
    if name not in spec.by_name:
        raise UserError(
            f"--only {name}: the spec has no such network; it has {', '.join(spec.by_name)}"
        )
    history = _read_history(name, paths).history
    if not history:
        raise UserError(f"--replay {paths.root}: {name} has not finished an epoch there")
    network = spec.by_name[name]
    batch = network.train.batch
    optimizer = network.train.optimizer
    if batch.when_scaled == "per_gpu":
        gpus = {record.gpus for record in history}
        if len(gpus) > 1 or not isinstance(optimizer.learning_rate, float):
            raise UserError(
                f"{name} cannot be replayed: its batch followed the GPUs (when_scaled: per_gpu), and their "
                f"number changed ({sorted(gpus)}) or its learning rate is not a number in the spec"
            )
        scale = gpus.pop()
        batch = Batch(batch.bounds[0] * scale)
        optimizer = dataclasses.replace(optimizer, learning_rate=optimizer.learning_rate * scale)
    converge = dataclasses.replace(
        network.train.stopping, max_epochs=len(history), patience=None, stop_at=None
    )
    train = dataclasses.replace(network.train, batch=batch, optimizer=optimizer, stopping=converge)
    sizes = {record.gpus for record in history}
    size = max(sizes) if len(sizes) == 1 and max(sizes) <= trainers else 1
    alone = dataclasses.replace(network, train=train, min_gpus=size, max_gpus=size)
    return dataclasses.replace(with_output(spec, paths.replay(name)), networks=(alone,)), Replay(
        paths, name, history
    )


def _read_history(name: str, paths: RunPaths) -> TrainingState:
    """Read the state of a network of the replayed run."""
    lookup = find_newest(paths, name, with_arrays=False)
    if lookup.state is None:
        raise UserError(
            f"--replay {paths.root}: {lookup.damage or f'{name} has no checkpoint there'}"
        )
    return dataclasses.replace(lookup.state, history=lookup.history)
