"""The queue of LSF.

Written from the manual of LSF 10.1 (``bjobs``, ``bqueues``, ``bhosts``, ``bkill``) and tested with
the output shown there, not on a real LSF.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence

from launch.base import call
from launch.errors import InputError
from launch.queues.queue import Queue, QueuedJob

_WAITING = ("PEND", "PSUSP", "WAIT")
_RUNNING = ("RUN", "USUSP", "SSUSP", "UNKWN", "PROV")  # suspended jobs still have their processes
_NO_JOB = "No (unfinished )?job found|is not found"


def own_jobs(names: Sequence[str]) -> list[QueuedJob]:
    """Return this user's waiting and running jobs with one of these names.

    Raises:
        InputError: LSF does not answer, or in an unexpected format.
    """
    command = [
        "bjobs",
        "-noheader",
        "-u",
        getpass.getuser(),
        "-o",
        "jobid stat job_name delimiter='|'",
    ]
    return [job for job in parse_jobs(call(command, missing_pattern=_NO_JOB)) if job.name in names]


def parse_jobs(text: str) -> list[QueuedJob]:
    """Parse ``bjobs``, one job per line: id, state, name.

    LSF reports slots, but not the number of requested nodes.

    Raises:
        InputError: the output has another format.

    >>> parse_jobs("17|RUN|fleet-1a\\n18|PEND|fleet-1a\\n16|EXIT|fleet-1a\\n")[1]
    QueuedJob(id='18', name='fleet-1a', nodes=0, runs=False)
    """
    jobs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if re.search(_NO_JOB, line):
            continue
        words = line.split("|", maxsplit=2)
        if len(words) != 3:
            raise InputError(
                f"bjobs printed {line!r}, which is not in the format that was asked for"
            )
        id_, state, name = words
        if state in (*_WAITING, *_RUNNING):
            jobs.append(QueuedJob(id_, name, 0, state in _RUNNING))
    return jobs


def idle_nodes(queue: str | None) -> int:
    """Return the number of hosts without a job.

    Args:
        queue: count only hosts of this queue; None counts all.

    Raises:
        InputError: LSF does not answer, or does not know the queue.
    """
    if queue is None:
        hosts = []
    else:
        hosts = parse_hosts(call(["bqueues", "-noheader", "-o", "hosts", queue]))
    return parse_idle(call(["bhosts", "-w", *hosts]))


def parse_hosts(text: str) -> list[str]:
    """Parse the hosts and host groups of a queue from ``bqueues``; empty if it may use all.

    >>> parse_hosts("batch_nodes/ h17+2 \\n"), parse_hosts("all \\n")
    (['batch_nodes', 'h17'], [])
    """
    words = [re.sub(r"(/|\+\d*)+$", "", word) for word in text.split()]
    if "all" in words:
        return []
    return words


def parse_idle(text: str) -> int:
    """Count the idle hosts in the output of ``bhosts -w``: open, with slots, and without jobs.

    >>> parse_idle('''HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV
    ... h1 ok - 42 0 0 0 0 0
    ... h2 ok - 42 1 1 0 0 0
    ... h3 unavail - 42 0 0 0 0 0
    ... login1 closed_Full - 0 0 0 0 0 0
    ... ''')
    1
    """
    lines = [words for words in map(str.split, text.splitlines()) if len(words) == 9]
    return len(
        {
            host
            for host, status, _, max_jobs, jobs, *_ in lines
            if (status, jobs) == ("ok", "0") and max_jobs != "0"
        }
    )


def cancel(job: str) -> None:
    """Cancel a waiting job.

    Raises:
        InputError: LSF does not answer.
    """
    call(["bkill", job], missing_pattern="already finished|is not found")


QUEUE = Queue(own_jobs, idle_nodes, cancel, ("-q",))
