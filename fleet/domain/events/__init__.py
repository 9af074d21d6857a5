"""The events of a run: one class for each type.

The coordinator creates events, the event log stores them, and observers receive them. ``word`` is
the name of the type in the log, and the fields are its keys; see :mod:`fleet.domain.json_record`.
Seconds are those of the clock, also in a dry run, where they are a fraction of the real run's. A
device is the number of a trainer, counted over all nodes. Epochs of a network are counted from 1,
those of the stream from 0.

It imports :mod:`fleet.domain.json_record` and :mod:`fleet.domain.network`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from fleet.domain.events.launch import *
from fleet.domain.events.networks import *
from fleet.domain.events.rates import *
from fleet.domain.events.search import *
from fleet.domain.events.training import *
from fleet.domain.json_record import from_json

Event: TypeAlias = (
    LaunchStarted
    | LaunchInterrupted
    | TooLateToStart
    | LaunchEnded
    | RatesLoaded
    | CachedRatesUsed
    | RateMeasured
    | RateMismatch
    | ProfilingFinished
    | RateLearned
    | RatesEstimated
    | TrainersReady
    | FirstStep
    | CacheChosen
    | StreamStarted
    | PlanChanged
    | RoundStarted
    | GroupStarted
    | GroupChanged
    | EnergyUsed
    | EpochEnded
    | GroupStopped
    | NetworkFinished
    | NetworkTested
    | NetworkRetried
    | NetworkFailed
    | NetworkRolledBack
    | ChangesAccepted
    | BestCheckpointDamaged
    | NetworkWarned
    | RankDied
    | GroupFailed
    | SampleSkipped
    | TimeLeftEstimated
    | SearcherCalled
    | SearcherStarted
    | EarlierRunRead
    | SearcherFailed
    | ReplayDiffered
    | NetworkAdded
    | NetworkVerdict
    | NetworkLeased
    | SharingLearned
    | SupplyChanged
    | CommandReceived
    | NodesReleased
    | DataChanged
    | TrackerFailed
    | RunWarned
)

KINDS: Mapping[str, type] = {kind.word: kind for kind in get_args(Event)}


def event_from_json(record: Any) -> Event | None:
    """Return the event of a line; None if its type is unknown or the line is damaged."""
    event: Event | None = from_json(record, KINDS)
    return event
