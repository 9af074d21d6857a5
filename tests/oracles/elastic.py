"""GPUs for elastic jobs, by a general solver and by the dynamic program of [ELASTIC] III-C.

HiGHS (through scipy) takes the program as it stands, with one binary variable x_jk for each job j
and number of GPUs k on which the job runs:

    maximise sum_jk T_j(k) x_jk   subject to   sum_k x_jk = 1 for each j,   sum_jk k x_jk <= K
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.elastic.allocate import Allocation, Array, ScalingCurve


def integer_program(curves: Sequence[ScalingCurve], gpus: int) -> Allocation | None:
    """Solve :func:`scheduler.elastic.allocate.allocate` with HiGHS to a gap of 0.

    >>> integer_program([Curve((1.0, 1.1, 3.0)), Curve((1.0, 1.5))], gpus=3)
    Allocation(gpus=(1, 2), throughput=2.5, method='integer program')
    """
    # Takes half a second to load.
    from scipy.optimize import (
        Bounds,
        LinearConstraint,
        milp,
    )
    from scipy.sparse import csr_array

    if not curves:
        return Allocation((), 0.0, "integer program")
    choices = [
        (job, k, factor)
        for job, curve in enumerate(curves)
        for k, factor in enumerate(curve.factors, start=1)
        if factor > 0
    ]
    jobs = np.array([job for job, _, _ in choices])
    counts = np.array([k for _, k, _ in choices])
    factors = np.array([factor for _, _, factor in choices])
    one_each = csr_array((np.ones(len(jobs)), (jobs, np.arange(len(jobs)))))
    solution = milp(
        -factors,
        integrality=np.ones(len(jobs)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(counts[None], -np.inf, gpus),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        return None
    chosen = solution.x > 0.5
    return Allocation(
        tuple(counts[chosen].tolist()), float(factors[chosen].sum()), "integer program"
    )


def dynamic_program(curves: Sequence[ScalingCurve], gpus: int) -> Allocation | None:
    """Solve :func:`scheduler.elastic.allocate.allocate` over all jobs ([ELASTIC] Eq. 4, Alg. 1).

        P(j, K) = max_g  P(j-1, K-g) + T_j(g),        P(0, .) = 0

    Algorithm 1 as printed looks the factor up at k, the table's column, adds
    the value of k-g+1 GPUs for the jobs before, and notes k as the solution;
    Eq. 4 says what is meant: the factor on g, the value of k-g, and g noted.
    Every job gets its least count in any case, so the table here is over the
    GPUs beyond those, and it tries only counts worth giving.
    """
    if not curves:
        return Allocation((), 0.0, "dynamic program")
    minimum = np.array([curve.min_gpus for curve in curves], np.int64)
    spare = gpus - int(minimum.sum())
    if spare < 0:
        return None
    allocation = minimum + _program([_options_of(curve) for curve in curves], spare)
    counts = tuple(allocation.tolist())
    factors = [curve.factors[count - 1] for curve, count in zip(curves, counts, strict=True)]
    return Allocation(counts, math.fsum(factors), "dynamic program")


# Counts of GPUs of a job, ascending from 0, and their gains.
_Options = tuple[NDArray[np.int64], Array]


def _options_of(curve: ScalingCurve) -> _Options:
    """Return the counts worth allocating: the minimum, and each faster than all smaller ones."""
    factors = np.array(curve.factors)
    worth = np.flatnonzero(np.diff(np.maximum.accumulate(factors), prepend=0.0) > 0)
    return worth - worth[0], factors[worth] - factors[worth[0]]


def _program(options: Sequence[_Options], spare: int) -> NDArray[np.int64]:
    """Choose one option per job with at most ``spare`` GPUs in total, optimally."""
    spare = min(spare, sum(int(counts[-1]) for counts, _ in options))
    tables = [np.zeros(spare + 1)]
    for counts, gains in options:
        before = tables[-1]
        table = before.copy() if len(counts) > 1 else before
        for count, gain in zip(counts[1:].tolist(), gains[1:].tolist(), strict=True):
            if count <= spare:
                np.maximum(table[count:], before[:-count] + gain, out=table[count:])
        tables.append(table)
    # Trace back which option reached the maximum, in one column per job.
    allocation = np.zeros(len(options), dtype=np.int64)
    for job in reversed(range(len(options))):
        counts, gains = options[job]
        if len(counts) == 1:
            continue
        fits = counts[counts <= spare]
        best = int((tables[job][spare - fits] + gains[: len(fits)]).argmax())
        allocation[job] = fits[best]
        spare -= int(fits[best])
    return allocation
