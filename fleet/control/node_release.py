"""The release of nodes while a launch goes on: a hook, which by default releases none (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.comm import messages as m
from fleet.control.effects import NodesRequested
from fleet.control.launch_state import LaunchState
from fleet.domain.events import CommandReceived
from fleet.errors import UserError


class NodeRelease:
    """The nodes that a launch releases; this class, the default, releases none.

    A companion derives a class that does.

    Args:
        launch: the state of the launch.
    """

    def __init__(self, launch: LaunchState) -> None:
        self._launch = launch

    @property
    def leaving_groups(self) -> frozenset[str]:
        """The networks whose groups leave."""
        return frozenset()

    @property
    def has_released(self) -> bool:
        """Whether any node was released, or is about to be."""
        return False

    def record_save(self, network: str) -> None:
        """Record that all training of a network is on disk now."""

    def record_pace(self, pace: m.Pace) -> None:
        """Record the step time of a group."""

    def record_stop(self, stopped: m.Stopped) -> None:
        """Record the duration of a group's last checkpoint."""

    def choose(
        self, command: str, content: Mapping[str, Any], now_s: float
    ) -> tuple[CommandReceived, NodesRequested]:
        """Choose the nodes that a command requests; change nothing.

        Args:
            command: the name of the command.
            content: its content; see :mod:`fleet.runtime.external.command_handler`.
            now_s: the time.

        Returns:
            The event that logs the command, and the input that carries it out.

        Raises:
            UserError: the command is invalid, or the launch cannot release these nodes.
        """
        raise UserError("this launch cannot release nodes: fleet.companions is not installed")

    def begin_release(self, request: NodesRequested) -> None:
        """Begin to release nodes that were chosen."""

    def decide(self) -> None:
        """Stop groups on released nodes once they wait for orders; release free nodes."""
