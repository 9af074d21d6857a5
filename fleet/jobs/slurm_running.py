"""The running jobs of a Slurm cluster as the eviction planner wants them.

What ``squeue`` knows (nodes, time used) is joined with what it does not: how a
job checkpoints. That comes from the site's file and from the job's comment; the
nearer to the job it was said, the more it counts:

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
from launch.slurm_jobs import SlurmJob
from scheduler.base import InputError, is_number
from scheduler.eviction.plan import RunningJob, round_up
from scheduler.eviction.running_jobs import RESOLUTION, Checkpointing, FileSystem
from scheduler.files import read_json

# GB a node; GB a node; minutes; seconds since 1970; minutes; minutes
CHECKPOINT_KEYS = (
    "memory_gb",
    "critical_gb",
    "interval_min",
    "last_checkpoint",
    "app_time",
    "sys_time",
)
SKEW_S = 60  # by which the clocks of a cluster may differ

CheckpointFacts = Mapping[str, float]


@dataclass(frozen=True)
class SiteCheckpoints:
    """What is known of the checkpoints of a cluster's jobs: of all, by partition, by job name, by job id."""

    default: CheckpointFacts = field(default_factory=dict)
    partitions: Mapping[str, CheckpointFacts] = field(default_factory=dict)
    names: Mapping[str, CheckpointFacts] = field(default_factory=dict)
    jobs: Mapping[str, CheckpointFacts] = field(default_factory=dict)

    def for_job(self, job: SlurmJob) -> dict[str, float]:
        """What is said of one job; a task of an array also goes by the array's id."""
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
        UserError: it holds something else than it should.
        InputError: it cannot be read.
    """
    whole = _mapping(read_json(path), f"{path}")
    groups = ("partitions", "names", "jobs")
    unknown = whole.keys() - {"default", *groups}
    if unknown:
        raise UserError(
            f"{path}: {min(unknown)!r} is unknown; there are default, {', '.join(groups)}"
        )
    said = {
        group: {
            name: _checkpoint_facts(values, f"{path}: {group}: {name}")
            for name, values in _mapping(whole.get(group, {}), f"{path}: {group}").items()
        }
        for group in groups
    }
    return SiteCheckpoints(_checkpoint_facts(whole.get("default", {}), f"{path}: default"), **said)


def running_jobs(
    jobs: Sequence[SlurmJob],
    site: SiteCheckpoints,
    storage: FileSystem | None,
    now_s: float,
    resolution: float | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[RunningJob]:
    """Join what Slurm knows of the running jobs with what is said of their checkpoints.

    A job of which nothing is said can only be killed, and loses what it did since its start. A comment that cannot
    be read, or says something unknown or impossible, is passed over: any user can write one. A job of which Slurm
    does not know how long it has been running is left out: what it would lose is not known.

    Args:
        jobs: as ``squeue`` tells.
        site: what is said of them, apart from their comments.
        storage: needed where sizes are given.
        now_s: seconds since 1970.
        resolution: minutes to whose multiples times are rounded up.
        warn: is told of each comment that is passed over, and each job that is left out.

    Raises:
        UserError: sizes are given without bandwidths, or a last checkpoint lies in the future.
        InputError: a number is out of range.
    """
    grain = RESOLUTION if resolution is None else resolution
    found = []
    for job in jobs:
        if job.elapsed_s is None:
            warn(
                f"job {job.id}: squeue does not know how long it has been running; it is left out of the plan"
            )
            continue
        try:
            found.append(_join(job, site, storage, now_s, grain))
            why = job.unread
        except (UserError, InputError) as error:
            # What is wrong without the comment as well is the site's, and raised again.
            found.append(_join(replace(job, checkpoint={}), site, storage, now_s, grain))
            why = str(error)
        if why:
            warn(f"{why}; its comment is ignored")
    return found


def _join(
    job: SlurmJob, site: SiteCheckpoints, storage: FileSystem | None, now_s: float, grain: float
) -> RunningJob:
    said = _checkpoint_facts(site.for_job(job), f"job {job.id}")
    interval = said.get("interval_min")
    assert job.elapsed_s is not None, "such a job is left out"
    since_s = job.elapsed_s
    if "last_checkpoint" in said:
        since_s = min(
            since_s, now_s - said["last_checkpoint"]
        )  # a job that was requeued began at its checkpoint
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
        said.get("critical_gb"),
        said.get("memory_gb"),
    )
    if storage is None and ("critical_gb" in said or "memory_gb" in said):
        raise UserError(
            f"job {job.id}: its checkpoints have sizes, so name --aggregate-bandwidth and --node-bandwidth"
        )
    if storage is not None:
        costs = checkpointing.running_job(storage, grain)
    else:
        costs = RunningJob(job.id, job.nodes, checkpointing.loss)
    if (
        job.signal is not None and storage is not None and "critical_gb" in said
    ):  # it waits for no moment of its own
        written = storage.seconds([said["critical_gb"]] * job.nodes)
        costs = replace(costs, app_time=round_up(written / 60, grain))
    times = {name: round_up(said[name], grain) for name in ("app_time", "sys_time") if name in said}
    return replace(costs, **times)  # type: ignore[arg-type]


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{place}: it must be an object")
    return value


def _checkpoint_facts(value: Any, place: str) -> dict[str, float]:
    for name, number in _mapping(value, place).items():
        if name not in CHECKPOINT_KEYS:
            raise UserError(f"{place}: {name!r} is unknown; there are {', '.join(CHECKPOINT_KEYS)}")
        if not is_number(number):
            raise UserError(f"{place}: {name} is {repr(number)[:40]}; it must be a finite number")
    return dict(value)
