"""A network, as far as a search must know it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fleet.search.searcher import End, Verdict


@dataclass
class Life:
    """See the module.

    Attributes:
        entry, number: empty for a network that was in the spec.
        values: the monitored one of each epoch that the rule has heard of.
        best: the best monitored value so far, NaN before there is one.
        verdict: of the rule, on the newest of them.
        acted: the epoch up to which it is known that verdicts have been acted on, where that changed anything.
        is_resumed: whether an earlier launch heard from the searcher that it goes on, and broke off.
        waits: for the searcher's answer about its newest epoch.
        holders: who has paused it.
        end: once it is over.
    """

    name: str
    entry: str = ""
    number: int = -1
    values: list[float] = field(default_factory=list)
    best: float = math.nan
    verdict: Verdict = Verdict.GO_ON
    acted: int = 0
    is_resumed: bool = False
    waits: bool = False
    holders: set[str] = field(default_factory=set)
    end: End | None = None

    @property
    def judged(self) -> int:
        """The epochs that the rule has heard of."""
        return len(self.values)

    @property
    def is_alive(self) -> bool:
        """Whether it is neither over nor paused."""
        return self.end is None and not self.holders
