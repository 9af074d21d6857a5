"""What others have told a launch to do, through its mailbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from fleet.storage.lines import OmitDefault


@dataclass(frozen=True)
class Commanded:
    """Somebody has told the launch to do something; written before it is done.

    Attributes:
        command: its name; no other command of the run has it.
        do: ``add``, ``stop``, ``pause`` or ``resume``.
        networks: that are added, or that it is about.
        given: of an ``add``: the entry of ``models``, with its name.
        place: of an ``add``: the number of entries before it.
    """

    word: ClassVar[str] = "command"
    command: str
    do: str
    networks: tuple[str, ...]
    given: Annotated[Mapping[str, Any], OmitDefault] = field(default_factory=dict, hash=False)
    place: Annotated[int, OmitDefault] = 0
