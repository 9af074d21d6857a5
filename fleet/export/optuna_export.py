"""Write a run as Optuna studies: one per entry whose networks differ, one for all other networks.

Existing trials do not change, except that running ones get new results. A finished trial cannot be
changed, so a study is written again if a network has trained further, or has been replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fleet.errors import UserError
from fleet.export.tracked_run import DATABASES, TrackedNetwork, TrackedObjective, TrackedRun
from fleet.spec.dimensions import Range, ends_of, key_of_value, normal_form
from fleet.spec.hyperparameters import to_scalar
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
        trials = {
            network.name: _trial(run, network)
            for network in run.networks
            if network.entry == entry and (network.epochs or network.is_over)
        }
        if trials:
            first = next(network for network in run.networks if network.entry == entry)
            _write(storage, run, entry, first.objectives, trials)


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
    existing = _trials(study)
    for network, trial in trials.items():
        if network not in existing:
            study.add_trial(trial)
        elif not existing[network].state.is_finished():
            _update_trial(storage, existing[network], trial)


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


def _trial(run: TrackedRun, network: TrackedNetwork) -> FrozenTrial:
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
    space = run.spaces.get(network.entry, {})
    parameters = list(_parameters(network, space))
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
    network: TrackedNetwork, space: Mapping[str, Any]
) -> Iterable[tuple[str, BaseDistribution, Any]]:
    """Yield parameters whose values are in the current space: name, distribution and value."""
    for name, dimension in space.items():
        if name in network.drawn:
            with suppress(UserError):
                value = normal_form(name, dimension, network.drawn[name])
                yield name, *_parameter(dimension, value)


def _parameter(dimension: Any, value: Any) -> tuple[BaseDistribution, Any]:
    if not isinstance(dimension, Range):
        choices = list({key_of_value(choice): choice for choice in dimension}.values())
        plain = list(map(to_scalar, choices))
        # As JSON if Optuna would confuse some choices (1 and 1.0).
        is_plain = len(set(plain)) == len(plain)
        write: Callable[[Any], Any] = to_scalar if is_plain else key_of_value
        return CategoricalDistribution(tuple(map(write, choices))), write(value)
    low, high = ends_of(dimension)
    if dimension.integer:
        step = 1 if dimension.step is None else int(dimension.step)
        return IntDistribution(low, high, log=dimension.log, step=step), value
    return FloatDistribution(low, high, log=dimension.log, step=dimension.step), value
