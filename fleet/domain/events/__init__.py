"""What can happen in a run: one class for each kind of event.

The coordinator makes events, the event log stores them, and observers are shown them. ``word`` is the kind's name in
the log and the fields are its keys; :mod:`fleet.domain.json_record` says how they are written. Seconds are those of the
clock, also in a rehearsal, where they are a fraction of the real run's. A device is the number of a trainer, counted
over all nodes. The epochs of a network are counted from 1, those of the stream from 0.

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
    Started
    | Interrupted
    | TooLate
    | Ended
    | RatesGiven
    | RatesRemembered
    | RateMeasured
    | RateOff
    | Profiled
    | RateLearned
    | RatesEstimated
    | RanksReady
    | FirstStep
    | CacheChosen
    | StreamStarted
    | Planned
    | RoundStarted
    | GroupStarted
    | GroupChanged
    | EpochEnded
    | GroupStopped
    | NetworkFinished
    | NetworkTested
    | NetworkRetried
    | NetworkFailed
    | NetworkFellBack
    | ChangesAccepted
    | BestLost
    | NetworkWarned
    | RankLost
    | GroupFailed
    | BadSample
    | Estimated
    | Searched
    | SearcherBegan
    | EarlierRead
    | SearchFailed
    | ReplayDiffered
    | NetworkAdded
    | NetworkJudged
    | NetworkTaken
    | SharingLearned
    | SupplyFound
    | Commanded
    | NodesLeft
    | DataChanged
    | TrackerFailed
)

KINDS: Mapping[str, type] = {kind.word: kind for kind in get_args(Event)}


def event_from_json(record: Any) -> Event | None:
    """The event that a line tells of; None where it is of an unknown kind, or damaged."""
    event: Event | None = from_json(record, KINDS)
    return event
