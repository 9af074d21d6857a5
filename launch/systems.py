"""The batch systems: one vocabulary, a table row and a template each.

What a job script says in its directives stands in ``launch/templates/<name>.sh``; what is said on
command lines, and what differs in a word or two, stands here. ``local`` is this machine without a
batch system. A :class:`System` of one's own does all that one of the table does.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launch.base import InputError, call, check_fields, clock_s, read_records

TEMPLATES = Path(__file__).with_name("templates")
# What a template may say as <<word>>: the job's name; the folder for what it prints; its walltime
# as hours:minutes; seconds and whole minutes before its end at which it is warned; the options of
# all kinds; what it does.
WORDS = frozenset({"name", "outputs", "hh_mm", "warning", "warning_minutes", "directives", "body"})
COUNTS = frozenset({"nodes", "ranks", "ranks_per_node", "gpus"})


@dataclass(frozen=True)
class System:
    """One batch system.

    Args:
        name: as users call it.
        directive: what a line of options begins with in a script.
        account, queue: the options for them.
        resources, gpu_resources: the options that ask for whole nodes without and with GPUs, where
            a site says nothing else, with ``{nodes}``, ``{ranks}``, ``{ranks_per_node}`` and
            ``{gpus}``.
        rerun: the options that let it start a job again whose node has died, and that forbid it.
        warns: whether it can be asked for a signal before the walltime ends; otherwise FLEET keeps
            the time.
        job_variable: holds the id of a job in its environment.
        submit: the command that takes a script, as its last argument or as its input.
        by_input: the latter.
        id_pattern: finds the id in what the command prints.
        walltime: further options for a job whose walltime is not that of its script, with
            ``{minutes}``.
        past: the command that tells id, state and seconds of the runs of past jobs, with ``|``
            between them, of a ``{name}`` and a ``{user}``; or their ids alone, where there is
        past_records: the command that tells about the jobs whose ids follow, as ``qstat -f -F
            json`` does.
        after: further options for a job that begins when another, ``{job}``, has ended in whatever
            way.
        begin: further options for a job that begins in ``{seconds}`` at the earliest.
        tell: the command that sends SIGUSR2 to the running ``{job}``, upon which its launch saves
            and ends.
        broadcast: the command that, within a job, copies a file ``{source}`` to ``{target}`` on
            each of its nodes, as words for a shell; none where there is none.
        requeue: the command that puts the running ``{job}`` into the queue again; none where users
            cannot.
        state: the command that tells about ``{job}``.
        preempted: a regular expression for what it says of a job that is being preempted while it
            may still end by itself; none where such a job is not told, or simply killed.
        over: the same of a job that has ended, or that the system does not know any more.
        restarts: holds in a job's environment how often it has been put back into the queue.
        queue_commands: the command that lists one's jobs, and with its fellows tells of idle nodes:
            one of :data:`launch.queues.QUEUES`; none where there is none.
        template: of its scripts, with :data:`WORDS` in ``<<`` and ``>>``; ``templates/<name>.sh``
            of this package unless given.

    Raises:
        InputError: a part is missing, or has words that nobody fills in.
    """

    name: str
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
                f"{source}: id_pattern: {self.id_pattern!r} should be a regular expression with one group, "
                "the id of a job"
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
        """Return True if jobs are handed in, and wait; otherwise a script runs on this machine, now."""
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
            "#SBATCH ",
            "--account={}",
            "--partition={}",
            _SLURM_NODES,
            (*_SLURM_NODES, "--gpus-per-node={gpus}"),
            ("--requeue", "--no-requeue"),
            True,
            "SLURM_JOB_ID",
            ("sbatch", "--parsable"),
            False,
            r"^(\d+)",
            ("--dependency=afterany:{job}",),
            ("scontrol", "requeue", "{job}"),
            ("scontrol", "show", "job", "{job}"),
            r"\bPreemptTime=\d",
            # One that waits has been put back into the queue, with no process left.
            r"JobState=(BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PENDING|PREEMPTED|REVOKED"
            r"|TIMEOUT)\b|Invalid job id",
            "SLURM_RESTART_COUNT",
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
            "#BSUB ",
            "-P {}",
            "-q {}",
            _LSF_NODES,
            (*_LSF_NODES, '-gpu "num={gpus}"'),
            ("-r", "-rn"),
            True,
            "LSB_JOBID",
            ("bsub",),
            True,
            r"Job <(\d+)>",
            ("-w", "ended({job})"),
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
            "#PBS ",
            "-A {}",
            "-q {}",
            ("-l select={nodes}:mpiprocs={ranks_per_node}", "-l place=scatter:excl"),
            ("-l select={nodes}:mpiprocs={ranks_per_node}:ngpus={gpus}", "-l place=scatter:excl"),
            ("-r y", "-r n"),
            False,
            "PBS_JOBID",
            ("qsub",),
            False,
            r"^(\S+)",
            ("-W", "depend=afterany:{job}"),
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
    """Hand a job script in.

    Args:
        after: the id of a job that must have ended before this one begins.
        walltime_s: to ask for instead of the script's.
        more: options.

    Returns:
        The id of the job.

    Raises:
        InputError: the system is not there, or refused it; the message has its words.
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
        raise InputError(
            f"{system.submit[0]} printed {output.strip()!r}, in which there is no job id"
        )
    return match[1]


