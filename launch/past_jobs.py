"""How long past jobs took, as the accounting of a batch system knows them."""

from __future__ import annotations

import re
from collections import defaultdict

from launch.base import InputError
from launch.slurm_jobs import answer, ask
from launch.systems import System

_SECONDS = re.compile(r"([0-9]+)(?: second\(s\))?")
_COMPLETED = ("COMPLETED", "DONE")  # as Slurm and LSF say it


def past_runs(system: System, name: str, user: str) -> list[float]:
    """Seconds for which completed jobs of a name held their nodes; a job that was requeued counts with all its runs.

    Raises:
        InputError: nobody can be asked, accounting is switched off, or it does not answer.
    """
    if not system.past:
        raise InputError(f"{system.name} is not asked for past jobs")
    command = [word.format(name=name, user=user) for word in system.past]
    return parse_past(answer(command, ask(command)))


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
