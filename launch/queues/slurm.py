"""The queue of Slurm."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from launch.base import call
from launch.queues.queue import Queue, QueuedJob
from launch.slurm_jobs import find_jobs


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """Return this user's waiting and running jobs with one of these names.

    Raises:
        InputError: Slurm does not answer, or in an unexpected format.
    """
    jobs = find_jobs(f"--user={getpass.getuser()}", f"--name={','.join(names)}").values()
    # A job that is being configured has no process yet; suspended and stopped ones still have
    # theirs.
    return [
        QueuedJob(job.id, job.name, job.nodes, job.has_nodes and job.state != "CONFIGURING")
        for job in jobs
        if (job.is_waiting or job.has_nodes) and job.state != "COMPLETING"
    ]


def idle_nodes(partition: str | None) -> int:
    """Return the number of nodes without a job.

    Args:
        partition: count nodes of this partition; None counts those of the default one, or all
            nodes if there is no default.

    Raises:
        InputError: Slurm does not answer, or does not know the partition.
    """
    command = ["sinfo", "--noheader", "--Node", "--responding", "--states=idle", "--format=%N %P"]
    return parse_idle(
        call([*command, *([f"--partition={partition}"] if partition is not None else [])]),
        everywhere=partition is not None,
    )


def parse_idle(text: str, everywhere: bool = False) -> int:
    """Count idle nodes in ``sinfo``: a node and a partition per line, a star for the default.

    Args:
        everywhere: count nodes of all partitions even if one is the default.

    >>> parse_idle("n1 low*\\nn1 high\\nn2 high\\n"), parse_idle("n1 low\\nn1 high\\nn2 high\\n")
    (1, 2)
    """
    lines = [words for words in map(str.split, text.splitlines()) if len(words) == 2]
    default = {node for node, partition in lines if partition.endswith("*")}
    return len({node for node, _ in lines} if everywhere or not default else default)


def cancel(job: str) -> None:
    """Cancel a waiting job; a job that has started meanwhile, or has ended, is left alone.

    Raises:
        InputError: Slurm does not answer.
    """
    call(["scancel", "--state=PENDING", job])


QUEUE = Queue(own_jobs, idle_nodes, cancel, ("-p", "--partition"))
