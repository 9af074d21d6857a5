"""Read the running jobs of a Slurm cluster, for the eviction planner.

``squeue`` reports nodes and elapsed times, but not how a job saves checkpoints. That comes from the
site's file and from the job's comment; a more specific setting wins:

    {"default":    {"memory_gb": 96, "interval_min": 60},
     "partitions": {"long": {"interval_min": 120}},
     "names":      {"relax": {"critical_gb": 12.5}},
     "jobs":       {"1234": {"app_time": 5}}}

    #SBATCH --comment="fleet:critical_gb=20,interval_min=30"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from launch.errors import InputError
from launch.slurm_jobs import SlurmJob
from scheduler.base import is_number
from scheduler.eviction.plan import RunningJob, round_up
from scheduler.eviction.running_jobs import RESOLUTION, Checkpointing, FileSystem
from scheduler.files import read_json

# In GB per node, GB per node, minutes, seconds since 1970, minutes, and minutes.
CHECKPOINT_KEYS = (
    "memory_gb",
    "critical_gb",
    "interval_min",
    "last_checkpoint",
    "app_time",
    "sys_time",
)
SKEW_S = 60  # maximum difference of clocks of a cluster

CheckpointFacts = Mapping[str, float]


@dataclass(frozen=True)
class SiteCheckpoints:
    """How the jobs of a cluster save checkpoints: by default, partition, job name, and job id."""

    default: CheckpointFacts = field(default_factory=dict)
    partitions: Mapping[str, CheckpointFacts] = field(default_factory=dict)
    names: Mapping[str, CheckpointFacts] = field(default_factory=dict)
    jobs: Mapping[str, CheckpointFacts] = field(default_factory=dict)

    def for_job(self, job: SlurmJob) -> dict[str, float]:
        """Return the settings of one job; those of an array's id also hold for its tasks."""
        array = job.id.partition("_")[0]
        return {
            **self.default,
            **self.partitions.get(job.partition, {}),
            **self.names.get(job.name, {}),
            **self.jobs.get(array, {}),
            **self.jobs.get(job.id, {}),
            **job.checkpoint,
        }


def read_site(path: Path) -> SiteCheckpoints:
    """Read a site's file.

    Raises:
        UserError: its content is invalid.
        InputError: it cannot be read.
    """
    content = _mapping(read_json(path), f"{path}")
    groups = ("partitions", "names", "jobs")
    unknown = content.keys() - {"default", *groups}
    if unknown:
        raise UserError(
            f"{path}: {min(unknown)!r} is unknown; choose from default, {', '.join(groups)}"
        )
    facts = {
        group: {
            name: _checkpoint_facts(values, f"{path}: {group}: {name}")
            for name, values in _mapping(content.get(group, {}), f"{path}: {group}").items()
        }
        for group in groups
    }
    return SiteCheckpoints(
        _checkpoint_facts(content.get("default", {}), f"{path}: default"), **facts
    )


def running_jobs(
    jobs: Sequence[SlurmJob],
    site: SiteCheckpoints,
    storage: FileSystem | None,
    now_s: float,
    resolution: float | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[RunningJob]:
    """Join Slurm's running jobs with the settings of their checkpoints.

    A job without settings can only be killed, and loses everything since its start. An unreadable,
    unknown or impossible comment is ignored, because any user can write one. A job whose elapsed
    time Slurm does not know is left out, because its loss is unknown.

    Args:
        jobs: the jobs that ``squeue`` reports.
        site: settings other than comments.
        storage: the file system; needed if sizes are given.
        now_s: seconds since 1970.
        resolution: minutes; times are rounded up to multiples of it.
        warn: called for each ignored comment and each job that is left out.

    Raises:
        UserError: sizes are given without bandwidths, or a last checkpoint lies in the future.
        InputError: a number is out of range.
    """
    step_min = RESOLUTION if resolution is None else resolution
    running = []
    for job in jobs:
        if job.elapsed_s is None:
            warn(
                f"job {job.id}: squeue does not report its elapsed time; it is left out of the plan"
            )
            continue
        try:
            running.append(_join(job, site, storage, now_s, step_min))
            problem = job.unread
        except (UserError, InputError) as error:
            # A problem that remains without the comment is in the site's file, and raised again.
            running.append(_join(replace(job, checkpoint={}), site, storage, now_s, step_min))
            problem = str(error)
        if problem:
            warn(f"{problem}; its comment is ignored")
    return running


def _join(
    job: SlurmJob, site: SiteCheckpoints, storage: FileSystem | None, now_s: float, step_min: float
) -> RunningJob:
    facts = _checkpoint_facts(site.for_job(job), f"job {job.id}")
    interval = facts.get("interval_min")
    assert job.elapsed_s is not None, "jobs without elapsed time are left out"
    since_s = job.elapsed_s
    if "last_checkpoint" in facts:
        # A requeued job began at its checkpoint.
        since_s = min(since_s, now_s - facts["last_checkpoint"])
        if since_s < -SKEW_S:
            raise UserError(
                f"job {job.id}: its last_checkpoint lies {-since_s:.0f} s in the future"
            )
        since_s = max(since_s, 0.0)
    elif interval:
        since_s %= 60 * interval
    checkpointing = Checkpointing(
        job.id,
        job.nodes,
        round(since_s / 60, 6),
        interval,
        facts.get("critical_gb"),
        facts.get("memory_gb"),
    )
    if storage is None and ("critical_gb" in facts or "memory_gb" in facts):
        raise UserError(
            f"job {job.id}: its checkpoints have sizes, so set --aggregate-bandwidth and "
            "--node-bandwidth"
        )
    if storage is not None:
        costs = checkpointing.running_job(storage, step_min)
    else:
        costs = RunningJob(job.id, job.nodes, checkpointing.loss)
    if job.signal is not None and storage is not None and "critical_gb" in facts:
        # The job saves on request.
        write_s = storage.seconds([facts["critical_gb"]] * job.nodes)
        costs = replace(costs, app_time=round_up(write_s / 60, step_min))
    times = {
        name: round_up(facts[name], step_min) for name in ("app_time", "sys_time") if name in facts
    }
    return replace(costs, **times)  # type: ignore[arg-type]


def _mapping(value: Any, where_found: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where_found}: it must be an object")
    return value


def _checkpoint_facts(value: Any, where_found: str) -> dict[str, float]:
    for name, number in _mapping(value, where_found).items():
        if name not in CHECKPOINT_KEYS:
            raise UserError(
                f"{where_found}: {name!r} is unknown; choose from {', '.join(CHECKPOINT_KEYS)}"
            )
        if not is_number(number):
            raise UserError(
                f"{where_found}: {name} is {repr(number)[:40]}; it must be a finite number"
            )
    return dict(value)
