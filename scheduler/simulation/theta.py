"""Draw batch jobs that fill a machine like Theta ([COSIM] sections IV-A and IV-B).

The paper takes three moments from Theta's trace at which 4,352 of its 4,392
nodes ran 12, 16 and 24 jobs, none of which could be killed for nothing, and
adds checkpoints at random. Taken from there: those counts; checkpoints of their
own every hour; 40 to 90 % of a node's 192 GB in use, of which 20 to 60 % is what
an application writes; 250 GB/s for the file system. Not given there, and assumed
here:

- how the nodes are shared: in proportion to log-normal weights (sigma 1), so
  that a few jobs are large and counts have no common divisor, which is the
  hardest case for the planner;
- how long the jobs have run and will run: 30 minutes to 6 hours, and to 4 hours,
  uniformly, so the last checkpoint of a job is anywhere in the hour before;
- the bandwidth of one node: 2 GB/s, with which a job fills the file system from
  125 nodes on (Theta's production jobs began at 128).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.eviction.running_jobs import Checkpointing, FileSystem

NODES = 4352
STORAGE = FileSystem(aggregate_gbps=250, node_gbps=2)
INTERVAL_MIN = 60
NODE_GB = 192


@dataclass(frozen=True)
class BatchJob:
    """A job of a drawn machine.

    Args:
        checkpointing: the job, its last checkpoint and the sizes of the next.
        left_min: minutes that it would still run if not stopped.
    """

    checkpointing: Checkpointing
    left_min: float


def theta_like(jobs: int, seed: int, nodes: int = NODES, granularity: int = 1) -> list[BatchJob]:
    """Draw the jobs that run at one moment.

    Args:
        jobs: number of jobs; the paper's scenarios have 12, 16 and 24.
        seed: the seed of the draws.
        nodes: the number of nodes that they occupy together.
        granularity: each job has a multiple of so many nodes.

    Raises:
        InputError: there are fewer nodes than jobs, or they are no multiple of the granularity.

    >>> sum(job.checkpointing.nodes for job in theta_like(jobs=12, seed=1))
    4352
    """
    if jobs < 1 or granularity < 1 or nodes % granularity or nodes // granularity < jobs:
        raise InputError(
            f"{nodes} nodes cannot be shared by {jobs} jobs in multiples of {granularity}"
        )
    rng = np.random.default_rng(seed)
    counts = granularity * _shares(rng, jobs, nodes // granularity)
    ran = rng.uniform(30, 360, jobs).round(1)
    remaining = rng.uniform(30, 240, jobs).round(1)
    memory = (NODE_GB * rng.uniform(0.4, 0.9, jobs)).round(1)
    critical = (memory * rng.uniform(0.2, 0.6, jobs)).round(1)
    return [
        BatchJob(
            Checkpointing(
                f"job{index:02d}",
                int(counts[index]),
                float((ran[index] % INTERVAL_MIN).round(1)),
                INTERVAL_MIN,
                float(critical[index]),
                float(memory[index]),
            ),
            float(remaining[index]),
        )
        for index in range(jobs)
    ]


def _shares(rng: np.random.Generator, jobs: int, units: int) -> NDArray[np.int64]:
    """Share units in proportion to random weights, at least one for each job."""
    weights = rng.lognormal(0, 1, jobs)
    ideal = (units - jobs) * weights / weights.sum()
    counts = ideal.astype(np.int64)
    counts[np.argsort(counts - ideal, kind="stable")[: units - jobs - counts.sum()]] += 1
    return counts + 1
