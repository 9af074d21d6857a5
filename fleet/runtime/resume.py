"""Resuming a run from its logs and checkpoints."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from fleet.domain import events as ev
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome
from fleet.domain.run import FINISHED_UNLOGGED, RunState
from fleet.runtime.startup.launch import PreparedLaunch
from fleet.storage.checkpoint import is_history_current, write_history
from fleet.storage.files import map_in_threads
from fleet.storage.identity import trial_identity
from fleet.storage.paths import RunPaths
from fleet.storage.recovery import recover
from fleet.storage.results import Results, known_parameters
from fleet.storage.skipped_networks import read_skipped
from launch.errors import pluralize


@dataclass(frozen=True)
class Resumed:
    """The state that earlier launches of a run have left.

    Attributes:
        results: the run's results and state.
        unlogged: network -> its epochs that its checkpoint has, but no log; only networks with
            such epochs.
        stale_tables: networks whose ``history.csv`` lacks epochs of their checkpoint, if the run
            is shared: the launch that holds a network writes it.
        statuses: status of networks by their checkpoints, where it differs from the logs.
        changes: events to log about damaged and missing checkpoints, and about dead ranks.
        first_epoch: the stream's first epoch that no launch has consumed.
    """

    results: Results
    unlogged: Mapping[str, tuple[EpochRecord, ...]]
    stale_tables: frozenset[str]
    statuses: Mapping[str, ev.CheckpointStatus]
    changes: Sequence[ev.NetworkRolledBack | ev.NetworkFailed | ev.NetworkWarned]
    first_epoch: int


def resume(launch: PreparedLaunch) -> Resumed:
    """Resume a run, and write its table of results.

    Raises:
        StorageError: the disk is full, ...
    """
    spec = launch.spec
    paths = launch.paths
    is_alone = not launch.request.shares_run
    logged_state = RunState() if launch.replayed else launch.past.run
    logged_state.adopt(spec)
    run = logged_state if is_alone else RunState(spec)
    run.parameters |= _count_parameters(launch, logged_state)
    results = Results(
        spec,
        paths,
        run,
        lambda network: trial_identity(network, spec, launch.sample, launch.request.spec_folder),
        test=str(spec.data.test) if launch.is_tested else "",
        check=launch.fence.check,
        skipped=frozenset() if launch.replayed else read_skipped(paths),
    )
    if is_alone:
        results.deaths.collect()
    statuses, states = recover(results, launch.past.checkpoints)
    if launch.replayed:
        missing = []
    else:
        missing = _find_missing(run, statuses, states, launch.past.changes)
    # Changes by this launch get an event of their own.
    own_changes = {
        name
        for name, status in statuses.items()
        if status.outcome is not None and (status.outcome.is_skipped or status.outcome.deaths)
    }
    differing = {
        name: status
        for name, status in _find_differences(logged_state, statuses).items()
        if name not in own_changes
    }
    if not is_alone:
        statuses = {
            name: status.with_logged_pruning(logged_state.status_of(name))
            for name, status in statuses.items()
        }
        # A launch that was killed did not log why its networks ended. Other launches may still log
        # all other differences.
        differing = {
            name: status
            for name, status in differing.items()
            if status.reason and logged_state.status_of(name).outcome in (None, FINISHED_UNLOGGED)
        }
    run.restore(
        statuses,
        {
            change.network
            for change in launch.past.changes
            if isinstance(change, ev.NetworkRolledBack) and change.afresh
        },
    )
    for sample in launch.inputs.left_out:
        results.add_unreadable(sample.name, sample.reason)
    results.write()
    unlogged = {
        name: records
        for name, status in statuses.items()
        if (records := logged_state.find_unlogged(name, status.history))
    }
    # Networks with a damaged checkpoint stay finished.
    damaged = [
        ev.NetworkRolledBack(
            name, damage, len(run.status_of(name).history), position=0, finished=True
        )
        for name, damage in results.damaged.items()
    ]
    consumed = [record.stream_epoch for status in statuses.values() for record in status.history]
    consumed += [state.stream_epoch for state in states.values()]
    stale_tables = frozenset() if launch.replayed else _find_stale_tables(paths, statuses)
    if is_alone:
        for name in stale_tables:
            write_history(paths.history(name), statuses[name].history, launch.fence)
        stale_tables = frozenset()
    return Resumed(
        results,
        unlogged,
        stale_tables,
        differing,
        [*damaged, *missing, *(_describe_deaths(results, statuses) if is_alone else ())],
        1 + max(consumed, default=-1),
    )


def _find_stale_tables(paths: RunPaths, statuses: Mapping[str, NetworkStatus]) -> frozenset[str]:
    """Return the networks whose ``history.csv`` does not have the epochs of their checkpoint."""
    trained = [(name, status.history) for name, status in statuses.items() if status.history]
    are_current = map_in_threads(
        lambda item: is_history_current(paths.history(item[0]), item[1]), trained
    )
    return frozenset(
        name for (name, _), is_current in zip(trained, are_current, strict=True) if not is_current
    )


def _find_differences(
    run: RunState, statuses: Mapping[str, NetworkStatus]
) -> dict[str, ev.CheckpointStatus]:
    """Return the checkpoint statuses that differ from the log, except in missing epochs."""
    differences = {}
    for name, now in statuses.items():
        before = run.status_of(name)
        outcome = now.outcome or Outcome("")
        has_more = len(before.history) > len(now.history) or before.tested != now.tested
        if before.is_pruned and not now.is_finished:
            logged = Outcome("")
        else:
            logged = before.outcome or Outcome("")
        if has_more or (logged.reason, logged.is_failure) != (outcome.reason, outcome.is_failure):
            differences[name] = ev.CheckpointStatus(
                len(now.history), outcome.reason, outcome.is_failure, now.tested
            )
    return differences


def _describe_deaths(
    results: Results, statuses: Mapping[str, NetworkStatus]
) -> list[ev.NetworkFailed | ev.NetworkWarned]:
    """Return events for networks whose ranks died: they fail or are trained last."""
    events: list[ev.NetworkFailed | ev.NetworkWarned] = []
    for name, status in statuses.items():
        outcome = status.outcome
        if outcome is not None:
            if outcome.deaths:
                events.append(ev.NetworkFailed(name, outcome.reason, deaths=outcome.deaths))
            continue
        deaths = results.deaths.deaths_of(name, len(status.history))
        if deaths:
            events.append(
                ev.NetworkWarned(
                    name,
                    f"{deaths[-1].how} while training it ({len(deaths)} of max_deaths: "
                    f"{results.deaths.max_deaths}); it will be trained last",
                )
            )
    return events


def _find_missing(
    run: RunState,
    statuses: Mapping[str, NetworkStatus],
    saved: Container[str],
    changes: Sequence[ev.Event],
) -> list[ev.NetworkRolledBack]:
    """Find networks that start over because their checkpoints are missing.

    Args:
        run: the state by the log alone.
        statuses: status of networks by their checkpoints.
        saved: networks that have a checkpoint.
        changes: events that are logged anyway.
    """
    reported = {event.network for event in changes if isinstance(event, ev.NetworkRolledBack)}
    return [
        ev.NetworkRolledBack(
            name,
            f"its checkpoint is missing; the log has {pluralize(epochs, 'epoch')} of it",
            epochs=0,
            position=0,
        )
        for name, before in run.statuses.items()
        if (epochs := len(before.history))
        and not before.is_pruned
        and name not in saved
        and name not in reported
        and name in statuses
        and statuses[name].outcome is None
    ]


def _count_parameters(launch: PreparedLaunch, logged_state: RunState) -> dict[str, int]:
    """Count the parameters of networks as far as possible without building them."""
    refused = logged_state.refused
    counts = {
        network.name: known_parameters(network, launch.sample)
        for network in launch.spec.networks
        if network.name not in refused
    }
    return {name: count for name, count in counts.items() if count is not None}
