"""How long past jobs took, as the accounting of a batch system knows them."""

from __future__ import annotations

from collections import defaultdict

from launch.base import InputError
from launch.slurm_jobs import answer, ask
from launch.systems import System


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
    """
    seconds: dict[str, float] = defaultdict(float)
    completed = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3 and fields[2].isascii() and fields[2].isdecimal():
            seconds[fields[0]] += float(fields[2])
            if fields[1] == "COMPLETED":
                completed.append(fields[0])
    return [seconds[job] for job in dict.fromkeys(completed) if seconds[job] > 0]
