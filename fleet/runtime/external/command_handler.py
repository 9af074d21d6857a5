"""Handler of the commands in a run's folder: runs and answers them one by one.

A command is a mapping with the key ``do``: ``add`` with an ``entry``; ``stop``, ``pause`` and
``resume`` with a ``network``; or ``yield`` with a number of ``nodes`` and ``within_s``. The answer
has ``networks``, the names that it is about, and for ``yield`` what :class:`CommandReceived` has as
``release_details``; or ``error``, and ``is_over`` where the network is over by then. A line of the
event log stands before anything that a command does. So a launch that is killed before it
has answered does not act twice: the next one finds the line, does what is left, and answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleet.control.effects import Input, NetworkAdmitted, NetworkCommand, NodeOffer, NodesRequested
from fleet.domain.events import CommandReceived, Event
from fleet.errors import UserError
from fleet.runtime.admission import Admission
from fleet.runtime.external.command_queue import Command, CommandQueue
from fleet.search.searcher import Verdict
from fleet.storage.results import Results
from fleet.units import listed

log = logging.getLogger("fleet.runtime.external.command_handler")

_LOOK_S = 0.5  # between two looks into the mailbox

LONGEST_S = 1e7  # that somebody may leave for nodes to come free

VERDICTS = {"stop": Verdict.STOP, "pause": Verdict.PAUSE, "resume": Verdict.GO_ON}


class NetworkEnded(UserError):
    """The network has already ended, so no command can change it."""


class CommandHandler:
    """Handles commands; see the module.

    Args:
        results: of the run, which know all its networks.
        admission: looks at networks that are added.
        earlier: the commands that earlier launches have taken up.
        clock: seconds.
    """

    def __init__(
        self,
        mailbox: CommandQueue,
        results: Results,
        admission: Admission,
        earlier: Iterable[CommandReceived] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mailbox = mailbox
        self._results = results
        self._admission = admission
        self._clock = clock
        self._handled = {event.command: event for event in earlier}
        self._looked_s = -_LOOK_S

    def handle_commands(
        self,
        note: Callable[[Event], None],
        hear: Callable[[Input], None],
        goes_on: Callable[[], bool],
        offer: Callable[[int, float], NodeOffer],
    ) -> bool:
        """Handle waiting commands if a check is due; returns whether there were any.

        Args:
            note: logs an event.
            hear: has the ensemble hear something.
            goes_on: whether it still does.
            offer: which nodes, so many, the launch can give back within some seconds; raises
                UserError where none.
        """
        if self._clock() < self._looked_s + _LOOK_S:
            return False
        self._looked_s = self._clock()
        commands = list(self._mailbox.commands())
        for command in commands:
            if not goes_on():
                break
            try:
                event = self._handle(command, note, hear, offer)
                answer: dict[str, Any] = {"networks": list(event.networks)}
                if event.do == "yield":
                    answer |= event.given
            except NetworkEnded as error:
                answer = {"error": str(error), "is_over": True}
            except UserError as error:
                answer = {"error": str(error)}
            log.info("command %s: %s: %s", command.name, command.content, answer)
            self._mailbox.answer(command.name, answer)
        return bool(commands)

    def refuse_all(self, reason: str) -> None:
        """Answer all waiting commands with an error."""
        for command in self._mailbox.commands():
            self._mailbox.answer(command.name, {"error": reason})

    def _handle(
        self,
        command: Command,
        note: Callable[[Event], None],
        hear: Callable[[Input], None],
        offer: Callable[[int, float], NodeOffer],
    ) -> CommandReceived:
        content = command.content or {}
        do = content.get("do")
        earlier = self._handled.get(command.name)
        words: list[Input] = []
        if do == "add":
            event, came = self._add(command.name, content.get("entry"), earlier)
            words += came
        elif isinstance(do, str) and do in VERDICTS:
            event = CommandReceived(
                command.name, do, (self._check_unfinished(content.get("network")),)
            )
            words.append(NetworkCommand(event.networks[0], VERDICTS[do]))
        elif (
            do == "yield" and earlier is not None
        ):  # the launch that took it up has ended, with all its nodes
            event = earlier
        elif do == "yield":
            node_offer = offer(*_parse_release(content))
            event = CommandReceived(
                command.name,
                do,
                tuple(node_offer.actions),
                {
                    "nodes": list(node_offer.nodes),
                    "hosts": list(node_offer.hosts),
                    "within_s": content["within_s"],
                    "ways": dict(node_offer.actions),
                },
            )
            words.append(NodesRequested(command.name, node_offer))
        else:
            raise UserError(f"{do!r} is no command; there are add, {', '.join(VERDICTS)}, yield")
        if earlier is None:
            self._handled[command.name] = event
            note(event)
        for word in words:
            hear(word)
        return event

    def _add(
        self, name: str, entry: Any, event: CommandReceived | None
    ) -> tuple[CommandReceived, list[NetworkAdmitted]]:
        """Return the event of a new entry, and its networks that were not added yet."""
        if event is None:
            content, position, networks = self._admission.parse_entry(entry)
            event = CommandReceived(
                name, "add", tuple(network.name for network in networks), content, position
            )
        else:
            networks = self._admission.restore_entry(event)
        return event, [
            self._admission.admit(network)
            for network in networks
            if network.name not in self._results.networks
        ]

    def _check_unfinished(self, name: Any) -> str:
        """Return the name of a network that has not ended.

        Raises:
            UserError: there is none of that name, or, as NetworkEnded, it is over.
        """
        if not isinstance(name, str) or name not in self._results.networks:
            raise UserError(
                f"no network of the run is named {name!r}; there are "
                f"{listed(list(self._results.networks), 8) or 'none yet'}"
            )
        outcome = self._results.network_status(name).outcome
        if outcome is not None:
            raise NetworkEnded(f"{name} is over: {outcome.reason}")
        return name


def _parse_release(content: Mapping[str, Any]) -> tuple[int, float]:
    """Parse the number of nodes to release, and the seconds to do so.

    Raises:
        UserError: it is not said.
    """
    nodes = content.get("nodes")
    within_s = content.get("within_s")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise UserError(f"nodes is {nodes!r}; it should be a whole number above 0")
    if (
        not isinstance(within_s, int | float)
        or isinstance(within_s, bool)
        or not 0 < within_s < LONGEST_S
    ):
        raise UserError(
            f"within_s is {within_s!r}; it should be a number of seconds above 0 and below {LONGEST_S:.0e}"
        )
    return nodes, float(within_s)
