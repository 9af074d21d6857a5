"""What the logs of several launches say together of each network: how far it is, and whether it is done (pure).

One launch knows the networks that it holds; the others it knows as they were when it began. The logs of all of them
tell the rest. A fold starts with what is known, or with nothing, and goes on with what is logged later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from fleet.domain.events.launch import Started
from fleet.domain.events.losses import GroupStruck
from fleet.domain.events.networks import (
    NetworkFailed,
    NetworkFellBack,
    NetworkFinished,
    NetworkRetried,
    NetworkTaken,
    NetworkTested,
)
from fleet.domain.events.training import EpochEnded, GroupStarted
from fleet.domain.network import EpochRecord, Judged, Outcome, Standing

FOUND_DONE = Outcome("a launch has found it done")  # whatever has become of it: no log says so


class Dated(NamedTuple):
    """An event of a launch.

    Attributes:
        at: when it happened, in seconds since 1970 by the clock of the file system.
        t_s: seconds since the launch began.
    """

    at: float
    event: object
    t_s: float = 0.0


def told(standings: Mapping[str, Standing], events: Iterable[Dated]) -> dict[str, Standing]:
    """How far networks are after some events, in the order of their dates.

    Args:
        standings: of the networks that something is known of before.
        events: of any launches, in any order; those of a launch by dates that do not fall.

    Returns:
        The networks that the events say something new of. A history has the epochs that are known; some are missing
        where the log of an earlier launch is.
    """
    found: dict[str, Standing] = {}
    for _, event, _ in sorted(events, key=lambda dated: dated.at):
        for name in event.finished if isinstance(event, Started) else (getattr(event, "network", None),):
            if name is None:
                continue
            before = found.get(name) or standings.get(name) or Standing()
            if (after := _after(before, event)) is not before:
                found[name] = after
    return found


def _after(standing: Standing, event: object) -> Standing:
    """How far a network is after an event that is about it."""
    match event:
        case EpochEnded(record=record):
            return Standing((*_until(standing.history, record.epoch - 1), record))
        case GroupStarted() | NetworkRetried() if standing.outcome is not None:  # it is tried again, or wants more
            return Standing(standing.history)
        case NetworkTaken(epochs=epochs) | NetworkFellBack(epochs=epochs, finished=False) | GroupStruck(epochs=epochs):
            kept = _until(standing.history, epochs)  # what was logged last may not have been saved
            return standing if len(kept) == len(standing.history) else Standing(kept)
        case NetworkTested(loss=loss, accuracy=accuracy, samples=samples, metrics=metrics):
            return replace(standing, tested=Judged(loss, accuracy, samples, metrics))
        case NetworkFinished(reason=reason):
            return replace(standing, outcome=Outcome(reason))
        case NetworkFailed(reason=reason):
            return replace(standing, outcome=Outcome(reason, is_failure=True))
        case Started() if standing.outcome is None:  # it found that out by itself
            return replace(standing, outcome=FOUND_DONE)
    return standing


def _until(history: tuple[EpochRecord, ...], epoch: int) -> tuple[EpochRecord, ...]:
    return tuple(record for record in history if record.epoch <= epoch)


def is_whole(standing: Standing) -> bool:
    """Whether all epochs of a network are known, from the first on."""
    return [record.epoch for record in standing.history] == list(range(1, len(standing.history) + 1))
