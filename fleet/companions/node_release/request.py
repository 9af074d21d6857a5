"""Ask a running launch to release nodes, and wait until they are free."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fleet.domain.events import NodesReleased
from fleet.errors import UserError
from fleet.live_run import follow, request_answer
from fleet.storage.event_log import RunTail, log_position
from fleet.storage.lease import is_held
from fleet.storage.paths import RunPaths


@dataclass(frozen=True)
class AnnouncedRelease:
    """The nodes that a launch will release, by its answer.

    Attributes:
        command: the name of the command in the event log.
        since: the size of the event log before the command, in bytes.
        hosts: the names of the nodes.
        saving: the networks whose groups save before they stop.
        dropping: the networks whose groups have no time to save: they lose their training since
            their last checkpoint.
    """

    command: str
    since: int
    hosts: tuple[str, ...]
    saving: tuple[str, ...]
    dropping: tuple[str, ...]


def request_nodes(run: str | Path, nodes: int, within_s: float) -> AnnouncedRelease:
    """Ask a launch to release nodes; return what it will do.

    Args:
        run: the run's folder.
        nodes: the number of nodes.
        within_s: seconds until they should be free.

    Raises:
        UserError: the launch cannot release so many nodes, or no launch answers.
    """
    _, since = log_position(RunPaths(Path(run)).events)
    name, answer = request_answer(run, {"do": "yield", "nodes": nodes, "within_s": within_s})
    ways = answer.get("ways", {})
    return AnnouncedRelease(
        name,
        since,
        tuple(answer.get("hosts", ())),
        tuple(network for network, way in ways.items() if way != "kill"),
        tuple(network for network, way in ways.items() if way == "kill"),
    )


def wait_for_nodes(
    run: str | Path, release: AnnouncedRelease, patience_s: float
) -> NodesReleased | None:
    """Wait until nodes are released; return None if the launch ends first and frees all its nodes.

    Args:
        run: the run's folder.
        release: the nodes.
        patience_s: seconds to wait.

    Raises:
        UserError: they were not released in time; the launch continues to release them.
    """
    paths = RunPaths(Path(run))
    until = time.monotonic() + patience_s
    tail = RunTail(paths, from_end=True, starts={paths.events: release.since})
    for dated in follow(tail, lambda: not is_held(paths.lease) or time.monotonic() > until):
        if isinstance(dated.event, NodesReleased) and dated.event.command == release.command:
            return dated.event
    if is_held(paths.lease):
        raise UserError(
            f"{', '.join(release.hosts)}: not released within {patience_s:.0f} s; the launch is "
            "still releasing them, and fleet watch shows when it is done"
        )
    return None


def release_nodes(run: str, nodes: int, within_s: float) -> tuple[str, ...]:
    """Let a run release nodes and end its processes there; return the names of the nodes.

    Args:
        run: the run's folder.
        nodes: the number of nodes.
        within_s: seconds until they should be free.

    Raises:
        FleetError: the run does not release them, or not in time.
    """
    released = wait_for_nodes(run, request_nodes(run, nodes, within_s), within_s)
    if released is None:
        raise UserError(f"{run}: the launch has ended")
    if not released.has_ended:
        raise UserError(
            f"{run}: the launch runs without --with-ft ulfm, so its processes on the nodes go on"
        )
    return released.hosts
