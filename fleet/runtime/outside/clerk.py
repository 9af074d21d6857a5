"""Who reads the mailbox of a run: takes up commands one after another, and answers each.

A command is a mapping with the key ``do``: ``add`` with an ``entry``, or ``stop``, ``pause`` and ``resume`` with a
``network``. The answer has ``networks``, the names that it is about, or ``error``, and ``is_over`` where the network is
over by then. A line of the event log stands
before anything that a command does. So a launch that is killed before it has answered does not act twice: the next one
finds the line, does what is left, and answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from fleet.ensemble.effects import Admitted, Heard, Ruled
from fleet.errors import UserError
from fleet.runtime.admission import Admission
from fleet.runtime.outside.mailbox import Command, Mailbox
from fleet.search.searcher import Verdict
from fleet.storage.events import Commanded, Event
from fleet.storage.results import Results

log = logging.getLogger("fleet.runtime.outside.clerk")

_LOOK_S = 0.5  # between two looks into the mailbox

VERDICTS = {"stop": Verdict.STOP, "pause": Verdict.PAUSE, "resume": Verdict.GO_ON}


class NetworkOver(UserError):
    """Nothing can become of this network any more."""


class Clerk:
    """See the module.

    Args:
        results: of the run, which know all its networks.
        admission: looks at networks that are added.
        earlier: the commands that earlier launches have taken up.
        clock: seconds.
    """

    def __init__(self, mailbox: Mailbox, results: Results, admission: Admission, earlier: Iterable[Commanded] = (),
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._mailbox, self._results, self._admission, self._clock = mailbox, results, admission, clock
        self._known = {event.command: event for event in earlier}
        self._looked_s = -_LOOK_S

    def look(self, note: Callable[[Event], None], hear: Callable[[Heard], None], goes_on: Callable[[], bool]) -> bool:
        """Take up what is in the mailbox, if it is time to look; returns whether there was anything.

        Args:
            note: logs an event.
            hear: has the ensemble hear something.
            goes_on: whether it still does.
        """
        if self._clock() < self._looked_s + _LOOK_S:
            return False
        self._looked_s = self._clock()
        commands = list(self._mailbox.commands())
        for command in commands:
            if not goes_on():
                break
            try:
                answer: dict[str, Any] = {"networks": list(self._take_up(command, note, hear))}
            except NetworkOver as error:
                answer = {"error": str(error), "is_over": True}
            except UserError as error:
                answer = {"error": str(error)}
            log.info("command %s: %s: %s", command.name, command.content, answer)
            self._mailbox.answer(command.name, answer)
        return bool(commands)

    def refuse(self, why: str) -> None:
        """Answer whatever is still in the mailbox: nothing is taken up any more."""
        for command in self._mailbox.commands():
            self._mailbox.answer(command.name, {"error": why})

    def _take_up(self, command: Command, note: Callable[[Event], None], hear: Callable[[Heard], None]
                 ) -> tuple[str, ...]:
        content = command.content or {}
        do = content.get("do")
        known = self._known.get(command.name)
        if do == "add":
            event, came = self._added(command.name, content.get("entry"), known)
            words: list[Heard] = list(came)
        elif isinstance(do, str) and do in VERDICTS:
            event = Commanded(command.name, do, (self._alive(content.get("network")),))
            words = [Ruled(event.networks[0], VERDICTS[do])]
        else:
            raise UserError(f"{do!r} is no command; there are add, {', '.join(VERDICTS)}")
        if known is None:
            self._known[command.name] = event
            note(event)
        for word in words:
            hear(word)
        return event.networks

    def _added(self, name: str, entry: Any, known: Commanded | None) -> tuple[Commanded, list[Admitted]]:
        """The event of an entry, and those of its networks that have not come yet."""
        if known is None:
            content, place, networks = self._admission.given(entry)
            known = Commanded(name, "add", tuple(network.name for network in networks), content, place)
        else:
            networks = self._admission.given_again(known)
        return known, [self._admission.come(network) for network in networks
                       if network.name not in self._results.networks]

    def _alive(self, name: Any) -> str:
        """A network that something can still become of.

        Raises:
            UserError: there is none of that name, or, as NetworkOver, it is over.
        """
        if not isinstance(name, str) or name not in self._results.networks:
            names = list(self._results.networks)
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise UserError(f"no network of the run is named {name!r}; there are {shown or 'none yet'}")
        if (outcome := self._results.standing(name).outcome) is not None:
            raise NetworkOver(f"{name} is over: {outcome.reason}")
        return name