def continue_job(
    system: System,
    job: str,
    script: Path,
    walltime_s: float | None = None,
    more: Sequence[str] = (),
) -> str:
    """See to it that a running job is followed by another run of its script; returns the id of that one.

    It is put into the queue again, under the same id, where the system and the site let users do
    that, and otherwise its script is handed in anew, to begin when the job has ended.

    Args:
        walltime_s: to ask for; then it is another job, since one that is queued again keeps its
            walltime.
        more: options of another job.

    Raises:
        InputError: the system refused both.
    """
    if system.requeue and walltime_s is None:
        with suppress(InputError):  # JobRequeue=0, or --no-requeue
            call([word.format(job=job) for word in system.requeue])
            return job
    return submit(system, script, after=job, walltime_s=walltime_s, more=more)


def is_preempted(system: System, job: str) -> bool:
    """Return True if a running job is being preempted, as far as its system says.

    Slurm, when it preempts a job, ends its steps first (the ranks) and its script, which knows
    nothing, last.
    """
    if not (system.state and system.preempted):
        return False
    try:
        return (
            re.search(system.preempted, call([word.format(job=job) for word in system.state]))
            is not None
        )
    except InputError:  # then it does not say
        return False


class CurrentJob(NamedTuple):
    """The batch job that a process is in.

    Attributes:
        system: its name; empty outside of a job.
        id: of the job.
        restarts: how often it has been put back into the queue, where the system says so.
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
        if system.job_variable and (job := environment.get(system.job_variable)):
            count = environment.get(system.restarts, "")
            return CurrentJob(
                system.name, job, int(count) if count.isascii() and count.isdecimal() else 0
            )
    return CurrentJob()


def knows_job(name: str, job: str, systems: Mapping[str, System] = SYSTEMS) -> bool | None:
    """Return True if a batch system still knows a job that may have processes; None if it does not answer.

    One that runs or is suspended does. One that waits does not, if the system puts jobs back into
    the queue only when all of them have ended.

    Args:
        name: of the system.
        job: its id.
        systems: that can be asked, by their names.
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

_MOST = 1000  # jobs, the newest, that are asked for one by one
_SECONDS = re.compile(r"([0-9]+)(?: second\(s\))?")
_COMPLETED = ("COMPLETED", "DONE")  # as Slurm and LSF say it


def past_runs(system: System, name: str, user: str) -> list[float]:
    """Seconds for which completed jobs of a name held their nodes; a job that was requeued counts with all its runs.

    Accounting is asked, or the server for what it remembers. LSF and PBS are asked by their
    manuals; there was neither to try it on.

    Raises:
        InputError: nobody can be asked, accounting is switched off, or it does not answer.
    """
    if not system.past:
        raise InputError(f"{system.name} is not asked for past jobs")
    output = call([word.format(name=name, user=user) for word in system.past])
    if not system.past_records:
        return parse_past(output)
    ids = output.split()[-_MOST:]
    if not ids:
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
    jobs = read_records("qstat", text, "Jobs", "job_state").values()
    ended = [job for job in jobs if (job["job_state"], job.get("Exit_status")) == ("F", 0)]
    used = [clock_s(job.get("resources_used", {}).get("walltime", "")) for job in ended]
    return [seconds for seconds in used if seconds]
