"""Ask the batch system, from inside a job, how much of the walltime is left."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from launch.base import call, clock_s
from launch.errors import InputError

TIMEOUT_S = 20


def seconds_left(environment: Mapping[str, str]) -> float | None:
    """Return the seconds until the batch system ends this job; None if unknown.

    If the batch system does not answer, the run trains without a known end.

    Args:
        environment: the variables of a process of the job.
    """
    if "SLURM_JOB_ID" in environment:
        return _ask_slurm(environment)
    if "LSB_JOBID" in environment:
        return parse_bjobs(
            _output(("bjobs", "-noheader", "-o", "time_left", environment["LSB_JOBID"]))
        )
    if "PBS_JOBID" in environment:
        remaining_s = parse_qstat(_output(("qstat", "-f", environment["PBS_JOBID"])), time.time())
        # Torque sets it
        if remaining_s is None:
            return _seconds(environment.get("PBS_WALLTIME", ""))
        return remaining_s
    return None


def _ask_slurm(environment: Mapping[str, str]) -> float | None:
    start, end = (
        _seconds(environment.get(name, ""))
        for name in ("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME")
    )
    if end is not None:
        remaining_s = max(0.0, end - time.time())
        # Slurm uses the clock of its server; this node's clock may differ by minutes.
        if start is None:
            return remaining_s
        return min(remaining_s, end - start)
    return clock_s(
        _output(("squeue", "--noheader", "--format=%L", f"--jobs={environment['SLURM_JOB_ID']}"))
    )


def parse_bjobs(text: str) -> float | None:
    """Parse ``bjobs -o time_left``: hours and minutes, and their kind.

    ``L`` is a limit; ``E`` and ``X`` mark an estimate, at which LSF ends no job.

    >>> parse_bjobs("1:30 L\\n"), parse_bjobs("0:12 E\\n"), parse_bjobs("-\\n")
    (5400.0, None, None)
    """
    match = re.fullmatch(r"\s*(\d+):(\d+)\s+L\s*", text)
    if match is None:
        return None
    return float(3600 * int(match[1]) + 60 * int(match[2]))


def parse_qstat(text: str, now: float) -> float | None:
    """Parse the remaining seconds of one job from ``qstat -f``.

    The used walltime is updated only now and then, so the start time is preferred.

    Args:
        now: seconds since 1970.

    >>> parse_qstat("    Resource_List.walltime = 01:00:00\\n"
    ...             "    resources_used.walltime = 00:10:00\\n", 0.0)
    3000.0
    """
    fields = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", text, re.MULTILINE))
    limit = clock_s(fields.get("Resource_List.walltime", ""))
    if limit is None:
        return None
    used = [clock_s(fields.get("resources_used.walltime", "")) or 0.0]
    for name in ("stime", "start_time"):  # of PBS Pro and of Torque
        try:
            used.append(
                now - time.mktime(time.strptime(fields.get(name, ""), "%a %b %d %H:%M:%S %Y"))
            )
        except (ValueError, OverflowError):
            continue
    return max(0.0, limit - max(used))


def _seconds(text: str) -> float | None:
    if re.fullmatch(r"\d{1,15}", text):
        return float(text)
    return None


def _output(command: Sequence[str]) -> str:
    """Return the output of a command; "" if it is missing, fails or does not answer."""
    try:
        return call(command, timeout_s=TIMEOUT_S)
    except (InputError, OSError):
        return ""
