"""The queue of Slurm."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from launch.base import InputError, call
from launch.queues.base import Queue, QueuedJob

_WAITING = ("PD", "CF", "RQ", "RF", "RH", "SE")  # in the queue, being set up, or put back into it
_RUNNING = ("R", "S", "ST", "SI", "SO", "RS")  # suspended and stopped ones have their processes still


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """The jobs of this user that have one of some names, and wait or run.

    Raises:
        InputError: Slurm does not answer, or not in the format that was asked for.
    """
    return parse_queue(call(["squeue", "--noheader", f"--user={getpass.getuser()}", f"--name={','.join(names)}",
                             "--format=%i %D %t %j"]))


def parse_queue(text: str) -> list[QueuedJob]:
    """Read what ``squeue`` printed, a job a line: id, nodes, state, name.

    Raises:
        InputError: it is something else.

    >>> parse_queue("17 1 R fleet-1a\\n18 2 PD fleet-1a\\n19 1 CG fleet-1a\\n")[1]
    QueuedJob(id='18', name='fleet-1a', nodes=2, runs=False)
    """
    jobs = []
    for line in text.splitlines():
        words = line.split(maxsplit=3)
        if len(words) != 4 or not words[1].isdecimal():
            raise InputError(f"squeue printed {line!r}, which is not in the format that was asked for")
        id_, nodes, state, name = words
        if state in (*_WAITING, *_RUNNING):
            jobs.append(QueuedJob(id_, name, int(nodes), state in _RUNNING))
    return jobs


def idle_nodes(partition: str | None) -> int:
    """How many nodes have no job now.

    Args:
        partition: of which; of the default one, or of all where there is none, if that is None.

    Raises:
        InputError: Slurm does not answer, or there is no such partition.
    """
    command = ["sinfo", "--noheader", "--Node", "--responding", "--states=idle", "--format=%N %P"]
    return parse_idle(call([*command, *([f"--partition={partition}"] if partition is not None else [])]),
                      everywhere=partition is not None)


def parse_idle(text: str, everywhere: bool = False) -> int:
    """Read what ``sinfo`` printed, a node and a partition a line; the default partition has a star.

    Args:
        everywhere: nodes of all partitions count, even where one is the default.

    >>> parse_idle("n1 low*\\nn1 high\\nn2 high\\n"), parse_idle("n1 low\\nn1 high\\nn2 high\\n")
    (1, 2)
    """
    lines = [words for line in text.splitlines() if len(words := line.split()) == 2]
    default = {node for node, partition in lines if partition.endswith("*")}
    return len({node for node, _ in lines} if everywhere or not default else default)


def cancel(job: str) -> None:
    """Take back a job that waits; one that has begun meanwhile, or is over, is left alone.

    Raises:
        InputError: Slurm does not answer.
    """
    call(["scancel", "--state=PENDING", job])


QUEUE = Queue(own_jobs, idle_nodes, cancel, ("-p", "--partition"))
