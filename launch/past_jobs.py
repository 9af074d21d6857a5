"""How long past jobs took, as the accounting of a batch system knows them, or its server remembers.

LSF and PBS are asked by their manuals; there was neither to try it on.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict

from launch.base import InputError
from launch.calling import call
from launch.systems import System

_MOST = 1000  # jobs, the newest, that are asked for one by one
_SECONDS = re.compile(r"([0-9]+)(?: second\(s\))?")
_CLOCK = re.compile(r"([0-9]+):([0-9]{2}):([0-9]{2})")
_COMPLETED = ("COMPLETED", "DONE")  # as Slurm and LSF say it


def past_runs(system: System, name: str, user: str) -> list[float]:
    """Seconds for which completed jobs of a name held their nodes; a job that was requeued counts with all its runs.

    Raises:
        InputError: nobody can be asked, accounting is switched off, or it does not answer.
    """
    if not system.past:
        raise InputError(f"{system.name} is not asked for past jobs")
    said = call([word.format(name=name, user=user) for word in system.past])
    if not system.past_records:
        return parse_past(said)
    if not (ids := said.split()[-_MOST:]):
        return []
    return parse_records(call([*system.past_records, *ids]))


def parse_past(text: str) -> list[float]:
    """Read what it printed: id, state and seconds of each run of each job; all else is passed over.

    >>> parse_past("17|REQUEUED|600\\n17|COMPLETED|300\\n18|TIMEOUT|60\\n19|COMPLETED|500\\n")
    [900.0, 500.0]
    >>> parse_past("21|DONE|300 second(s)\\n22|EXIT|60 second(s)\\n")
    [300.0]
    """
    seconds: dict[str, float] = defaultdict(float)
    completed = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3 and (ran := _SECONDS.fullmatch(fields[2])):
            seconds[fields[0]] += float(ran[1])
            if fields[1] in _COMPLETED:
                completed.append(fields[0])
    return [seconds[job] for job in dict.fromkeys(completed) if seconds[job] > 0]


def parse_records(text: str) -> list[float]:
    """Read what ``qstat -x -f -F json`` printed: of each job that ended well, for how long it ran the last time.

    Raises:
        InputError: it is something else.

    >>> parse_records('{"Jobs": {"17.pbs": {"job_state": "F", "Exit_status": 0, "resources_used": '
    ...               '{"walltime": "00:05:00"}}, "18.pbs": {"job_state": "F", "Exit_status": 75}}}')
    [300.0]
    """
    try:
        jobs = json.loads(text).get("Jobs", {}).values()
        ended = [job for job in jobs if (job["job_state"], job.get("Exit_status")) == ("F", 0)]
        used = [_CLOCK.fullmatch(job.get("resources_used", {}).get("walltime", "")) for job in ended]
    except (ValueError, AttributeError, TypeError, KeyError):
        raise InputError(f"qstat printed {text[:80]!r}, which is not in the format that was asked for") from None
    seconds = [3600.0 * int(found[1]) + 60 * int(found[2]) + int(found[3]) for found in used if found]
    return [ran for ran in seconds if ran > 0]
