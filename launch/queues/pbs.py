"""The queue of PBS.

Written by the manual of PBS Professional 2021 and OpenPBS (``qselect``, ``qstat``, ``pbsnodes``,
``qdel``), and tested with what that shows they print; there was no PBS to try it on.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from launch.base import call, read_records
from launch.queues.queue import Queue, QueuedJob

# suspended ones have their processes still, and arrays that have begun some
_WAITING = "QHWT"
_RUNNING = "RESUB"


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """Return this user's waiting and running jobs that have one of some names.

    Raises:
        InputError: PBS does not answer, or not in the format that was asked for.
    """
    ids = call(["qselect", "-u", getpass.getuser()]).split()
    jobs = parse_jobs(call(["qstat", "-f", "-F", "json", *ids])) if ids else []
    return [job for job in jobs if job.name in names]


def parse_jobs(text: str) -> list[QueuedJob]:
    """Read what ``qstat -f -F json`` printed.

    Raises:
        InputError: it is something else.

    >>> parse_jobs('{"Jobs": {"18.pbs": {"Job_Name": "fleet-1a", "job_state": "Q", "Resource_List": {"nodect": 2}}}}')
    [QueuedJob(id='18.pbs', name='fleet-1a', nodes=2, runs=False)]
    """
    return [
        QueuedJob(
            id_,
            job["Job_Name"],
            int(job.get("Resource_List", {}).get("nodect", 0)),
            job["job_state"] in _RUNNING,
        )
        for id_, job in read_records("qstat", text, "Jobs", "Job_Name", "job_state").items()
        if job["job_state"] in _WAITING + _RUNNING
    ]


def idle_nodes(queue: str | None) -> int:
    """Return how many nodes have no job now.

    Args:
        queue: nodes that belong to another one do not count, where that is not None.

    Raises:
        InputError: PBS does not answer, or not in the format that was asked for, or there is no
            such queue.
    """
    if queue is not None:
        call(["qstat", "-Q", queue])
    return parse_idle(call(["pbsnodes", "-a", "-F", "json"]), queue)


def parse_idle(text: str, queue: str | None = None) -> int:
    """Read what ``pbsnodes -a -F json`` printed.

    Raises:
        InputError: it is something else.

    >>> parse_idle('{"nodes": {"n1": {"state": "free"}, "n2": {"state": "free", "jobs": ["17.pbs"]}, '
    ...            '"n3": {"state": "job-exclusive", "jobs": ["18.pbs"]}, "n4": {"state": "down"}, '
    ...            '"n5": {"state": "free", "queue": "debug"}}}', "workq")
    1
    """
    return sum(
        node["state"] == "free"
        and not node.get("jobs")
        and (queue is None or node.get("queue", queue) == queue)
        for node in read_records("pbsnodes", text, "nodes", "state").values()
    )


def cancel(job: str) -> None:
    """Take back a job that waits.

    Raises:
        InputError: PBS does not answer.
    """
    call(["qdel", job], missing_pattern="Unknown Job|has finished")


QUEUE = Queue(own_jobs, idle_nodes, cancel, ("-q",))
