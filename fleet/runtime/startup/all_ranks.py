"""A start on rank 0 and on all other ranks, side by side; collective over all ranks.

| rank 0 | every other rank |
| --- | --- |
| reads the spec, announces the engine | imports the engine in a thread, if it will train |
| takes the remaining steps | waits |
| broadcasts the launch, or the problem | unpacks the launch, or ends, too |

Then each rank makes a :class:`~fleet.runtime.session.Session` of the launch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from fleet.comm.protocols import World
from fleet.errors import ExitStatus, FleetError
from fleet.runtime.startup.engine_import import Announcement, EngineImport, ImportPlan
from fleet.runtime.startup.launch import Launch, PreparedLaunch


class Refused(Exception):
    """The launch cannot be prepared.

    Attributes:
        status: the exit status of all ranks.
    """

    def __init__(self, problem: str, status: ExitStatus) -> None:
        super().__init__(problem)
        self.status = status


def start_rank_zero(
    world: World,
    prepare: Callable[[Callable[[ImportPlan], None]], PreparedLaunch],
    status_of: Callable[[Exception], ExitStatus | None],
) -> PreparedLaunch:
    """Prepare the launch and pass it to all other ranks.

    Args:
        prepare: prepares the launch, and calls its argument with the engine to import.
        status_of: returns the exit status of an error; None for errors of the program.

    Raises:
        Refused: the input is wrong.
    """
    announcement = Announcement(world)
    problem = ""
    status = ExitStatus.OK
    packed = b""
    try:
        launch = prepare(announcement.send)
        packed = pickle.dumps(launch.for_other_ranks())
    except (FleetError, ValueError) as error:
        known_status = status_of(error)
        if known_status is None:
            raise
        problem = str(error)
        status = known_status
    announcement.send(ImportPlan())
    world.broadcast_value((problem, status, packed))
    if problem:
        raise Refused(problem, status)
    return launch


def start_other_rank(world: World, engine_import: EngineImport) -> Launch:
    """Import the engine that rank 0 announces, and receive the launch from it.

    Args:
        engine_import: imports the engine, and goes on meanwhile.

    Raises:
        Refused: the input is wrong.
    """
    unset: tuple[str, ExitStatus, bytes] | None = None
    engine_import.receive(world)
    problem, status, packed = world.broadcast_value(unset)
    if problem:
        raise Refused(problem, status)
    launch: Launch = engine_import.unpack(packed)
    return launch
