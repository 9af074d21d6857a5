"""Handler of the commands in a run's folder: carries them out and answers them one by one.

A command is a mapping with the key ``do``: ``add`` with an ``entry``; ``clone`` with a
``network``, ``values``, ``warm`` and a ``name`` or null; ``stop``, ``pause`` and
``resume`` with a ``network``; or ``yield`` with a number of ``nodes`` and ``within_s``. The answer
has ``networks``, the names of its networks, and for ``yield`` the details of
:class:`CommandReceived`; or ``error``, and ``is_over`` if the network has already ended. The event
log gets a line before a command is carried out. So if a launch is killed before it has answered,
the next one finds the line, does not act twice, and answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fleet.control.effects import Input, NetworkAdmitted, NetworkCommand, NodesRequested
from fleet.domain.events import CommandReceived, Event
from fleet.errors import UserError
from fleet.runtime.admission import Admission
from fleet.runtime.cloning import clone_event
from fleet.runtime.external.command_queue import Command, CommandQueue
from fleet.search.searcher import Verdict
from fleet.spec import NetworkSpec
from fleet.spec.clones import CloneRequest
from fleet.storage.results import Results
from fleet.units import listed

log = logging.getLogger("fleet.runtime.external.command_handler")

_CHECK_EVERY_S = 0.5

ChooseNodes: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[CommandReceived, NodesRequested]]

VERDICTS = {"stop": Verdict.STOP, "pause": Verdict.PAUSE, "resume": Verdict.GO_ON}


class NetworkEnded(UserError):
    """The network has already ended, so no command can change it."""


class CommandHandler:
    """Handles commands; see the module.

    Args:
        mailbox: the commands.
        results: the run's results, with all its networks.
        admission: validates networks that are added.
        earlier: the commands that earlier launches have carried out.
        clock: returns seconds from any origin.
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
        self._checked_s = -_CHECK_EVERY_S

    def handle_commands(
        self,
        log_event: Callable[[Event], None],
        send_input: Callable[[Input], None],
        is_running: Callable[[], bool],
        choose_nodes: ChooseNodes,
    ) -> bool:
        """Handle waiting commands if a check is due; returns whether there were any.

        Args:
            log_event: logs an event.
            send_input: passes an input to the controller.
            is_running: returns False once the launch ends.
            choose_nodes: chooses the nodes that a command ``yield`` requests, given by its name and
                content; see :meth:`fleet.control.node_release.NodeRelease.choose`.
        """
        if self._clock() < self._checked_s + _CHECK_EVERY_S:
            return False
        self._checked_s = self._clock()
        commands = list(self._mailbox.commands())
        for command in commands:
            if not is_running():
                break
            try:
                event = self._handle(command, log_event, send_input, choose_nodes)
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
        log_event: Callable[[Event], None],
        send_input: Callable[[Input], None],
        choose_nodes: ChooseNodes,
    ) -> CommandReceived:
        content = command.content or {}
        do = content.get("do")
        earlier = self._handled.get(command.name)
        inputs: list[Input] = []
        if do == "add":
            event, networks = self._add(command.name, content.get("entry"), earlier)
            inputs += self._admit(networks)
        elif do == "clone":
            event, networks = self._clone(command.name, content, earlier)
            inputs += self._admit(networks)
        elif isinstance(do, str) and do in VERDICTS:
            event = CommandReceived(
                command.name, do, (self._check_unfinished(content.get("network")),)
            )
            inputs.append(NetworkCommand(event.networks[0], VERDICTS[do]))
        elif do == "yield" and earlier is not None:  # the earlier launch has released all nodes
            event = earlier
        elif do == "yield":
            event, request = choose_nodes(command.name, content)
            inputs.append(request)
        else:
            raise UserError(
                f"unknown command {do!r}; known commands are add, clone, {', '.join(VERDICTS)}, "
                "yield"
            )
        if earlier is None:
            self._handled[command.name] = event
            log_event(event)
        for controller_input in inputs:
            send_input(controller_input)
        return event

    def _add(
        self, name: str, entry: Any, event: CommandReceived | None
    ) -> tuple[CommandReceived, Sequence[NetworkSpec]]:
        """Return the event of a new entry, and its networks."""
        if event is None:
            content, position, networks = self._admission.parse_entry(entry)
            event = CommandReceived(
                name, "add", tuple(network.name for network in networks), content, position
            )
        else:
            networks = self._admission.restore_entry(event)
        return event, networks

    def _clone(
        self, name: str, content: Mapping[str, Any], event: CommandReceived | None
    ) -> tuple[CommandReceived, Sequence[NetworkSpec]]:
        """Return the event of a clone, and its networks."""
        if event is not None:
            return event, self._admission.restore_entry(event)
        entry, position, clone, networks = self._admission.parse_clone(CloneRequest.parse(content))
        return clone_event(name, entry, position, clone, networks), networks

    def _admit(self, networks: Iterable[NetworkSpec]) -> list[NetworkAdmitted]:
        """Admit networks that were not added yet."""
        return [
            self._admission.admit(network)
            for network in networks
            if network.name not in self._results.networks
        ]

    def _check_unfinished(self, name: Any) -> str:
        """Return the name of a network that has not ended.

        Raises:
            UserError: the run has no network of this name.
            NetworkEnded: the network has ended.
        """
        if not isinstance(name, str) or name not in self._results.networks:
            raise UserError(
                f"the run has no network named {name!r}; it has "
                f"{listed(list(self._results.networks), 8) or 'none yet'}"
            )
        outcome = self._results.run.status_of(name).outcome
        if outcome is not None:
            raise NetworkEnded(f"{name} has ended: {outcome.reason}")
        return name
