"""Restore the networks of a run from their files, when a launch begins."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from fleet.domain import network as net
from fleet.errors import UserError
from fleet.spec import NetworkSpec
from fleet.storage.checkpoint import CheckpointLookup, find_newest, is_exported
from fleet.storage.files import map_in_threads
from fleet.storage.json_lines import read_json_record
from fleet.storage.results import Results, SavedFailure, SavedTest, read_results

# the outcome of skipped networks
SKIPPED = net.Outcome(
    "left out by fleet skip; with --undo launches train it again", is_pruned=True, is_skipped=True
)


def recover(
    results: Results, lookups: Mapping[str, CheckpointLookup] = MappingProxyType({})
) -> tuple[dict[str, net.NetworkStatus], dict[str, net.TrainingState]]:
    """Read the records of all checkpoints of a run, without arrays.

    Args:
        results: results of the run.
        lookups: lookups of networks whose checkpoints have been read.

    Returns:
        The status of each network of the spec, and the existing checkpoints.
    """
    with suppress(UserError):  # there is no table yet, or it is damaged
        for row in read_results(results.paths.root):
            if row.parameters is not None and row.name in results.spec.by_name:
                results.run.parameters.setdefault(row.name, row.parameters)
    names = [network.name for network in results.spec.networks]
    pairs = map_in_threads(
        lambda network: restore_network(results, network, lookups.get(network.name)),
        results.spec.networks,
    )
    restored = dict(zip(names, pairs, strict=True))
    results.damaged = {name: results.damaged[name] for name in names if name in results.damaged}
    return (
        {name: status for name, (status, _) in restored.items()},
        {name: state for name, (_, state) in restored.items() if state is not None},
    )


def restore_network(
    results: Results, network: NetworkSpec, lookup: CheckpointLookup | None = None
) -> tuple[net.NetworkStatus, net.TrainingState | None]:
    """Return the status of a network from its files, and its checkpoint's record.

    A network that failed has an outcome.

    Args:
        results: results of the run.
        network: the network to restore.
        lookup: its checkpoint, if already read.
    """
    status, state = read_network_status(results, network, lookup)
    failure = _final_failure(results, network)
    if failure is not None:
        status = replace(status, outcome=net.Outcome(failure, is_failure=True))
    if status.outcome is not None:
        return status, state
    deaths = results.deaths.deaths_of(network.name, len(status.history))
    reason = net.death_failure_reason(deaths, results.deaths.max_deaths)
    if reason:
        died = net.Outcome(reason, is_failure=True, deaths=len(deaths))
        return replace(status, outcome=died), state
    if network.name in results.skipped:
        return replace(status, outcome=SKIPPED), state
    return status, state


def read_network_status(
    results: Results, network: NetworkSpec, lookup: CheckpointLookup | None = None
) -> tuple[net.NetworkStatus, net.TrainingState | None]:
    """Return a network's status by its newest intact checkpoint, and its record.

    Args:
        results: results of the run.
        network: the network to look up.
        lookup: its checkpoint, if already read.

    Returns:
        The status, and the record without arrays; None if there is no checkpoint.
    """
    # Damaged arrays are found only when they are read; the trainer reports them.
    lookup = lookup or find_newest(results.paths, network.name, with_arrays=False)
    state = lookup.state
    if state is None:
        return net.NetworkStatus(), None
    # Evaluate the stopping rule again, because the spec may now ask for more epochs. A finished
    # network whose export is missing or out of date gets a group once more.
    reason = _stop_reason(lookup, network)
    keep = results.spec.checkpoint.keep
    engine = results.spec.engine
    is_current_export = not engine.exports or is_exported(
        results.paths, network.name, keep, engine.suffix
    )
    is_kept = keep == "last" or results.paths.best(network.name).exists()
    tested = None
    saved = read_json_record(results.paths.test_result(network.name), SavedTest)
    # otherwise it is evaluated again
    if saved and (saved.test, saved.history) == (results.test, net.stream_epochs(lookup.history)):
        tested = saved.tested
    is_judged = tested is not None or not results.test
    if reason and not state.position and is_kept and is_current_export and is_judged:
        if lookup.damage:
            results.damaged[network.name] = lookup.damage
        return net.NetworkStatus(lookup.history, net.Outcome(reason), tested), state
    return net.NetworkStatus(state.history), state


def _stop_reason(lookup: CheckpointLookup, network: NetworkSpec) -> str:
    """Return why a network has ended according to its checkpoint; empty if it has not."""
    stopping = network.train.stopping
    state = lookup.state
    # If only the best checkpoint is left, only the table has the epochs after it. That suffices
    # unless the network must continue, or another epoch is the best one now.
    is_table = state is not None and state.epoch < len(lookup.history)
    if state is None or (
        is_table and state.epoch != net.check_convergence(lookup.history, stopping).best_epoch
    ):
        return ""
    return net.finished_reason(lookup.history, state.final, stopping)


def _final_failure(results: Results, network: NetworkSpec) -> str | None:
    """Return why a network failed permanently; None if it did not, or may succeed now."""
    failure = read_json_record(results.paths.failure(network.name), SavedFailure)
    # if it is unreadable, the network is tried again
    if failure is None or failure.may_pass or failure.tried != results.attempt_id(network):
        return None
    if 0 < failure.deaths < results.deaths.max_deaths:  # max_deaths was raised
        return None
    return failure.reason
