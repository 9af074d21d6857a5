"""A run as studies of Optuna: one for each entry whose networks differ, and one for all other networks.

What is there already stays as it is, and trials that were running get what they lack. A trial that is over cannot be
changed. So where a network has trained on since, or is another one, its study is written anew.
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
from fleet.export.tracked_run import DATABASES, TrackedNetwork, TrackedRun
from fleet.spec.hyperparameters import to_scalar
from fleet.spec.space import Range, key_of_value, member_of
from fleet.storage.results import Status

_STATES = {
    Status.FINISHED: TrialState.COMPLETE,
    Status.PRUNED: TrialState.PRUNED,
    Status.FAILED: TrialState.FAIL,
}


def write(run: TrackedRun, path: Path) -> None:
    """Add to a journal, or to a database of SQLite, what is missing there of a run."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _storage(path)
    for entry in dict.fromkeys(network.entry for network in run.networks):
        trials = {
            network.name: _trial(run, network)
            for network in run.networks
            if network.entry == entry and (network.epochs or network.is_over)
        }
        if trials:
            directions = next(
                network for network in run.networks if network.entry == entry
            ).objectives
            _write(
                storage,
                run,
                entry,
                [
                    StudyDirection.MAXIMIZE if one.is_larger_better else StudyDirection.MINIMIZE
                    for one in directions
                ],
                trials,
            )


def _storage(path: Path) -> BaseStorage:
    if path.suffix in DATABASES:
        return RDBStorage(f"sqlite:///{path.absolute()}")
    return JournalStorage(JournalFileBackend(str(path)))


def _write(
    storage: BaseStorage,
    run: TrackedRun,
    entry: str,
    directions: list[StudyDirection],
    trials: Mapping[str, FrozenTrial],
) -> None:
    name = _name(storage, run, entry)
    study = _resumable_study(storage, name, directions, trials)
    if study is None:
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        study.set_user_attr("run", run.key)
    there = _trials(study)
    for network, trial in trials.items():
        if network not in there:
            study.add_trial(trial)
        elif not there[network].state.is_finished():
            _update_trial(storage, there[network], trial)


def _name(storage: BaseStorage, run: TrackedRun, entry: str) -> str:
    """The study of an entry; that of another run may have the same name, as when a run was started over."""
    name = f"{run.name}-{entry}" if entry else run.name
    taken = {
        study.study_name: study.user_attrs.get("run")
        for study in optuna.get_all_study_summaries(storage)
    }
    if taken.get(name, run.key) == run.key:
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
    """A study, if what there is of it is a beginning of what there should be; one that is not is deleted."""
    if name not in optuna.get_all_study_names(storage):
        return None
    study = optuna.load_study(study_name=name, storage=storage)
    there = _trials(study)
    if (
        study.directions == directions
        and there.keys() <= trials.keys()
        and all(_is_continued_by(trial, trials[network]) for network, trial in there.items())
    ):
        return study
    optuna.delete_study(study_name=name, storage=storage)
    return None


def _is_continued_by(before: FrozenTrial, now: FrozenTrial) -> bool:
    """Whether a trial is what another one was."""
    if (before.params, before.distributions) != (now.params, now.distributions):
        return False
    if before.state.is_finished():
        return (before.state, before.values, before.intermediate_values) == (
            now.state,
            now.values,
            now.intermediate_values,
        )
    return before.intermediate_values.items() <= now.intermediate_values.items()


def _update_trial(storage: BaseStorage, there: FrozenTrial, now: FrozenTrial) -> None:
    """Give a trial that is not over what it lacks."""
    number = there._trial_id
    for epoch, value in now.intermediate_values.items():
        if epoch not in there.intermediate_values:
            storage.set_trial_intermediate_value(number, epoch, value)
    for name, value in now.user_attrs.items():
        if there.user_attrs.get(name) != value:
            storage.set_trial_user_attr(number, name, value)
    if now.state.is_finished():
        storage.set_trial_state_values(number, now.state, now.values)


def _trial(run: TrackedRun, network: TrackedNetwork) -> FrozenTrial:
    """A network as a trial."""
    monitor = network.objectives[0].name
    reported = {one.epoch: one.values[monitor] for one in network.epochs if monitor in one.values}
    state = _STATES.get(network.status, TrialState.RUNNING)
    values = None
    if state is TrialState.COMPLETE:
        values = [one.value for one in network.objectives]
        if any(
            map(math.isnan, values)
        ):  # of several, others than the first may be told while the run goes on
            if run.is_going_on and values[0] == values[0]:
                state = TrialState.RUNNING
            else:
                state = TrialState.FAIL
            values = None
    elif state is TrialState.PRUNED and reported and len(network.objectives) == 1:
        values = [list(reported.values())[-1]]  # as Optuna has it of a trial that it prunes
    space = run.spaces.get(network.entry, {})
    distributions = dict(_distributions(network, space))
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=datetime.fromtimestamp(network.began),
        datetime_complete=datetime.fromtimestamp(network.ended) if state.is_finished() else None,
        params={
            name: _value(network.drawn[name], distribution, space[name])
            for name, distribution in distributions.items()
        },
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


def _distributions(
    network: TrackedNetwork, space: Mapping[str, Any]
) -> Iterable[tuple[str, BaseDistribution]]:
    """Those of its parameters that are in the space; a spec may have another space by now than it was drawn from."""
    for name, dimension in space.items():
        with suppress(UserError):
            member_of({name: dimension}, {name: network.drawn.get(name)})
            yield name, _distribution(dimension)


def _distribution(dimension: Any) -> BaseDistribution:
    if not isinstance(dimension, Range):
        different = _different(dimension)
        return CategoricalDistribution(tuple(map(_categories(different), different)))
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)


def _different(choices: Sequence[Any]) -> list[Any]:
    return list({key_of_value(choice): choice for choice in choices}.values())


def _categories(choices: Sequence[Any]) -> Callable[[Any], Any]:
    """How choices are written: as JSON where some are equal to Optuna that differ, such as 1, 1.0 and true."""
    plain = list(map(to_scalar, choices))
    if len(set(plain)) < len(plain):
        return key_of_value
    return to_scalar


def _value(value: Any, distribution: BaseDistribution, dimension: Any) -> Any:
    is_choice = isinstance(distribution, CategoricalDistribution)
    if is_choice:
        return _categories(_different(dimension))(value)
    return value
