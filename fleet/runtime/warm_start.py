"""Trials of earlier runs for the searcher of a new run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fleet.domain.events import EarlierRunRead
from fleet.domain.network import EpochRecord, best_of
from fleet.domain.objectives import objective_values, violations_of
from fleet.domain.run import RunSearch, RunState
from fleet.errors import UserError
from fleet.search.calls import AddPriorTrial
from fleet.search.entries import Entry
from fleet.spec.constraints import Constraint
from fleet.spec.dimensions import Space
from fleet.spec.space import member_of
from fleet.spec.train import Stopping
from fleet.storage.event_log import read_run_state
from fleet.storage.paths import RunPaths
from fleet.storage.results import (
    NetworkResult,
    Status,
    network_facts,
    read_results,
    without_fold_means,
)

# Their values are those of :class:`fleet.search.searcher.TrialOutcome`.
_ENDED = (Status.FINISHED, Status.PRUNED, Status.FAILED)


def read_prior_trials(
    run: str | Path,
    space: Space,
    objectives: Sequence[tuple[str, str]],
    constraints: Sequence[Constraint] = (),
) -> tuple[list[AddPriorTrial], dict[str, int]]:
    """Read the trials of a run that fit a search space.

    Args:
        run: the folder of the run.
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
    rows = without_fold_means(read_results(run))
    state = read_run_state(RunPaths(Path(run)))
    trials = list[AddPriorTrial]()
    left_out = Counter[str]()

    def number_of(row: NetworkResult) -> int:
        return state.networks[row.name].number if row.name in state.networks else -1

    for row in sorted(rows, key=number_of):
        try:
            trials.append(_make_prior_trial(row, space, objectives, constraints, state, str(run)))
        except UserError as error:
            # One reason for all values of a key.
            key, _, value = str(error).partition(": ")
            left_out[f"{key} is outside of the space" if value else key] += 1
    return trials, dict(left_out)


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
    (monitor, mode), *secondary = objectives
    network = state.networks.get(row.name)
    history: tuple[EpochRecord, ...] = () if network is None else network.status.history
    stopping = Stopping(monitor=monitor, direction="max" if mode == "maximize" else "min")
    record = best_of(history, stopping).record
    facts = network_facts(row, state)
    values = objective_values([name for name, _ in objectives], record, facts)
    is_valued = math.isfinite(values[0])
    if not is_valued and row.status is not Status.FAILED:
        raise UserError(f"without {monitor}")
    curve = tuple(epoch.value(monitor) for epoch in history)
    if secondary:
        value: float | tuple[float, ...] | None = values
    elif is_valued:
        value = values[0]
    else:
        value = None
    violations = violations_of(constraints, record, facts)
    return AddPriorTrial(0, member, curve, row.status.value, value, row.name, run, violations)


def read_earlier_run(
    entry: Entry, run: str, search: RunSearch, accepts_trials: bool
) -> tuple[list[AddPriorTrial], EarlierRunRead | None]:
    """Read prior trials that a searcher has not received, and the event to log about them.

    Args:
        entry: the entry of the search.
        run: the folder of the earlier run.
        search: the calls that the searcher received in earlier launches of the present run.
        accepts_trials: whether the searcher accepts prior trials.

    Raises:
        UserError: the run cannot be read, and no earlier launch has read it.
    """
    read = search.earlier.get(run)
    received = sum(call.call == "know" and call.source == run for call in search.calls)
    if read is not None and received >= read.told:
        return [], None
    try:
        trials, left_out = read_prior_trials(run, entry.space, entry.objectives, entry.constraints)
    except UserError:
        if run in search.read:  # its trials are in the log
            return [], None
        raise
    if not accepts_trials:
        count = len(trials) + sum(left_out.values())
        trials = []
        left_out = {"the searcher has no method `add_prior_trial`": count}
    return trials, EarlierRunRead(entry.name, run, len(trials), left_out) if read is None else None
