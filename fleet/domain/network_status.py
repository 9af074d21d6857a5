"""How far a network is after something has happened to it (pure): the one place that says so.

The state of a run (:mod:`fleet.domain.run`) keeps standings by it, and so does the mind of a launch
(:mod:`fleet.control.networks`), which must know at once what follows from what it is about to log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from fleet.domain import events as e
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome, TestResult

Change: TypeAlias = (
    e.EpochEnded
    | e.NetworkFinished
    | e.NetworkTested
    | e.NetworkFailed
    | e.NetworkRetried
    | e.GroupStarted
    | e.NetworkFellBack
    | e.NetworkTaken
    | e.GroupFailed
    | e.NetworkJudged
    | e.ChangesAccepted
)


def after(standing: NetworkStatus, change: Change) -> NetworkStatus:
    """How far a network is after an event that is about it.

    Args:
        standing: before it.
    """
    history = standing.history
    match change:
        case e.EpochEnded():
            return standing.with_history((*until(history, change.record.epoch - 1), change.record))
        case e.NetworkFinished():
            return replace(standing, is_paused=False, outcome=Outcome(change.reason))
        case e.NetworkTested():
            return replace(
                standing,
                is_paused=False,
                tested=TestResult(change.loss, change.accuracy, change.samples, change.metrics),
            )
        case e.NetworkFailed():
            return replace(
                standing,
                is_paused=False,
                outcome=Outcome(
                    change.reason,
                    is_failure=True,
                    may_pass=change.may_pass,
                    deaths=change.deaths,
                ),
            )
        case (
            e.NetworkRetried() | e.GroupStarted()
        ):  # one that was over is tried again, or wants more
            if standing.outcome is None or standing.is_pruned:
                return standing
            return NetworkStatus(history)
        case e.NetworkFellBack(afresh=True):
            return NetworkStatus()
        case e.NetworkFellBack(finished=False) | e.NetworkTaken():
            return _gone_back(standing, change.epochs)
        case e.GroupFailed():
            if change.reason or change.again:
                return NetworkStatus(
                    until(history, change.epochs), Outcome(change.reason) if change.reason else None
                )
            return _gone_back(standing, change.epochs)
        case e.NetworkJudged(verdict="stop"):
            return NetworkStatus.pruned(history)
        case e.NetworkJudged():
            return replace(standing, is_paused=change.verdict == "pause")
        case e.ChangesAccepted():
            return accepting(standing, change.epochs, change.files)
    return standing


def accepting(standing: NetworkStatus, epoch: int, files: Iterable[str]) -> NetworkStatus:
    """The same, where some files were changed after an epoch, and that was accepted."""
    return replace(
        standing,
        history=tuple(
            replace(record, accepted=" ".join(dict.fromkeys([*record.accepted.split(), *files])))
            if record.epoch == epoch
            else record
            for record in standing.history
        ),
    )


def until(history: tuple[EpochRecord, ...], epoch: int) -> tuple[EpochRecord, ...]:
    """A history up to an epoch."""
    if not history or history[-1].epoch <= epoch:
        return history
    return tuple(record for record in history if record.epoch <= epoch)


def _gone_back(standing: NetworkStatus, epochs: int) -> NetworkStatus:
    """A network goes on from a checkpoint: what was logged last may not have been saved."""
    history = until(standing.history, epochs)
    if len(history) == len(standing.history):
        return standing
    return NetworkStatus(history).found_after(standing)
