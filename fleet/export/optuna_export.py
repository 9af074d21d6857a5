"""Write a run as Optuna studies: one per entry whose networks differ, one for all other networks.

Existing trials do not change, except that running ones get new results. A finished trial cannot be
changed, so a study is written again if a network has trained further, or has been replaced, or if
the space has changed.

A space that has changed while the run was resumed is one space in Optuna: choices are those of all
times, since Optuna allows one list of choices in a study; of ranges each trial has its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fleet.errors import UserError
from fleet.export.tracked_run import DATABASES, TrackedNetwork, TrackedObjective, TrackedRun
from fleet.spec.dimensions import Range, different, ends_of, key_of_value, normal_form
from fleet.spec.hyperparameters import to_scalar
from fleet.spec.model import wrapping_errors
from fleet.storage.results import Status

_STATES = {
    Status.FINISHED: TrialState.COMPLETE,
    Status.PRUNED: TrialState.PRUNED,
    Status.FAILED: TrialState.FAIL,
}


def write(run: TrackedRun, path: Path) -> None:
    """Add missing results of a run to a journal, or to an SQLite database."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _storage(path)
    for entry in dict.fromkeys(network.entry for network in run.networks):
        networks = [network for network in run.networks if network.entry == entry]
        dimensions = _dimensions(run, entry, networks)
        trials = {
            network.name: _trial(run, network, dimensions)
            for network in networks
            if network.epochs or network.is_over
        }
        if trials:
            _write(storage, run, entry, networks[0].objectives, trials)


def _direction(objective: TrackedObjective) -> StudyDirection:
    if objective.is_larger_better:
        return StudyDirection.MAXIMIZE
    return StudyDirection.MINIMIZE


def _storage(path: Path) -> BaseStorage:
    if path.suffix in DATABASES:
        return RDBStorage(f"sqlite:///{path.absolute()}")
    return JournalStorage(JournalFileBackend(str(path)))


def _write(
    storage: BaseStorage,
    run: TrackedRun,
    entry: str,
    objectives: Sequence[TrackedObjective],
    trials: Mapping[str, FrozenTrial],
) -> None:
    name = _name(storage, run, entry)
    directions = list(map(_direction, objectives))
    study = _resumable_study(storage, name, directions, trials)
    if study is None:
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        study.set_user_attr("run", run.key)
        study.set_user_attr("objectives", [objective.name for objective in objectives])
    _set_names(study, [objective.name for objective in objectives])
    existing = _trials(study)
    for network, trial in trials.items():
        if network not in existing:
            study.add_trial(trial)
        elif not existing[network].state.is_finished():
            _update_trial(storage, existing[network], trial)


def _set_names(study: Study, names: list[str]) -> None:
    """Name the objectives of a study, for its plots and its dashboard."""
    if study.metric_names != names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(names)


def _name(storage: BaseStorage, run: TrackedRun, entry: str) -> str:
    """Return the name of an entry's study, which differs from that of another run."""
    name = f"{run.name}-{entry}" if entry else run.name
    owners = {
        study.study_name: study.user_attrs.get("run")
        for study in optuna.get_all_study_summaries(storage)
    }
    if owners.get(name, run.key) == run.key:
        return name
    return f"{name}-{run.key[:6]}"


def _trials(study: Study) -> dict[str, FrozenTrial]:
    return {
        trial.user_attrs["network"]: trial
        for trial in study.get_trials(deepcopy=False)
        if "network" in trial.user_attrs
    }


def _resumable_study(
    storage: BaseStorage,
    name: str,
    directions: list[StudyDirection],
    trials: Mapping[str, FrozenTrial],
) -> Study | None:
    """Return a study that can be continued, or None; one that cannot is deleted."""
    if name not in optuna.get_all_study_names(storage):
        return None
    study = optuna.load_study(study_name=name, storage=storage)
    existing = _trials(study)
    if (
        study.directions == directions
        and existing.keys() <= trials.keys()
        and all(_is_continued_by(trial, trials[network]) for network, trial in existing.items())
    ):
        return study
    optuna.delete_study(study_name=name, storage=storage)
    return None


def _is_continued_by(before: FrozenTrial, now: FrozenTrial) -> bool:
    """Return True if a trial is an earlier state of another one."""
    if (before.params, before.distributions) != (now.params, now.distributions):
        return False
    if before.state.is_finished():
        return (before.state, before.values, before.intermediate_values) == (
            now.state,
            now.values,
            now.intermediate_values,
        )
    return before.intermediate_values.items() <= now.intermediate_values.items()


def _update_trial(storage: BaseStorage, existing: FrozenTrial, current: FrozenTrial) -> None:
    """Add missing results to a running trial."""
    number = existing._trial_id
    for epoch, value in current.intermediate_values.items():
        if epoch not in existing.intermediate_values:
            storage.set_trial_intermediate_value(number, epoch, value)
    for name, value in current.user_attrs.items():
        if existing.user_attrs.get(name) != value:
            storage.set_trial_user_attr(number, name, value)
    if current.state.is_finished():
        storage.set_trial_state_values(number, current.state, current.values)


