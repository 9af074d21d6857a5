"""The queue of Slurm."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from launch.base import call
from launch.queues.queue import Queue, QueuedJob
from launch.slurm_jobs import find_jobs


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """Return this user's waiting and running jobs that have one of some names.

    Raises:
        InputError: Slurm does not answer, or not in the format that was asked for.
    """
    jobs = find_jobs(f"--user={getpass.getuser()}", f"--name={','.join(names)}").values()
    # One that is being set up has no process yet; suspended and stopped ones have theirs still.
    return [
        QueuedJob(job.id, job.name, job.nodes, job.holds and job.state != "CONFIGURING")
        for job in jobs
        if (job.waits or job.holds) and job.state != "COMPLETING"
    ]


def idle_nodes(partition: str | None) -> int:
    """Return how many nodes have no job now.

    Args:
        partition: of which; of the default one, or of all where there is none, if that is None.

    Raises:
        InputError: Slurm does not answer, or there is no such partition.
    """
    command = ["sinfo", "--noheader", "--Node", "--responding", "--states=idle", "--format=%N %P"]
    return parse_idle(
        call([*command, *([f"--partition={partition}"] if partition is not None else [])]),
        everywhere=partition is not None,
    )


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
