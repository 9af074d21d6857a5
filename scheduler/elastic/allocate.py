"""Decide how many GPUs and which batch each elastic job gets ([ELASTIC] sections III-B and III-C).

The job scalability analyzer turns measurements into a :class:`ScalingCurve` per job:
:func:`step_seconds` and :func:`exchange_seconds` interpolate the measurements of a profile, and
:func:`scaling_curve` combines them. The optimizer, :func:`allocate`, gives each job a number of
GPUs so that the sum of the scaling factors is largest; it uses :mod:`scheduler.shares`.

[ELASTIC] Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, arXiv:2006.13878.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import CommTime, Network, StepTime
from scheduler.shares import Gains, climb, optimal_counts

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScalingCurve:
    """The throughput of a job on 1, 2, ... GPUs.

    Args:
        factors: ``factors[k-1]`` is the throughput scaling factor on k GPUs; 0 where it cannot run.
        batches: the global batch on k GPUs, if known.
    """

    factors: tuple[float, ...]
    batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.factors and math.isfinite(sum(self.factors)) and min(self.factors) >= 0):
            wrong = next((f for f in self.factors if not (math.isfinite(f) and f >= 0)), None)
            if wrong is not None:
                raise InputError(f"scaling factor {wrong}: it must be 0 (cannot run) or positive")
        if not any(self.factors):
            raise InputError(
                "a scaling curve is 0 everywhere; it must be positive on at least one count"
            )

    @cached_property
    def min_gpus(self) -> int:
        """The fewest GPUs on which the job runs."""
        return next(k for k, factor in enumerate(self.factors, start=1) if factor > 0)

    @cached_property
    def gains(self) -> Gains:
        """The curve as input of the optimizer, computed once for all decisions."""
        values = np.array((0.0, *self.factors))
        values[values == 0] = -math.inf
        return Gains(values)


# --- the job scalability analyzer ---------------------------------------------------------------


def step_seconds(measured: Sequence[StepTime], batch: NDArray[np.int64]) -> Array:
    """Compute t_proc: the time of one training step at any batch size.

    Between two measured sizes the time is interpolated. Below the smallest size the line through
    the two smallest continues, within two limits: a smaller batch is not slower, and does not
    process more samples/s. Above the largest size the time is infinite, because the largest
    measured batch is the largest that fits on the GPU.

    Args:
        measured: at least two batch sizes (samples on one GPU) and their seconds.
        batch: samples on one GPU, any shape.

    Returns:
        Seconds per step, in the shape of ``batch``.

    Raises:
        InputError: fewer than two sizes, a size twice, or a time that is not positive.

    >>> steps = [StepTime(8, 0.5), StepTime(16, 0.9)]
    >>> step_seconds(steps, np.array([4, 12, 16, 17])).round(3).tolist()
    [0.3, 0.7, 0.9, inf]
    """
    sizes, seconds = _measured_steps(measured)
    batch = np.asarray(batch)
    slope = (seconds[1] - seconds[0]) / (sizes[1] - sizes[0])
    below = np.clip(
        seconds[0] - slope * (sizes[0] - batch), seconds[0] * batch / sizes[0], seconds[0]
    )
    within = np.where(batch < sizes[0], below, np.interp(batch, sizes, seconds))
    return np.where(batch > sizes[-1], math.inf, within)


def _measured_steps(measured: Sequence[StepTime]) -> tuple[Array, Array]:
    ordered = sorted(measured, key=lambda step: step.batch)
    sizes = np.array([step.batch for step in ordered], dtype=np.float64)
    seconds = np.array([step.seconds for step in ordered], dtype=np.float64)
    if len(set(sizes.tolist())) < max(2, len(sizes)):
        raise InputError(
            f"step_s holds batch sizes {[step.batch for step in ordered]}: "
            "it needs at least two different ones, each once"
        )
    if not (sizes[0] >= 1 and np.isfinite(seconds).all() and seconds.min() > 0):
        raise InputError("step_s: batch sizes must be at least 1 and seconds must be positive")
    return sizes, seconds


def exchange_seconds(measured: Sequence[CommTime], params_mb: float, gpus: int) -> Array:
    """Compute t_comm: the time of one gradient exchange of a model on 1, 2, ... GPUs.

    For each measured number of GPUs the time is linear in the model's size
    between the measured sizes, in proportion to it below the smallest, and on
    the last line beyond the largest. Between measured numbers of GPUs it is
    interpolated; beyond the largest, the last slope continues, but never falls.
    One GPU exchanges nothing.

    Args:
        measured: seconds per exchange, by size (MB of weights) and number of GPUs.
        params_mb: size of the model's weights, MB.
        gpus: up to how many GPUs.

    Returns:
        Seconds, shape (gpus,); element k-1 is k GPUs.

    Raises:
        InputError: nothing was measured on 2 GPUs or more though ``gpus`` asks for it, or an
            entry is negative or not a number.

    >>> rows = [CommTime(100, 2, 1.0), CommTime(200, 2, 3.0), CommTime(100, 4, 2.0)]
    >>> exchange_seconds(rows, 150, 5).tolist()
    [0.0, 2.0, 2.5, 3.0, 3.5]
    """
    points = {1: 0.0}
    for count, rows in groupby(
        sorted(measured, key=lambda row: row.gpus), key=lambda row: row.gpus
    ):
        if count > 1:
            points[count] = _exchange_on(list(rows), params_mb)
    if gpus > 1 and len(points) == 1:
        raise InputError("comm_s has no entry for 2 or more GPUs: measure at least one exchange")
    counts = np.fromiter(points.keys(), dtype=np.float64)
    seconds = np.fromiter(points.values(), dtype=np.float64)
    return _extended(np.arange(1, gpus + 1, dtype=np.float64), counts, seconds)


def _exchange_on(rows: list[CommTime], params_mb: float) -> float:
    rows.sort(key=lambda row: row.params_mb)
    sizes = np.array([0.0, *(row.params_mb for row in rows)])
    seconds = np.array([0.0, *(row.seconds for row in rows)])
    if not (np.diff(sizes).min() > 0 and np.isfinite(seconds).all() and seconds.min() >= 0):
        raise InputError(
            f"comm_s on {pluralize(rows[0].gpus, 'GPU')}: params_mb must be positive and differ, "
            "seconds must not be negative"
        )
    return float(_extended(np.array([params_mb]), sizes, seconds)[0])


def _extended(x: Array, xs: Array, ys: Array) -> Array:
    """Interpolate linearly; beyond the last point the last slope continues, never downwards."""
    if len(xs) > 1:
        slope = max(0.0, (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]))
    else:
        slope = 0.0
    return np.interp(x, xs, ys) + slope * np.maximum(0.0, x - xs[-1])


@dataclass(frozen=True)
class BatchRange:
    """The global batch sizes with which a job may be trained, both ends included."""

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise InputError(
                f"batch range [{self.smallest}, {self.largest}]: "
                "it must be 1 <= smallest <= largest"
            )


def scaling_curve(
    network: Network,
    comm: Sequence[CommTime],
    batches: BatchRange,
    gpus: int,
    fixed: int | None = None,
) -> ScalingCurve:
    """Compute the throughput scaling factor of a job on 1, 2, ... GPUs and the best batch of each.

    A global batch b on k GPUs is processed at

        T(b, k) = b / (t_proc(ceil(b/k)) + t_comm(p, k))        samples/s

    and the factor is T(b, k) / T(b_max, 1), where b_max is the largest batch that one GPU holds and
    the job may use ([ELASTIC] section III-B3, Eq. 1). Of all b within the range that fit, the best
    is used (Eq. 2). Among those with the same ceil(b/k) it is the largest, so only these are tried.

    Args:
        network: its ``step_s`` and ``params_mb`` were measured.
        comm: gradient exchanges measured on the cluster.
        batches: the global batch sizes allowed.
        gpus: up to how many GPUs.
        fixed: use this global batch and no other (the paper's baseline, section IV-B); factors
            stay relative to the same b_max.

    Returns:
        The curve, with the global batch of each count in ``batches``.

    Raises:
        InputError: measurements are missing or wrong, or the job fits on no count up to ``gpus``.

    A step takes 0.5 s on 8 samples and 0.9 s on 16, an exchange 0.2 s: two GPUs process
    32 samples in 1.1 s where one processes 16 in 0.9 s.

    >>> net = Network("a", (), params_mb=10.0, step_s=(StepTime(8, 0.5), StepTime(16, 0.9)))
    >>> curve = scaling_curve(net, [CommTime(10.0, 2, 0.2)], BatchRange(8, 64), gpus=2)
    >>> [round(float(factor), 4) for factor in curve.factors], curve.batches
    ([1.0, 1.6364], (16, 32))
    """
    if network.params_mb is None:
        raise InputError(
            f"network {network.name!r}: params_mb is needed to compute the time of an exchange"
        )
    try:
        exchange = exchange_seconds(comm, network.params_mb, gpus)
        step = _step_table(network.step_s, batches)
    except InputError as error:
        raise InputError(f"network {network.name!r}: {error}") from None
    max_batch = len(step) - 1
    reference = max_batch / step[max_batch]
    allowed = batches if fixed is None else BatchRange(fixed, fixed)
    best = [_best_batch(step, exchange[k - 1], allowed, k) for k in range(1, gpus + 1)]
    if not any(batch for _, batch in best):
        raise InputError(
            f"network {network.name!r}: a batch of {allowed.smallest} does not fit "
            f"on {pluralize(gpus, 'GPU')} of {pluralize(max_batch, 'sample')} each"
        )
    return ScalingCurve(
        tuple(rate / reference for rate, _ in best), tuple(batch for _, batch in best)
    )


def _step_table(measured: Sequence[StepTime], batches: BatchRange) -> Array:
    """Return the seconds of a step on 0, 1, ... samples, up to the largest batch of one GPU."""
    max_batch = min(max((step.batch for step in measured), default=0), batches.largest)
    return step_seconds(measured, np.arange(max_batch + 1))


def _best_batch(step: Array, exchange: float, batches: BatchRange, gpus: int) -> tuple[float, int]:
    """Return the highest rate on a number of GPUs and its global batch; (0, 0) where none fits."""
    low = -(-batches.smallest // gpus)
    high = min(-(-batches.largest // gpus), len(step) - 1)
    if low > high:
        return 0.0, 0
    per_gpu = np.arange(low, high + 1)
    batch = np.minimum(per_gpu * gpus, batches.largest)
    rate = batch / (step[per_gpu] + exchange)
    at = int(rate.argmax())
    return float(rate[at]), int(batch[at])


# --- the optimizer ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocation:
    """GPUs per job, in the order of the jobs.

    Args:
        gpus: the number of GPUs of each job.
        throughput: the sum of the jobs' scaling factors.
        method: ``greedy`` or ``greedy + dynamic program``.
    """

    gpus: tuple[int, ...]
    throughput: float
    method: str


def allocate(curves: Sequence[ScalingCurve], gpus: int) -> Allocation | None:
    """Allocate GPUs so that the sum of the scaling factors is largest.

        maximize sum_j T_j(k_j)   subject to   sum_j k_j <= K,  T_j(k_j) > 0      ([ELASTIC] Eq. 3)

    The method depends on the problem and is part of the result; both methods find an optimum.

    ``greedy``: take steps along the concave hulls of the curves, the steepest first. That is an
        optimum if the last step ends exactly where the GPUs end, because it solves the relaxation
        in which a job may have any mixture of counts.

    ``greedy + dynamic program``: if the last step does not fit, a dynamic program decides among
    the few counts that can be in an optimum (:func:`scheduler.shares.optimal_counts`).

    Args:
        curves: the curves of the jobs.
        gpus: K, the number of GPUs.

    Returns:
        The allocation; None if the jobs need more GPUs than there are.

    >>> allocate([ScalingCurve((1.0, 1.5)), ScalingCurve((1.0, 1.9, 2.0))], gpus=3)
    Allocation(gpus=(1, 2), throughput=2.9, method='greedy')
    >>> allocate([ScalingCurve((1.0, 1.1, 3.0)), ScalingCurve((1.0, 1.5))], gpus=3)
    Allocation(gpus=(1, 2), throughput=2.5, method='greedy + dynamic program')
    >>> allocate([ScalingCurve((1.0,)), ScalingCurve((0.0, 2.0))], gpus=2) is None
    True
    """
    if not curves:
        return Allocation((), 0.0, "greedy")
    gains = [curve.gains for curve in curves]
    reached = climb(gains, gpus)
    if reached.unused < 0:
        return None
    is_greedy = reached.unused == 0 or reached.price == 0
    counts = reached.counts.tolist() if is_greedy else optimal_counts(gains, reached)
    throughput = math.fsum(
        curve.factors[count - 1] for curve, count in zip(curves, counts, strict=True)
    )
    return Allocation(
        tuple(counts), throughput, "greedy" if is_greedy else "greedy + dynamic program"
    )
