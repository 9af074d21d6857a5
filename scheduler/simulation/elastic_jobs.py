"""Read or draw the jobs of the autoscaler's simulation.

A file gives the arrival of jobs, their length on a scaling factor of 1, and their scaling:

    {"gpus": 2, "jobs": [{"arrival_min": 0, "length_min": 30, "scaling": [1, 1.5]}, ...]}

``scaling[k-1]`` is the throughput scaling factor on k GPUs, 0 where the job
cannot run. Random ones are drawn from the four categories of [ELASTIC] Table I
(section IV-A); what their scaling was assumed from is in
``data/elastic_categories.json``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from launch.errors import InputError
from scheduler.base import CommTime, Network, StepTime, is_number
from scheduler.elastic.allocate import BatchRange, ScalingCurve, scaling_curve
from scheduler.files import check_record, read_json
from scheduler.simulation.autoscale import ElasticJob

CATEGORIES = Path(__file__).parents[1] / "data" / "elastic_categories.json"
LONGEST_MIN = 1e8  # of an arrival or a job: two centuries
MAX_JOBS = 1e6  # drawn at random

PATTERNS = ("low", "high", "bursty")
ELASTIC = "elastic"
# For the batches of drawn jobs; not those of an ensemble.
POLICIES = (
    ELASTIC,
    "fixed",
    "smallest",
    "largest",
)


# --- from a file --------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobFile:
    """The content of a file of jobs."""

    gpus: int
    jobs: tuple[ElasticJob, ...]


def read_jobs(path: str | Path) -> JobFile:
    """Read a file of jobs.

    Raises:
        InputError: it cannot be read, is not JSON, or something in it is missing, unknown or
            impossible; the message names the place.
    """
    top = check_record(read_json(path), str(path), ("gpus", "jobs"))
    gpus = top["gpus"]
    if not (isinstance(gpus, int) and not isinstance(gpus, bool) and gpus >= 1):
        raise InputError(f"{path}: gpus is {gpus!r}; it must be a whole number of at least 1")
    if not (isinstance(top["jobs"], list) and top["jobs"]):
        raise InputError(f"{path}: jobs is {top['jobs']!r}; it must be a list of at least one job")
    return JobFile(
        gpus, tuple(_job(job, f"{path}: jobs[{i}]") for i, job in enumerate(top["jobs"]))
    )


def _job(value: Any, location: str) -> ElasticJob:
    record = check_record(value, location, ("arrival_min", "length_min", "scaling"))
    arrival = _number(record["arrival_min"], f"{location}.arrival_min")
    length = _number(record["length_min"], f"{location}.length_min")
    if not 0 <= arrival <= LONGEST_MIN:
        raise InputError(
            f"{location}.arrival_min is {arrival:g}; "
            f"it must be 0 to {LONGEST_MIN:g} minutes from the start"
        )
    if length <= 0:
        raise InputError(
            f"{location}.length_min is {length:g}; "
            "it must be above 0 (minutes on a scaling factor of 1)"
        )
    if not isinstance(record["scaling"], list):
        raise InputError(
            f"{location}.scaling is {record['scaling']!r}; "
            "it must be a list of factors on 1, 2, ... GPUs"
        )
    factors = tuple(
        _number(factor, f"{location}.scaling[{k}]") for k, factor in enumerate(record["scaling"])
    )
    try:
        job = ElasticJob(arrival, length, ScalingCurve(factors))
    except InputError as error:
        raise InputError(f"{location}.scaling: {error}") from None
    slowest = min(factor for factor in factors if factor > 0)
    if length > LONGEST_MIN * slowest:
        raise InputError(
            f"{location}: {length:g} min on a scaling factor of {slowest:g} take more than "
            f"{LONGEST_MIN:g} min"
        )
    return job


def _number(value: Any, location: str) -> float:
    if not is_number(value):
        raise InputError(f"{location} is {value!r}; it must be a number")
    return float(value)


def job_record(gpus: int, jobs: Sequence[ElasticJob]) -> dict[str, Any]:
    """Return the content of a file of these jobs; :func:`read_jobs` reads it back."""
    return {
        "gpus": gpus,
        "jobs": [
            {
                "arrival_min": job.arrival_min,
                "length_min": job.length_min,
                "scaling": list(job.curve.factors),
            }
            for job in jobs
        ],
    }


# --- at random ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Category:
    """A kind of job ([ELASTIC] Table I).

    Args:
        network: its measured step times and size.
        batches: the global batch sizes that its user allows.
        length_min: how long it runs on one GPU with the largest batch that one holds.
    """

    network: Network
    batches: BatchRange
    length_min: float


@dataclass(frozen=True)
class Workload:
    """The assumptions about the jobs and the cluster.

    Args:
        categories: drawn with equal probability.
        comm_s: gradient exchanges measured on the cluster.
        most_gpus: the maximum number of GPUs that one job may have (k_max).
        low: arrival rate of quiet times, as a share of that of busy ones.
        burst_min: how long busy and quiet times last where they alternate.
    """

    categories: tuple[Category, ...]
    comm_s: tuple[CommTime, ...]
    most_gpus: int
    low: float
    burst_min: float


@lru_cache(maxsize=1)
def workload() -> Workload:
    """Return the workload of ``data/elastic_categories.json``."""
    data = read_json(CATEGORIES)
    return Workload(
        tuple(_category(record) for record in data["categories"]),
        tuple(
            CommTime(row["params_mb"], row["gpus"], row["seconds"])
            for row in data["comm_s"]["rows"]
        ),
        data["most_gpus"]["value"],
        data["low"]["value"],
        data["burst_min"]["value"],
    )


def _category(record: dict[str, Any]) -> Category:
    steps = tuple(StepTime(row["batch"], row["seconds"]) for row in record["step_s"])
    network = Network(record["name"], (), params_mb=record["params_mb"], step_s=steps)
    return Category(network, BatchRange(*record["batch"]), record["length_min"])


def generate(
    gpus: int,
    minutes: float,
    pattern: str,
    policy: str,
    seed: int,
    load: float = 1.0,
    category: int | None = None,
) -> list[ElasticJob]:
    """Draw jobs that arrive during a period.

    Arrivals are a Poisson process. In busy times they bring, at ``load`` 1, as much work as the
    cluster does with every job on one GPU; in quiet times a quarter of that. ``high`` and ``low``
    are one long busy or quiet time, ``bursty`` alternates, busy first. Category and, for the
    baseline, batch are drawn uniformly. All draws are made for every policy, so that policies are
    compared on the same arrivals.

    Args:
        gpus: the number of GPUs of the cluster.
        minutes: the time during which jobs arrive.
        pattern: ``low``, ``high`` or ``bursty``.
        policy: ``elastic`` jobs use the best batch of their range on any number of GPUs;
            ``fixed`` ones keep the batch drawn (the baseline of section IV-B), ``smallest`` and
            ``largest`` ones the smallest and the largest that their user allows (section IV-D).
        seed: the seed of the draws.
        load: the load in busy times.
        category: 1 to 4, to draw only this category; all by default.

    Returns:
        The jobs, in order of arrival.

    Raises:
        InputError: a number is not positive, the category is unknown, or more than a million jobs
            are to be expected.
    """
    for name, value in (("gpus", gpus), ("minutes", minutes), ("load", load)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; it must be a number above 0")
    assumed = workload()
    kinds = assumed.categories
    if category is not None:
        if not 1 <= category <= len(kinds):
            raise InputError(
                f"category is {category}; it must be a whole number from 1 to {len(kinds)}"
            )
        kinds = kinds[category - 1 : category]
    rng = np.random.default_rng(seed)
    busy = load * gpus / float(np.mean([kind.length_min for kind in kinds]))
    if busy * minutes > MAX_JOBS:
        raise InputError(
            f"{gpus} GPUs at load {load:g} for {minutes:g} min "
            f"make about {busy * minutes:.0g} jobs: at most {MAX_JOBS:g} can be drawn"
        )
    arrivals = _arrivals(rng, minutes, pattern, busy, assumed)
    drawn = rng.integers(len(assumed.categories), size=len(arrivals))
    if category is not None:
        drawn[:] = category - 1
    shares = rng.random(len(arrivals))
    jobs = []
    for arrival, index, share in zip(arrivals, drawn.tolist(), shares.tolist(), strict=True):
        batches = assumed.categories[index].batches
        batch = batches.smallest + math.floor(share * (batches.largest - batches.smallest + 1))
        fixed_batches = {"fixed": batch, "smallest": batches.smallest, "largest": batches.largest}
        curve = _curve(index, fixed_batches.get(policy))
        jobs.append(ElasticJob(arrival, assumed.categories[index].length_min, curve))
    return jobs


def _arrivals(
    rng: np.random.Generator, minutes: float, pattern: str, busy: float, assumed: Workload
) -> list[float]:
    length = assumed.burst_min if pattern == "bursty" else minutes
    moments: list[float] = []
    for number in range(math.ceil(minutes / length)):
        start = number * length
        end = min(minutes, (number + 1) * length)
        quiet = pattern == "low" or (pattern == "bursty" and number % 2 == 1)
        count = rng.poisson(busy * (assumed.low if quiet else 1.0) * (end - start))
        moments += np.sort(rng.uniform(start, end, count)).tolist()
    return moments


@lru_cache(maxsize=4096)
def _curve(category: int, batch: int | None) -> ScalingCurve:
    assumed = workload()
    kind = assumed.categories[category]
    return scaling_curve(kind.network, assumed.comm_s, kind.batches, assumed.most_gpus, batch)
