"""What others have told a launch to do, through its mailbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from fleet.domain.record import OmitDefault


@dataclass(frozen=True)
class Commanded:
    """Somebody has told the launch to do something; written before it is done.

    Attributes:
        command: its name; no other command of the run has it.
        do: ``add``, ``stop``, ``pause``, ``resume`` or ``yield``.
        networks: that are added, or that it is about.
        given: of an ``add``: the entry of ``models``, with its name. Of a ``yield``: ``nodes``, the numbers of those
            that are given back, ``hosts``, their names, ``within_s``, and ``ways``, what the group of each network does
            (``app``: it saves; ``kill``: it gives up what it has trained since its last checkpoint).
        place: of an ``add``: the number of entries before it.
    """

    word: ClassVar[str] = "command"
    command: str
    do: str
    networks: tuple[str, ...]
    given: Annotated[Mapping[str, Any], OmitDefault] = field(default_factory=dict, hash=False)
    place: Annotated[int, OmitDefault] = 0


@dataclass(frozen=True)
class NodesLeft:
    """The groups on some nodes have let go, upon a ``yield``, and nothing is given to these nodes any more.

    Attributes:
        command: the name of the ``yield``.
        nodes: their numbers.
        hosts: their names.
        devices: of their trainers.
        seconds: since the command was taken up.
        has_ended: whether their processes end; otherwise they wait, without work, for the end of the launch.
    """

    word: ClassVar[str] = "nodes_left"
    command: str
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: float
    has_ended: bool
