"""The batch systems: a table row and a script template each.

``launch/templates/<name>.sh`` has the directives of a job script; this module has the command lines
and small differences. ``local`` is this machine without a batch system. A custom :class:`System`
can do everything that one of the table can.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple

from launch.base import call, check_fields, clock_s, read_records
from launch.errors import InputError

TEMPLATES = Path(__file__).with_name("templates")
# The fields of a template, written <<word>>: the job's name; the folder for its output; its
# walltime as hours:minutes; the warning before its end in seconds and in minutes; all options; the
# commands.
WORDS = frozenset({"name", "outputs", "hh_mm", "warning", "warning_minutes", "directives", "body"})
COUNTS = frozenset({"nodes", "ranks", "ranks_per_node", "gpus"})


@dataclass(frozen=True)
class System:
    """One batch system.

    Args:
        name: the system's name for users.
        directive: the start of a line of options in a script.
        account: the option for the account.
        queue: the option for the queue.
        resources: the options that request whole nodes without GPUs, unless a site has others, with
            ``{nodes}``, ``{ranks}``, ``{ranks_per_node}`` and ``{gpus}``.
        gpu_resources: the same for nodes with GPUs.
        rerun: the options that allow and forbid restarting a job after its node died.
        warns: whether the system can send a signal before the walltime ends; if not, FLEET keeps
            the time.
        job_variable: the variable that holds the id of a job.
        submit: the command that takes a script, as its last argument or as its input.
        by_input: whether the script is its input.
        id_pattern: finds the id in the output of the command.
        walltime: options for a job whose walltime differs from its script's, with ``{minutes}``.
        past: the command that prints id, state and seconds of past jobs' runs, separated by ``|``,
            for a ``{name}`` and a ``{user}``; or only their ids if there is ``past_records``.
        past_records: the command that prints the records of the jobs whose ids follow, like
            ``qstat -f -F json``.
        after: options for a job that starts after ``{job}`` has ended in any way.
        begin: options for a job that starts in ``{seconds}`` at the earliest.
        tell: the command that sends SIGUSR2 to the running ``{job}``, whose launch then saves and
            ends.
        broadcast: the command that, within a job, copies a file ``{source}`` to ``{target}`` on
            each of its nodes, as shell words; empty if there is none.
        requeue: the command that requeues the running ``{job}``; empty if users cannot.
        state: the command that prints the state of ``{job}``.
        preempted: a regular expression for the state of a job that is being preempted and may still
            end by itself; empty if such a job is not informed, or simply killed.
        over: the same for a job that has ended or is no longer known.
        restarts: the variable that holds how often a job has been requeued.
        queue_commands: the command that lists the user's jobs, a key of
            :data:`launch.queues.QUEUES`; empty if there is none.
        template: the template of scripts, with :data:`WORDS` in ``<<`` and ``>>``;
            ``templates/<name>.sh`` of this package by default.

    Raises:
        InputError: a part is missing or has unknown fields.
    """

    name: str
    _: KW_ONLY
    directive: str = ""
    account: str = ""
    queue: str = ""
    resources: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = ()
    rerun: tuple[str, str] | None = None
    warns: bool = False
    job_variable: str = ""
    submit: tuple[str, ...] = ()
    by_input: bool = False
    id_pattern: str = ""
    after: tuple[str, ...] = ()
    requeue: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    preempted: str = ""
    over: str = ""
    restarts: str = ""
    queue_commands: str = ""
    template: str = ""
    walltime: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    past_records: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    tell: tuple[str, ...] = ()
    broadcast: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        source = f"batch system {self.name}"
        for fields, texts in (
            ({""}, (self.account, self.queue)),
            (COUNTS, (*self.resources, *self.gpu_resources)),
            ({"job"}, (*self.after, *self.requeue, *self.state, *self.tell)),
            ({"source", "target"}, self.broadcast),
            ({"minutes"}, self.walltime),
            ({"seconds"}, self.begin),
            ({"name", "user"}, self.past),
        ):
            for text in texts:
                check_fields(text, fields, source)
        words = set(re.findall(r"<<(\w+)>>", self.script))
        if "body" not in words or words - WORDS:
            raise InputError(
                f"{source}: template: it should have <<body>>, and may have "
                f"{', '.join(f'<<{word}>>' for word in sorted(WORDS - {'body'}))}"
            )
        if self.has_queue and not self.job_variable:
            raise InputError(
                f"{source}: job_variable: it should name the variable that holds the id of a job"
            )
        if self.has_queue and _groups(self.id_pattern) != 1:
            raise InputError(
                f"{source}: id_pattern: {self.id_pattern!r} should be a regular expression with "
                "one group, the id of a job"
            )
        for part in ("preempted", "over"):
            if _groups(getattr(self, part)) is None:
                raise InputError(
                    f"{source}: {part}: {getattr(self, part)!r} should be a regular expression"
                )

    @property
    def script(self) -> str:
        """The template of its scripts."""
        if self.template:
            return self.template
        file = TEMPLATES / f"{self.name}.sh"
        if not file.exists():
            raise InputError(f"batch system {self.name}: template: it is missing")
        return file.read_text(encoding="utf-8")

    @property
    def has_queue(self) -> bool:
        """Return True if jobs are queued; otherwise a script runs immediately on this machine."""
        return bool(self.submit)


def _groups(pattern: str) -> int | None:
    try:
        return re.compile(pattern).groups
    except re.error:
        return None


_SLURM_NODES = ("--nodes={nodes}", "--ntasks-per-node={ranks_per_node}", "--exclusive")
_LSF_NODES = ("-n {ranks}", '-R "span[ptile={ranks_per_node}]"', "-x")

SYSTEMS = {
    system.name: system
    for system in (
        System(
            "slurm",
            directive="#SBATCH ",
            account="--account={}",
            queue="--partition={}",
            resources=_SLURM_NODES,
            gpu_resources=(*_SLURM_NODES, "--gpus-per-node={gpus}"),
            rerun=("--requeue", "--no-requeue"),
            warns=True,
            job_variable="SLURM_JOB_ID",
            submit=("sbatch", "--parsable"),
            id_pattern=r"^(\d+)",
            after=("--dependency=afterany:{job}",),
            requeue=("scontrol", "requeue", "{job}"),
            state=("scontrol", "show", "job", "{job}"),
            preempted=r"\bPreemptTime=\d",
            # A waiting job has been requeued and has no process.
            over=r"JobState=(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY"
            r"|PENDING|PREEMPTED|REVOKED|TIMEOUT)\b|Invalid job id",
            restarts="SLURM_RESTART_COUNT",
            queue_commands="squeue",
            broadcast=("sbcast", "--force", "{source}", "{target}"),
            walltime=("--time={minutes}",),
            begin=("--begin=now+{seconds}",),
            tell=("scancel", "--batch", "--signal=USR2", "{job}"),
            past=(
                "sacct",
                "--allocations",
                "--duplicates",
                "--noheader",
                "--parsable2",
                "--name={name}",
                "--user={user}",
                "--starttime=now-365days",
                "--format=JobIDRaw,State,ElapsedRaw",
            ),
        ),
        System(
            "lsf",
            directive="#BSUB ",
            account="-P {}",
            queue="-q {}",
            resources=_LSF_NODES,
            gpu_resources=(*_LSF_NODES, '-gpu "num={gpus}"'),
            rerun=("-r", "-rn"),
            warns=True,
            job_variable="LSB_JOBID",
            submit=("bsub",),
            by_input=True,
            id_pattern=r"Job <(\d+)>",
            after=("-w", "ended({job})"),
            state=("bjobs", "-noheader", "-o", "stat", "{job}"),
            over=r"\b(DONE|EXIT)\b|is not found",
            queue_commands="bjobs",
            walltime=("-W", "{minutes}"),
            tell=("bkill", "-s", "USR2", "{job}"),
            past=(
                "bjobs",
                "-a",
                "-noheader",
                "-J",
                "{name}",
                "-u",
                "{user}",
                "-o",
                "jobid stat run_time delimiter='|'",
            ),
        ),
        System(
            "pbs",
            directive="#PBS ",
            account="-A {}",
            queue="-q {}",
            resources=("-l select={nodes}:mpiprocs={ranks_per_node}", "-l place=scatter:excl"),
            gpu_resources=(
                "-l select={nodes}:mpiprocs={ranks_per_node}:ngpus={gpus}",
                "-l place=scatter:excl",
            ),
            rerun=("-r y", "-r n"),
            job_variable="PBS_JOBID",
            submit=("qsub",),
            id_pattern=r"^(\S+)",
            after=("-W", "depend=afterany:{job}"),
            state=("qstat", "-f", "{job}"),
            over=r"job_state = [FX]\b|Unknown Job|has finished",
            queue_commands="qstat",
            tell=("qsig", "-s", "SIGUSR2", "{job}"),
            past=("qselect", "-x", "-N", "{name}", "-u", "{user}"),
            past_records=("qstat", "-x", "-f", "-F", "json"),
        ),
        System("local"),
    )
}


def submit(
    system: System,
    script: Path,
    after: str | None = None,
    walltime_s: float | None = None,
    more: Sequence[str] = (),
) -> str:
    """Submit a job script.

    Args:
        after: the id of a job that must end before this one starts.
        walltime_s: a walltime in seconds, instead of the script's.
        more: further options.

    Returns:
        The id of the job.

    Raises:
        InputError: the system is missing or refused the job; the message has its error.
    """
    if after is not None:
        options = [option.format(job=after) for option in system.after]
    else:
        options = []
    if walltime_s is not None:
        options += [
            option.format(minutes=max(1, math.ceil(walltime_s / 60))) for option in system.walltime
        ]
    command = [*system.submit, *options, *more, *([] if system.by_input else [str(script)])]
    output = call(command, script.read_text(encoding="utf-8") if system.by_input else None)
    match = re.search(system.id_pattern, output.strip(), re.MULTILINE)
    if match is None:
        raise InputError(f"{system.submit[0]} printed {output.strip()!r}, which contains no job id")
    return match[1]


def continue_job(
    system: System,
    job: str,
    script: Path,
    walltime_s: float | None = None,
    more: Sequence[str] = (),
) -> str:
    """Make the script of a running job run again afterwards; return the id of that job.

    The job is requeued under the same id if the system and the site allow it. If not, its script is
    submitted again, to start when the job has ended.

    Args:
        walltime_s: another walltime in seconds; it needs a new job, since a requeued one keeps its
            walltime.
        more: options of a new job.

    Raises:
        InputError: the system refused both.
    """
    if system.requeue and walltime_s is None:
        with suppress(InputError):  # JobRequeue=0, or --no-requeue
            call([word.format(job=job) for word in system.requeue])
            return job
    return submit(system, script, after=job, walltime_s=walltime_s, more=more)


def is_preempted(system: System, job: str) -> bool:
    """Return True if a running job is being preempted, as far as its system reports it.

    When Slurm preempts a job, it first ends its steps (the ranks), and last its script, which is
    not informed.
    """
    if not (system.state and system.preempted):
        return False
    try:
        return (
            re.search(system.preempted, call([word.format(job=job) for word in system.state]))
            is not None
        )
    except InputError:  # unknown
        return False


class CurrentJob(NamedTuple):
    """The batch job of a process.

    Attributes:
        system: the name of the batch system; empty outside of a job.
        id: the id of the job.
        restarts: how often the job has been requeued, if the system reports it.
    """

    system: str = ""
    id: str = ""
    restarts: int = 0


def this_job(environment: Mapping[str, str], systems: Mapping[str, System] = SYSTEMS) -> CurrentJob:
    """Return the batch job of a process, from its environment.

    >>> this_job({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"})
    CurrentJob(system='slurm', id='17', restarts=2)
    >>> this_job({})
    CurrentJob(system='', id='', restarts=0)
    """
    for system in systems.values():
        job = environment.get(system.job_variable) if system.job_variable else None
        if job:
            count = environment.get(system.restarts, "")
            if not (count.isascii() and count.isdecimal()):
                count = "0"
            return CurrentJob(system.name, job, int(count))
    return CurrentJob()


def knows_job(name: str, job: str, systems: Mapping[str, System] = SYSTEMS) -> bool | None:
    """Return True if a job may still have processes; None if its batch system does not answer.

    A running or suspended job may. A waiting job has none if the system requeues jobs only after
    all their processes have ended.

    Args:
        name: the name of the system.
        job: the id of the job.
        systems: name -> known system.
    """
    system = systems.get(name)
    if system is None or not (system.state and system.over):
        return None
    try:
        output = call([word.format(job=job) for word in system.state])
        answered = True
    except InputError as error:
        output = str(error)
        answered = False
    if re.search(system.over, output):
        return False
    if answered:
        return True
    return None


# ---- how long past jobs took ---------------------------------------------------------------------

_MAX_JOBS = 1000  # the newest jobs, which are queried one by one
_SECONDS = re.compile(r"([0-9]+)(?: second\(s\))?")
_COMPLETED = ("COMPLETED", "DONE")  # in Slurm and LSF


def past_runs(system: System, name: str, user: str) -> list[float]:
    """Return the seconds that completed jobs of a name held their nodes, over all their runs.

    The times come from accounting, or from the server's memory. The commands of LSF and PBS follow
    their manuals and were not tested on a real system.

    Raises:
        InputError: the system keeps no record, accounting is switched off, or it does not answer.
    """
    if not system.past:
        raise InputError(f"FLEET cannot read past jobs of {system.name}")
    output = call([word.format(name=name, user=user) for word in system.past])
    if not system.past_records:
        return parse_past(output)
    ids = output.split()[-_MAX_JOBS:]
    if not ids:
        return []
    return parse_records(call([*system.past_records, *ids]))


def parse_past(text: str) -> list[float]:
    """Parse id, state and seconds of each run of each job; other lines are skipped.

    >>> parse_past("17|REQUEUED|600\\n17|COMPLETED|300\\n18|TIMEOUT|60\\n19|COMPLETED|500\\n")
    [900.0, 500.0]
    >>> parse_past("21|DONE|300 second(s)\\n22|EXIT|60 second(s)\\n")
    [300.0]
    """
    seconds: dict[str, float] = defaultdict(float)
    completed = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 3:
            continue
        job, state, duration = fields
        match = _SECONDS.fullmatch(duration)
        if match:
            seconds[job] += float(match[1])
            if state in _COMPLETED:
                completed.append(job)
    return [seconds[job] for job in dict.fromkeys(completed) if seconds[job] > 0]


def parse_records(text: str) -> list[float]:
    """Parse ``qstat -x -f -F json``: the duration of the last run of each successful job.

    Raises:
        InputError: the output has another format.

    >>> parse_records('{"Jobs": {"18.pbs": {"job_state": "F", "Exit_status": 75}, '
    ...               '"17.pbs": {"job_state": "F", "Exit_status": 0, '
    ...               '"resources_used": {"walltime": "00:05:00"}}}}')
    [300.0]
    """
    jobs = read_records("qstat", text, "Jobs", "job_state").values()
    ended = [job for job in jobs if (job["job_state"], job.get("Exit_status")) == ("F", 0)]
    used = [clock_s(job.get("resources_used", {}).get("walltime", "")) for job in ended]
    return [seconds for seconds in used if seconds]
