"""The decisions of the search controller (pure values)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fleet.domain.events import Event
from fleet.search.calls import Call
from fleet.spec.dimensions import Member


@dataclass(frozen=True)
class CallSearcher:
    """Call a searcher; no other call is made until it has answered."""

    entry: str
    call: Call


@dataclass(frozen=True)
class AddNetwork:
    """Add a network that was proposed.

    Attributes:
        number: within its entry; repeats have the same.
        values: values by the keys of the space; the raw answer if something is wrong with it.
        parent: the network from whose weights it starts, if any.
        wrong: what is wrong with the answer; then the network has failed.
        repeat: which repeat it is, counted from 0; None without repeats.
    """

    network: str
    entry: str
    number: int
    values: Member
    parent: str | None = None
    wrong: str = ""
    repeat: int | None = None


Decision: TypeAlias = Event | CallSearcher | AddNetwork  # an event is logged
