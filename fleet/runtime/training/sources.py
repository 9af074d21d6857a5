"""Where a trainer gets its samples from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fleet.spec import NetworkSpec
from fleet.stream.base import Stream
from fleet.stream.own import OwnStream
from fleet.stream.validation import Validation


@dataclass(frozen=True)
class Sources:
    """What a trainer reads.

    Attributes:
        stream: of training samples.
        own: the same samples, prepared by this rank: for the rest of an epoch that the stream has left behind.
        validation: None where there is no validation data.
        test: None where there is no test data.
        rows: where the samples of ``validation`` and ``test`` lie in the data set, by these names.
        folds: what networks of each fold read, where there are folds; the rest is then for measuring alone.
        feeds: what networks of each feed read, by its key, where there are several; all else is then to join and leave
            the stream with.
    """

    stream: Stream
    own: OwnStream
    validation: Validation | None
    test: Validation | None = None
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    folds: Sequence[Sources] = ()
    feeds: Mapping[str, Sources] = field(default_factory=dict)

    def of(self, network: NetworkSpec) -> Sources:
        """What a network reads."""
        if self.feeds:
            return self.feeds[network.feed].of(network)
        return self if network.fold is None else self.folds[network.fold]

    @property
    def waited_s(self) -> float:
        """What this rank has waited for data so far."""
        if self.feeds:
            return sum(feed.waited_s for feed in self.feeds.values())
        mine = self.stream.waited_s + (self.own.waited_s if self.own is not self.stream else 0.0)
        return mine + sum(fold.waited_s for fold in self.folds)
