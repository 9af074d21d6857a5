"""Compute the requests of a chain, where a stopped job resumes in the next one.

In :mod:`scheduler.reservation.requests` a job that outlives its request loses all its work. A job
that saves before it is stopped loses only the overhead of each further job: to start, and to save
in time. With run time X, that overhead c, and v_1 < v_2 < ... the progress at the end of each job,
the k-th job requests v_k - v_(k-1) + c, and the chain requests

    A = v_r + r c,    v_r the first that is at least X

in total. The sequence with the least expected A is found by a dynamic program over the values of
the distribution and the number of jobs. (Checkpointed reservations: Gainaru, Goglin, Honore,
Pallez, Profiles of upcoming HPC Applications and their Impact on Reservation Strategies, IEEE TPDS
32(5), 2021, where a checkpoint is written at the end of each.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launch.errors import InputError
from scheduler.reservation.distributions import Discrete, coarsen

MAX_VALUES = 500  # of a distribution; one with more values is reduced


@dataclass(frozen=True)
class Chain:
    """The requests of a chain and their expected cost.

    Attributes:
        requests: the requests of each job, in the unit of the distribution; overheads included.
        requested: expected sum of the requests of the jobs that run.
        used: expected time for which nodes are held.
        jobs: expected number of jobs.
    """

    requests: tuple[float, ...]
    requested: float
    used: float
    jobs: float


def evaluate_chain(law: Discrete, requests: Sequence[float], overhead: float) -> Chain:
    """Compute the expected cost of given requests.

    Raises:
        InputError: one is not longer than the overhead, or together they do not reach the longest
            run.

    >>> evaluate_chain(Discrete([1, 10], [0.5, 0.5]), [2, 10], overhead=1)
    Chain(requests=(2, 10), requested=7.0, used=7.0, jobs=1.5)
    """
    work = np.asarray(requests, float) - overhead
    if not work.size or work.min() <= 0:
        raise InputError(f"requests must be longer than the overhead of a job, {overhead:g}")
    done = np.cumsum(work)
    if done[-1] < law.longest * (1 - 1e-9):
        raise InputError(
            f"the requests do {done[-1]:g} together, and the longest run takes {law.longest:g}"
        )
    served_by = np.minimum(np.searchsorted(done * (1 + 1e-9), law.values), len(done) - 1)
    total = np.cumsum(requests)[served_by]
    count = served_by + 1
    return Chain(
        tuple(requests),
        float(law.probabilities @ total),
        float(law.probabilities @ (law.values + overhead * count)),
        float(law.probabilities @ count),
    )


def best_chain(law: Discrete, overhead: float, jobs: int) -> Chain:
    """Return the requests with the least expected sum.

    Args:
        law: law of the run time.
        overhead: overhead of each job, at least 0.
        jobs: the most jobs.

    Raises:
        InputError: an argument is out of range.

    Half of the runs take 1, half take 10; at a cost of 1 for each job, two requests are expected to
    be 7 long together, and one would be 11.

    >>> best_chain(Discrete([1, 10], [0.5, 0.5]), overhead=1, jobs=5)
    Chain(requests=(2.0, 10.0), requested=7.0, used=7.0, jobs=1.5)
    """
    if jobs < 1 or not 0 <= overhead < math.inf:
        raise InputError(
            f"{jobs} jobs with an overhead of {overhead}: there must be at least one, at least 0"
        )
    if np.count_nonzero(law.probabilities) > MAX_VALUES:
        coarse = coarsen(law, MAX_VALUES)[0]
    else:
        coarse = law
    values, mass = coarse.support
    ends = np.concatenate(([0.0], values))
    # The probability that the run outlives the first i values.
    alive = np.concatenate((np.cumsum(mass[::-1])[::-1], [0.0]))
    # From the i-th value to the j-th: the expected request of the job.
    step = (ends[None, :] - ends[:, None] + overhead) * alive[:, None]
    step[np.tril_indices(len(ends))] = math.inf
    cost = np.full(len(ends), math.inf)
    ways = []
    cost[-1] = 0.0
    best = math.inf
    best_count = 0
    for count in range(1, min(jobs, len(values)) + 1):
        total = step + cost[None, :]
        ways.append(total.argmin(axis=1))
        cost = total.min(axis=1)
        if cost[0] < best * (1 - 1e-12):
            best = float(cost[0])
            best_count = count
    index = 0
    requests = []
    for way in reversed(ways[:best_count]):
        requests.append(float(ends[way[index]] - ends[index] + overhead))
        index = int(way[index])
    return evaluate_chain(law, requests, overhead)
