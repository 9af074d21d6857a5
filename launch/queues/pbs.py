"""The queue of PBS.

Written from the manuals of PBS Professional 2021 and OpenPBS (``qselect``, ``qstat``, ``pbsnodes``,
``qdel``) and tested with the output shown there, not on a real PBS.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from launch.base import call, read_records
from launch.queues.queue import Queue, QueuedJob

# Suspended jobs still have their processes, and so do arrays that have started.
_WAITING = "QHWT"
_RUNNING = "RESUB"


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """Return this user's waiting and running jobs with one of these names.

    Raises:
        InputError: PBS does not answer, or in an unexpected format.
    """
    ids = call(["qselect", "-u", getpass.getuser()]).split()
    jobs = parse_jobs(call(["qstat", "-f", "-F", "json", *ids])) if ids else []
    return [job for job in jobs if job.name in names]


def parse_jobs(text: str) -> list[QueuedJob]:
    """Parse ``qstat -f -F json``.

    Raises:
        InputError: the output has another format.

    >>> parse_jobs('{"Jobs": {"18.pbs": {"Job_Name": "fleet-1a", "job_state": "Q", '
    ...            '"Resource_List": {"nodect": 2}}}}')
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
    """Return the number of nodes without a job.

    Args:
        queue: do not count nodes that belong to another queue; None counts all.

    Raises:
        InputError: PBS does not answer, or in an unexpected format, or does not know the queue.
    """
    if queue is not None:
        call(["qstat", "-Q", queue])
    return parse_idle(call(["pbsnodes", "-a", "-F", "json"]), queue)


def parse_idle(text: str, queue: str | None = None) -> int:
    """Count the idle nodes in the output of ``pbsnodes -a -F json``.

    Raises:
        InputError: the output has another format.

    >>> parse_idle('{"nodes": {"n1": {"state": "free"}, "n4": {"state": "down"}, '
    ...            '"n2": {"state": "free", "jobs": ["17.pbs"]}, '
    ...            '"n3": {"state": "job-exclusive", "jobs": ["18.pbs"]}, '
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
    """Cancel a waiting job.

    Raises:
        InputError: PBS does not answer.
    """
    call(["qdel", job], missing_pattern="Unknown Job|has finished")


QUEUE = Queue(own_jobs, idle_nodes, cancel, ("-q",))
