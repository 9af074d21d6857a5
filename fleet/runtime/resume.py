"""Resuming a run from its logs and checkpoints."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from fleet.domain import events as ev
from fleet.domain.network import NetworkStatus
from fleet.domain.run import FINISHED_UNLOGGED, RunState
from fleet.monitor.timeline import replay_log
from fleet.runtime.launch import Launch
from fleet.storage.event_log import merge_logs, read_events
from fleet.storage.identity import trial_identity
from fleet.storage.lease import fence_check
from fleet.storage.results import Results, known_parameters, recover
from fleet.storage.skipped_networks import read_skipped
from fleet.units import pluralize


@dataclass(frozen=True)
class Resumed:
    """The state that earlier launches of a run have left.

    Attributes:
        results: of the run as it is by all that.
        log: of the launches whose log this one goes on with.
        unlogged: epochs that are in checkpoints and in no log. Among launches that work at the same
            time that is seen when a network is taken: the others may be about to log what they have
            saved.
        statuses: how far networks are by their checkpoints, where logs say otherwise.
        changes: to be logged of checkpoints that are damaged or gone, and of ranks that died.
        first_epoch: of the stream that no launch has consumed.
    """

    results: Results
    log: tuple[ev.Event, ...]
    unlogged: Sequence[ev.EpochEnded]
    statuses: Mapping[str, ev.CheckpointStatus]
    changes: Sequence[ev.NetworkRolledBack | ev.NetworkFailed | ev.NetworkWarned]
    first_epoch: int


def resume(launch: Launch) -> Resumed:
    """Resume a run, and write the table of its results.

    Raises:
        StorageError: the disk is full, ...
    """
    spec = launch.spec
    paths = launch.paths
    is_alone = not launch.request.shares_run
    logs = {path: list(read_events(path)) for path in paths.event_logs()}
    logged_state = replay_log(merge_logs(logs.values()), spec)
    run = logged_state if is_alone else RunState(spec)
    results = Results(
        spec,
        paths,
        run,
        _count_parameters(launch, logged_state),
        lambda network: trial_identity(network, spec, launch.sample, launch.spec_folder),
        test=str(spec.data.test) if launch.is_tested else "",
        check=fence_check(launch.fence),
        skipped=frozenset() if launch.replayed else read_skipped(paths),
    )
    if is_alone:
        results.deaths.collect()
    standings, states = recover(results, launch.checkpoints)
    if launch.replayed:
        missing = []
    else:
        missing = _find_missing(run, standings, states, launch.changes)
    # What this launch says by an event, or does itself, no log needs to be told beside that.
    is_own = {name for name, standing in standings.items() if _is_of_this_launch(standing)}
    differing = {
        name: standing
        for name, standing in logged_state.find_differences(standings).items()
        if name not in is_own
    }
    if not is_alone:
        standings = {
            name: standing.with_logged_pruning(logged_state.status_of(name))
            for name, standing in standings.items()
        }
        # Why a network is done is told by nobody where its launch was killed; the rest others may
        # yet log
        differing = {
            name: standing
            for name, standing in differing.items()
            if standing.reason and logged_state.status_of(name).outcome in (None, FINISHED_UNLOGGED)
        }
    run.restore(
        standings,
        {
            change.network
            for change in launch.changes
            if isinstance(change, ev.NetworkRolledBack) and change.afresh
        },
    )
    for sample in launch.inputs.left_out:
        results.add_unreadable(sample.name, sample.reason)
    results.write()
    unlogged = [
        ev.EpochEnded(name, record)
        for name, standing in standings.items()
        for record in logged_state.find_unlogged(name, standing.history)
        if is_alone
    ]
    damaged = [
        ev.NetworkRolledBack(
            name, damage, len(run.status_of(name).history), position=0, finished=True
        )
        for name, damage in results.damaged.items()
    ]  # networks that stay finished
    consumed = [
        record.stream_epoch for standing in standings.values() for record in standing.history
    ]
    consumed += [state.stream_epoch for state in states.values()]
    return Resumed(
        results,
        tuple(logged.event for logged in logs.get(paths.events, ())),
        unlogged,
        differing,
        [*damaged, *missing, *(_describe_deaths(results, standings) if is_alone else ())],
        1 + max(consumed, default=-1),
    )


def _is_of_this_launch(standing: NetworkStatus) -> bool:
    outcome = standing.outcome
    return outcome is not None and (outcome.is_skipped or outcome.deaths > 0)


def _describe_deaths(
    results: Results, standings: Mapping[str, NetworkStatus]
) -> list[ev.NetworkFailed | ev.NetworkWarned]:
    """Return events for networks whose ranks died: they fail or are trained last."""
    events: list[ev.NetworkFailed | ev.NetworkWarned] = []
    for name, standing in standings.items():
        outcome = standing.outcome
        if outcome is not None and outcome.deaths:
            events.append(ev.NetworkFailed(name, outcome.reason, deaths=outcome.deaths))
        elif outcome is None and (deaths := results.deaths.deaths_of(name, len(standing.history))):
            events.append(
                ev.NetworkWarned(
                    name,
                    f"{deaths[-1].how} while it was trained ({len(deaths)} of max_deaths: "
                    f"{results.deaths.max_deaths}); it is trained last",
                )
            )
    return events


def _find_missing(
    run: RunState,
    standings: Mapping[str, NetworkStatus],
    saved: Container[str],
    changes: Sequence[ev.Event],
) -> list[ev.NetworkRolledBack]:
    """Find networks that start over because their checkpoints are missing.

    Args:
        run: by the log alone.
        standings: by the checkpoints.
        saved: the networks that have one.
        changes: what is said already.
    """
    reported = {event.network for event in changes if isinstance(event, ev.NetworkRolledBack)}
    return [
        ev.NetworkRolledBack(
            name,
            f"no checkpoint of it is left, and the log has {pluralize(epochs, 'epoch')} of it",
            epochs=0,
            position=0,
        )
        for name, before in run.statuses.items()
        if (epochs := len(before.history))
        and not before.is_pruned
        and name not in saved
        and name not in reported
        and name in standings
        and standings[name].outcome is None
    ]


def _count_parameters(launch: Launch, logged_state: RunState) -> dict[str, int]:
    """Count the parameters of networks as far as possible without building them."""
    refused = logged_state.refused
    counts = {
        network.name: known_parameters(network, launch.sample)
        for network in launch.spec.networks
        if network.name not in refused
    }
    return {name: count for name, count in counts.items() if count is not None}
