"""Trials of earlier runs, or of other tools, for the searcher of a new run."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fleet.domain.events import EarlierRunRead
from fleet.domain.network import EpochRecord, best_of
from fleet.domain.objectives import objective_values, violations_of
from fleet.domain.run import RunSearch, RunState
from fleet.errors import UserError
from fleet.search.calls import AddPriorTrial
from fleet.search.entries import Entry
from fleet.search.trials import mean_of, spread_of
from fleet.spec.constraints import Constraint
from fleet.spec.dimensions import Space
from fleet.spec.naming import configuration_name
from fleet.spec.space import member_of
from fleet.spec.train import Stopping
from fleet.storage.event_log import read_run_state
from fleet.storage.paths import RunPaths
from fleet.storage.results import (
    NetworkResult,
    Status,
    network_facts,
    read_results,
)
from fleet.storage.trials_file import FileTrial, read_trials_file, results_for, values_of

T = TypeVar("T")

# Their values are those of :class:`fleet.search.searcher.TrialOutcome`.
_ENDED = (Status.FINISHED, Status.PRUNED, Status.FAILED)
_WORST_FIRST = ("failed", "pruned", "finished")


def read_prior_trials(
    run: str | Path,
    space: Space,
    objectives: Sequence[tuple[str, str]],
    constraints: Sequence[Constraint] = (),
) -> tuple[list[AddPriorTrial], dict[str, int]]:
    """Read the trials of a run that fit a search space.

    Args:
        run: the folder of the run, or a file of trials (:mod:`fleet.storage.trials_file`).
        space: the search space.
        objectives: (name, ``maximize`` or ``minimize``) of each objective, the monitored quantity
            first.
        constraints: the constraints of the search.

    Returns:
        The trials that have ended and whose values fit the space, in the order of their numbers;
        and reason -> number of trials that were left out for it.

    Raises:
        UserError: the run does not exist or cannot be read.
    """
    if Path(run).is_file():
        return _of_file(Path(run), space, objectives, constraints)
    state = read_run_state(RunPaths(Path(run)))

    def number_of(rows: Sequence[NetworkResult]) -> int:
        name = rows[0].name
        return state.networks[name].number if name in state.networks else -1

    return _collect(
        lambda rows: _merge_repeats(
            [
                _make_prior_trial(row, space, objectives, constraints, state, str(run))
                for row in rows
            ]
        ),
        sorted(_group_repeats(read_results(run)), key=number_of),
    )


def _group_repeats(rows: Iterable[NetworkResult]) -> list[list[NetworkResult]]:
    """Return the rows of each configuration; without failed repeats, unless all have failed."""
    remaining = iter(rows)
    groups = []
    for row in remaining:
        if row.repeats:
            repeats = list(islice(remaining, row.repeats))
            groups.append(
                [repeat for repeat in repeats if repeat.status is not Status.FAILED] or repeats
            )
        elif not row.folds:
            groups.append([row])
    return groups


def _merge_repeats(trials: Sequence[AddPriorTrial]) -> AddPriorTrial:
    """Return the repeats of a configuration as one trial, with the means of their values."""
    first = trials[0]
    if len(trials) == 1:
        return first
    epochs = max(len(trial.curve) for trial in trials)
    curves = [trial.curve for trial in trials if trial.curve]
    value, spread = _mean_value([trial.value for trial in trials])
    return replace(
        first,
        curve=tuple(
            mean_of([curve[min(epoch, len(curve) - 1)] for curve in curves])
            for epoch in range(epochs)
        ),
        outcome=min((trial.outcome for trial in trials), key=_WORST_FIRST.index),
        value=value,
        spread=spread,
        name=configuration_name(first.name),
        violations=tuple(map(mean_of, zip(*(trial.violations for trial in trials), strict=True))),
    )


def _mean_value(
    values: Sequence[float | tuple[float, ...] | None],
) -> tuple[float | tuple[float, ...] | None, float | tuple[float, ...] | None]:
    """Return the mean and the spread of the values of repeats; None if one is unknown."""
    if any(isinstance(value, tuple) for value in values):
        columns = list(zip(*(value for value in values if isinstance(value, tuple)), strict=True))
        spreads = map(spread_of, columns)
        return tuple(map(mean_of, columns)), tuple(
            math.nan if spread is None else spread for spread in spreads
        )
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values):
        return None, None
    return mean_of(numbers), spread_of(numbers)


def _collect(
    make: Callable[[T], AddPriorTrial], items: Iterable[T]
) -> tuple[list[AddPriorTrial], dict[str, int]]:
    """Make prior trials, and count the reasons why some cannot be made."""
    trials = list[AddPriorTrial]()
    left_out = Counter[str]()
    for item in items:
        try:
            trials.append(make(item))
        except UserError as error:
            # One reason for all values of a key.
            key, _, value = str(error).partition(": ")
            left_out[f"{key} is outside of the space" if value else key] += 1
    return trials, dict(left_out)


def _of_file(
    path: Path,
    space: Space,
    objectives: Sequence[tuple[str, str]],
    constraints: Sequence[Constraint],
) -> tuple[list[AddPriorTrial], dict[str, int]]:
    """Read the trials of a file that fit a search space; see :func:`read_prior_trials`.

    The file does not name its constraints. They count as those of the search if there are as many.
    """
    content = read_trials_file(path)

    def make(trial: FileTrial) -> AddPriorTrial:
        member = member_of(space, values_of(trial))
        results = results_for(content, trial, objectives)
        if len(trial.violations) == len(constraints):
            violations = trial.violations
        else:
            violations = (math.nan,) * len(constraints)
        return AddPriorTrial(
            0,
            member,
            trial.curve,
            trial.outcome,
            _value(results, trial.outcome == Status.FAILED, objectives),
            trial.name,
            str(path),
            violations,
        )

    return _collect(make, content.trials)


def _value(
    values: tuple[float, ...], is_failed: bool, objectives: Sequence[tuple[str, str]]
) -> float | tuple[float, ...] | None:
    """Return the value of a trial as a searcher takes it.

    Raises:
        UserError: a trial that has not failed lacks the monitored value.
    """
    is_valued = math.isfinite(values[0])
    if not is_valued and not is_failed:
        raise UserError(f"without {objectives[0][0]}")
    if len(objectives) > 1:
        return values
    if is_valued:
        return values[0]
    return None


def _make_prior_trial(
    row: NetworkResult,
    space: Space,
    objectives: Sequence[tuple[str, str]],
    constraints: Sequence[Constraint],
    state: RunState,
    run: str,
) -> AddPriorTrial:
    if row.status not in _ENDED:
        raise UserError("not ended yet")
    member = member_of(space, row.drawn)
    monitor, mode = objectives[0]
    network = state.networks.get(row.name)
    history: tuple[EpochRecord, ...] = () if network is None else network.status.history
    stopping = Stopping(monitor=monitor, direction="max" if mode == "maximize" else "min")
    record = best_of(history, stopping).record
    facts = network_facts(row, state)
    values = objective_values([name for name, _ in objectives], record, facts)
    value = _value(values, row.status is Status.FAILED, objectives)
    curve = tuple(epoch.value(monitor) for epoch in history)
    violations = violations_of(constraints, record, facts)
    return AddPriorTrial(0, member, curve, row.status.value, value, row.name, run, violations)


def locate(source: str, spec_file: str) -> str:
    """Return the path of an earlier run, or of a file of trials, as a spec names it.

    A relative path is relative to the current folder, or if nothing is there, to that of the spec.

    Args:
        source: the path in the spec.
        spec_file: the path of the spec.
    """
    beside_spec = Path(spec_file).parent / source
    if not os.path.exists(source) and beside_spec.exists():
        return str(beside_spec)
    return source


def read_earlier_run(
    entry: Entry, run: str, search: RunSearch, accepts_trials: bool, path: str | None = None
) -> tuple[list[AddPriorTrial], EarlierRunRead | None]:
    """Read prior trials that a searcher has not received, and the event to log about them.

    Args:
        entry: the entry of the search.
        run: the earlier run, or the file of trials, as the spec names it.
        search: the calls that the searcher received in earlier launches of the present run.
        accepts_trials: whether the searcher accepts prior trials.
        path: its path, if that differs.

    Raises:
        UserError: the run cannot be read, and no earlier launch has read it.
    """
    read = search.earlier.get(run)
    received = sum(call.call == "know" and call.source == run for call in search.calls)
    if read is not None and received >= read.told:
        return [], None
    try:
        trials, left_out = read_prior_trials(
            path or run, entry.space, entry.objectives, entry.constraints
        )
        trials = [replace(trial, source=run) for trial in trials]
    except UserError:
        if run in search.read:  # its trials are in the log
            return [], None
        raise
    if not accepts_trials:
        count = len(trials) + sum(left_out.values())
        trials = []
        left_out = {"the searcher has no method `add_prior_trial`": count}
    return trials, EarlierRunRead(entry.name, run, len(trials), left_out) if read is None else None
