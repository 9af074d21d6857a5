"""Apply an event to the status of a network, for the state of a run (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from fleet.domain import events as e
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome

Change: TypeAlias = (
    e.EpochEnded
    | e.NetworkFinished
    | e.NetworkTested
    | e.NetworkFailed
    | e.NetworkRetried
    | e.GroupStarted
    | e.NetworkRolledBack
    | e.NetworkLeased
    | e.GroupFailed
    | e.NetworkVerdict
    | e.ChangesAccepted
)


def apply_change(status: NetworkStatus, change: Change) -> NetworkStatus:
    """Return the status of a network after an event about it.

    Args:
        status: the status before the event.
        change: the event.
    """
    history = status.history
    match change:
        case e.EpochEnded():
            return status.with_history(
                (*truncate_history(history, change.record.epoch - 1), change.record)
            )
        case e.NetworkFinished():
            return replace(status, is_paused=False, outcome=Outcome(change.reason))
        case e.NetworkTested():
            return replace(status, is_paused=False, tested=change.tested)
        case e.NetworkFailed():
            return replace(
                status,
                is_paused=False,
                outcome=Outcome(
                    change.reason,
                    is_failure=True,
                    may_pass=change.may_pass,
                    deaths=change.deaths,
                ),
            )
        # A network that had ended is tried again, or trains more epochs.
        case e.NetworkRetried() | e.GroupStarted():
            if status.outcome is None or status.is_pruned:
                return status
            return NetworkStatus(history)
        case e.NetworkRolledBack(afresh=True):
            return NetworkStatus()
        case e.NetworkRolledBack(finished=False) | e.NetworkLeased():
            return _roll_back(status, change.epochs)
        case e.GroupFailed():
            if change.reason or change.again:
                return NetworkStatus(
                    truncate_history(history, change.epochs),
                    Outcome(change.reason) if change.reason else None,
                )
            return _roll_back(status, change.epochs)
        # A launch that shares the run judges what it last knew of networks of others.
        case e.NetworkVerdict() if status.is_finished:
            return status
        case e.NetworkVerdict(verdict="stop"):
            return NetworkStatus.pruned(history)
        case e.NetworkVerdict():
            return replace(status, is_paused=change.verdict == "pause")
        case e.ChangesAccepted():
            return accept_changes(status, change.epochs, change.files)
    return status


def accept_changes(status: NetworkStatus, epoch: int, files: Iterable[str]) -> NetworkStatus:
    """Return the status with a note that changes of some files after an epoch were accepted.

    Args:
        status: the status before.
        epoch: the epoch after which the files changed.
        files: their names.
    """
    history = []
    for record in status.history:
        if record.epoch == epoch:
            names = dict.fromkeys([*record.accepted.split(), *files])
            history.append(replace(record, accepted=" ".join(names)))
        else:
            history.append(record)
    return replace(status, history=tuple(history))


def truncate_history(history: tuple[EpochRecord, ...], epoch: int) -> tuple[EpochRecord, ...]:
    """Return a history up to and including an epoch."""
    if not history or history[-1].epoch <= epoch:
        return history
    return tuple(record for record in history if record.epoch <= epoch)


def _roll_back(status: NetworkStatus, epochs: int) -> NetworkStatus:
    """Return the status after resuming from a checkpoint: epochs logged last may not be in it."""
    history = truncate_history(status.history, epochs)
    if len(history) == len(status.history):
        return status
    return NetworkStatus(history).merged_with_log(status)
