"""Trials of another tool in a JSON file that `search.warm_start` reads like the folder of a run.

::

    {"format": "fleet trials 1",
     "source": "study.log",
     "objectives": [{"value": "val_accuracy", "mode": "maximize"}],
     "trials": [{"name": "trial-0",
                 "values": {"train.optimizer.learning_rate": 0.01},
                 "outcome": "finished",
                 "results": [0.91],
                 "curve": [0.5, 0.8, 0.91],
                 "violations": []}]}

``values`` has the keys of a space that were drawn, ``outcome`` is ``finished``, ``pruned`` or
``failed``, ``results`` has a value for each objective, ``curve`` the first objective of each epoch,
and ``violations`` a number for each constraint, which is met if the number is at most 0. An unknown
number is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fleet.domain.network import Score
from fleet.errors import UserError
from fleet.spec.old_keys import values_with_new_names
from fleet.storage.files import atomic_write
from launch.errors import pluralize

FORMAT: Literal["fleet trials 1"] = "fleet trials 1"
_LARGEST_FILE = 2**30  # bytes


@dataclass(frozen=True)
class FileObjective:
    """An objective of the trials of a file."""

    value: Annotated[str, Field(min_length=1)]
    mode: Literal["maximize", "minimize"]


@dataclass(frozen=True)
class FileTrial:
    """A trial of a file.

    Attributes:
        name: its name.
        values: values by the keys of the space.
        outcome: ``finished``, ``pruned`` or ``failed``.
        results: the value of each objective, NaN if unknown.
        curve: the first objective of each epoch.
        violations: a number for each constraint; it is met if the number is at most 0.
    """

    name: str
    values: Mapping[str, Any]
    outcome: Literal["finished", "pruned", "failed"]
    results: tuple[Score, ...] = ()
    curve: tuple[Score, ...] = ()
    violations: tuple[Score, ...] = ()


@dataclass(frozen=True)
class TrialsFile:
    """The content of a file of trials.

    Attributes:
        objectives: the objectives, the monitored value first.
        trials: the trials.
        source: where they come from.
        format: the version of the format.
    """

    objectives: Annotated[tuple[FileObjective, ...], Field(min_length=1)]
    trials: tuple[FileTrial, ...] = ()
    source: str = ""
    format: Literal["fleet trials 1"] = field(default=FORMAT)


_FILE = TypeAdapter(TrialsFile)


def read_trials_file(path: Path) -> TrialsFile:
    """Read a file of trials.

    Raises:
        UserError: it cannot be read, or its content is something else.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path} is larger than 1 GB; it should be a file of `fleet import`")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # no UTF-8, or no JSON
        raise UserError(
            f"{path} is no JSON file of trials; it should be a file of `fleet import`, or the "
            "folder of a run"
        ) from None
    try:
        read = _FILE.validate_python(content)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key = ".".join(map(str, mistake["loc"])) or "content"
        raise UserError(
            f"{path}: {key}: {mistake['msg']}; it should be a file of `fleet import`"
        ) from None
    for number, trial in enumerate(read.trials):
        if len(trial.results) != len(read.objectives):
            raise UserError(
                f"{path}: trials.{number}.results: {len(trial.results)} values; it should have one "
                f"for each of {pluralize(len(read.objectives), 'objective')}"
            )
    return read


def write_trials_file(path: Path, content: TrialsFile) -> None:
    """Write a file of trials.

    Raises:
        StorageError: the file system refused.
    """
    record = {
        "format": content.format,
        "source": content.source,
        "objectives": [vars(objective) for objective in content.objectives],
        "trials": [_as_json(trial) for trial in content.trials],
    }
    head, _, trials = json.dumps({**record, "trials": []}, indent=1).rpartition("[]")
    lines = ",\n  ".join(json.dumps(trial, allow_nan=False) for trial in record["trials"])
    with atomic_write(path) as file:
        file.write(f"{head}[\n  {lines}\n ]{trials}\n" if lines else f"{head}[]{trials}\n")


def _as_json(trial: FileTrial) -> dict[str, Any]:
    return {
        "name": trial.name,
        "values": dict(trial.values),
        "outcome": trial.outcome,
        **{
            key: [number if math.isfinite(number) else None for number in numbers]
            for key, numbers in (
                ("results", trial.results),
                ("curve", trial.curve),
                ("violations", trial.violations),
            )
            if numbers
        },
    }


def values_of(trial: FileTrial) -> dict[str, Any]:
    """Return the values of a trial under the current names of the keys."""
    return values_with_new_names(trial.values)


def results_for(
    content: TrialsFile, trial: FileTrial, objectives: Sequence[tuple[str, str]]
) -> tuple[float, ...]:
    """Return the results of a trial for the objectives of a search.

    Args:
        content: the file of the trial.
        trial: the trial.
        objectives: (name, ``maximize`` or ``minimize``) of each objective.

    Returns:
        A value for each objective, NaN if it is unknown.

    Raises:
        UserError: the file lacks the first objective, or one has the other mode there.
    """
    by_name = dict(zip([item.value for item in content.objectives], trial.results, strict=True))
    modes = {item.value: item.mode for item in content.objectives}
    for name, mode in objectives:
        if modes.get(name, mode) != mode:
            raise UserError(f"{name} is {modes[name]}d there")
    monitor = objectives[0][0]
    if content.objectives[0].value != monitor:
        raise UserError(f"without {monitor}")
    return tuple(by_name.get(name, math.nan) for name, _ in objectives)