def _trial(
    run: TrackedRun, network: TrackedNetwork, dimensions: Mapping[str, _Dimension]
) -> FrozenTrial:
    """Convert a network to a trial."""
    monitor = network.objectives[0].name
    reported = {
        epoch.epoch: epoch.values[monitor] for epoch in network.epochs if monitor in epoch.values
    }
    state = _STATES.get(network.status, TrialState.RUNNING)
    values = None
    if state is TrialState.COMPLETE:
        values = [objective.value for objective in network.objectives]
        # Except for the first one, objectives may become known while the run goes on.
        if any(map(math.isnan, values)):
            if run.is_going_on and values[0] == values[0]:
                state = TrialState.RUNNING
            else:
                state = TrialState.FAIL
            values = None
    elif state is TrialState.PRUNED and reported and len(network.objectives) == 1:
        values = [list(reported.values())[-1]]  # as for a trial that Optuna prunes
    parameters = list(_parameters(network, dimensions))
    distributions = {name: distribution for name, distribution, _ in parameters}
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=datetime.fromtimestamp(network.began),
        datetime_complete=datetime.fromtimestamp(network.ended) if state.is_finished() else None,
        params={name: value for name, _, value in parameters},
        distributions=distributions,
        intermediate_values=reported,
        system_attrs={},
        user_attrs={
            "network": network.name,
            "epochs": len(network.epochs),
            **network.facts,
            **{name: value for name, value in network.params.items() if name not in distributions},
        },
    )


def _parameters(
    network: TrackedNetwork, dimensions: Mapping[str, _Dimension]
) -> Iterable[tuple[str, BaseDistribution, Any]]:
    """Yield the parameters of a network: name, distribution and value."""
    for name, dimension in dimensions.items():
        if name in network.drawn:
            with suppress(UserError):
                yield name, *dimension.parameter(network.drawn[name])


def _dimensions(
    run: TrackedRun, entry: str, networks: Sequence[TrackedNetwork]
) -> dict[str, _Dimension]:
    """Return the dimensions of an entry's space, and others of its earlier spaces."""
    spaces = (run.spaces.get(entry, {}), *run.earlier_spaces.get(entry, ()))
    dimensions: dict[str, _Dimension] = {}
    for name in dict.fromkeys(name for space in spaces for name in space):
        versions = [space[name] for space in spaces if name in space]
        if isinstance(versions[0], Range):
            dimensions[name] = _Ranges(name, versions)
        else:
            drawn = [network.drawn[name] for network in networks if name in network.drawn]
            listed = [list(version) for version in versions if not isinstance(version, Range)]
            dimensions[name] = _Choices(name, different([*chain(*listed), *drawn]))
    return dimensions


class _Dimension(Protocol):
    """A dimension of the space of a study."""

    def parameter(self, value: Any) -> tuple[BaseDistribution, Any]:
        """Return the distribution of a trial with a value, and the value as Optuna writes it.

        Raises:
            UserError: the study cannot have the value.
        """


@dataclass(frozen=True)
class _Choices:
    """Choices: those of the newest space first, then others that networks had."""

    name: str
    choices: Sequence[Any]

    def parameter(self, value: Any) -> tuple[BaseDistribution, Any]:
        """See :class:`_Dimension`."""
        plain = list(map(to_scalar, self.choices))
        # As JSON if Optuna would confuse some choices (1 and 1.0).
        is_plain = len(set(plain)) == len(plain)
        write: Callable[[Any], Any] = to_scalar if is_plain else key_of_value
        choice = normal_form(self.name, self.choices, value)
        return CategoricalDistribution(tuple(map(write, self.choices))), write(choice)


@dataclass(frozen=True)
class _Ranges:
    """A range of numbers: the newest range of the space first, then earlier ones."""

    name: str
    versions: Sequence[Any]

    def parameter(self, value: Any) -> tuple[BaseDistribution, Any]:
        """See :class:`_Dimension`; the newest range that has the value, or one that is wider."""
        newest = self.versions[0]
        for version in self.versions:
            # Optuna allows one kind of range in a study.
            is_alike = isinstance(version, Range) and (version.integer, version.log) == (
                newest.integer,
                newest.log,
            )
            with suppress(UserError):
                if is_alike:
                    number = normal_form(self.name, version, value)
                    return _distribution(version), number
        with wrapping_errors(f"{self.name}: {value!r} fits no range:", UserError):
            wider = Range(
                min(newest.low, value),
                max(newest.high, value),
                log=newest.log,
                integer=newest.integer,
            )
            return _distribution(wider), wider.normal_form(value)


def _distribution(dimension: Range) -> BaseDistribution:
    low, high = ends_of(dimension)
    if dimension.integer:
        step = 1 if dimension.step is None else int(dimension.step)
        return IntDistribution(low, high, log=dimension.log, step=step)
    return FloatDistribution(low, high, log=dimension.log, step=dimension.step)
