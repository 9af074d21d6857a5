"""Share GPUs and choose batch sizes whenever networks arrive or leave: the policy ``elastic``.

A network whose batch may vary within a range can use more GPUs than one with a fixed batch, and can
do with fewer. Its speed on k GPUs, and the best batch, follow from measured step times and exchange
times (:func:`scheduler.elastic.allocate.scaling_curve`, [ELASTIC] section III-B); the GPUs are
shared so that the sum of the scaling factors of all running networks is largest
(:func:`scheduler.elastic.allocate.allocate`, section III-C). A waiting network is admitted as soon
as all can have their minimum of GPUs, and none is sent back (section III-D).

A network with a fixed batch takes part with its rates relative to one GPU.

[ELASTIC] Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, arXiv:2006.13878.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from scheduler.base import Cluster, CommTime, Member, Network, Progress, RateTable, Round
from scheduler.elastic.allocate import (
    BatchRange,
    ScalingCurve,
    allocate,
    exchange_seconds,
    scaling_curve,
    step_seconds,
)
from scheduler.ensemble.exchanges import exchange_devices
from scheduler.ensemble.placement import rearrange
from scheduler.ensemble.rates import curve

MAX_GPUS = 1024  # of one network; the paper's k_max is 10


def _max_gpus(network: Network, gpus: int) -> int:
    return min(gpus, network.max_gpus or gpus, max(MAX_GPUS, network.min_gpus))


@lru_cache(maxsize=4096)
def curve_of(network: Network, comm: tuple[CommTime, ...], gpus: int) -> ScalingCurve:
    """Return the scaling curve of a network within its bounds, with the best batch of each count.

    Equal arguments return the same object, so that the optimizer's input is computed once.

    Args:
        comm: measured gradient exchanges.
        gpus: the number of GPUs of the cluster.

    Raises:
        InputError: its batch may change but its step times or exchanges were not measured, or no
            batch of its range fits on the GPUs that it may have.
    """
    max_gpus = _max_gpus(network, gpus)
    batches: tuple[int, ...] = ()
    if network.batches is None:
        rates = curve(network, max_gpus)
        factors = tuple((rates / rates[0]).tolist())
    else:
        scaled = scaling_curve(network, comm, BatchRange(*network.batches), max_gpus)
        factors = scaled.factors
        batches = scaled.batches
    return ScalingCurve(
        (*(0.0,) * (network.min_gpus - 1), *factors[network.min_gpus - 1 :]), batches
    )


@lru_cache(maxsize=4096)
def step_rate(network: Network, comm: tuple[CommTime, ...], gpus: int, batch: int) -> float:
    """Compute T(b, k) of [ELASTIC] Eq. 1: samples/s with a global batch; 0 if it does not fit.

    Args:
        network: a network with its ``step_s`` and ``params_mb``.
        comm: measured gradient exchanges.

    >>> from scheduler.base import StepTime
    >>> net = Network("a", (), params_mb=10.0, step_s=(StepTime(8, 0.5), StepTime(16, 0.9)))
    >>> step_rate(net, (CommTime(10.0, 2, 0.1),), 2, 32)
    32.0
    """
    assert network.params_mb is not None  # checked by the analyzer
    compute = step_seconds(network.step_s, np.array([-(-batch // gpus)]))[0]
    return batch / float(compute + exchange_seconds(comm, network.params_mb, gpus)[-1])


def epoch_rate(
    network: Network, comm: tuple[CommTime, ...], gpus: int, batch: int, samples: int
) -> float:
    """Compute samples/s over an epoch; its last step has fewer samples but a full exchange.

    Args:
        network, comm, gpus, batch: as for :func:`step_rate`.
        samples: the number of samples of an epoch.

    An epoch of 40 samples has a step of 32, of 1 s, and one of 8, of 0.6 s.

    >>> from scheduler.base import StepTime
    >>> net = Network("a", (), params_mb=10.0, step_s=(StepTime(4, 0.5), StepTime(16, 0.9)))
    >>> epoch_rate(net, (CommTime(10.0, 2, 0.1),), 2, 32, 40)
    25.0
    """
    steps, remainder = divmod(samples, batch)
    seconds = steps * batch / step_rate(network, comm, gpus, batch)
    return samples / (
        seconds + (remainder / step_rate(network, comm, gpus, remainder) if remainder else 0.0)
    )


def with_best_batches(table: RateTable, gpus: int) -> RateTable:
    """Return the table with the rates of the best batch on each number of GPUs.

    So everything that reads ``rates`` alone (bounds, estimates, a slow input) is valid for these
    networks as well.

    Raises:
        InputError: a required measurement is missing.
    """
    if all(network.batches is None for network in table.models):
        return table
    return replace(
        table,
        models=tuple(
            network if network.batches is None else _with_best_batches(network, table.comm_s, gpus)
            for network in table.models
        ),
    )


def _with_best_batches(network: Network, comm: tuple[CommTime, ...], gpus: int) -> Network:
    """Return one network with its best rates and the GPUs that its smallest batch needs."""
    max_gpus = _max_gpus(network, gpus)
    scaled = curve_of(replace(network, min_gpus=1), comm, max_gpus)
    rates = [
        step_rate(
            network,
            comm,
            max(count, scaled.min_gpus),
            scaled.batches[max(count, scaled.min_gpus) - 1],
        )
        for count in range(1, max_gpus + 1)
    ]
    return replace(network, rates=tuple(rates), min_gpus=max(scaled.min_gpus, network.min_gpus))


def elastic_round(rates: RateTable, progress: Progress, cluster: Cluster) -> Round:
    """Return the groups that should run now, with their devices and batches.

    The last answer stands until other networks run or could run, rates change, or devices die.
    """
    admitted = _admitted(rates, progress, cluster)
    target = progress.target.members
    used = {device for member in target for device in member.devices}
    if (
        {member.name for member in target} == set(admitted)
        and not progress.rates_changed
        and (used <= set(cluster.devices))
    ):
        return progress.target
    allocation = allocate(list(admitted.values()), cluster.gpus)
    assert allocation is not None  # the least counts fit
    sizes = {name: gpus for name, gpus in zip(admitted, allocation.gpus, strict=True) if gpus}
    running = [member for member in progress.running if member.name in admitted]
    members = exchange_devices(
        rearrange(sizes, running, cluster.devices, cluster.gpus_per_node),
        rates,
        cluster,
        running,
    )
    return Round(
        tuple(replace(member, batch=_batch(admitted[member.name], member)) for member in members)
    )


def _batch(curve: ScalingCurve, member: Member) -> int | None:
    if curve.batches:
        return curve.batches[member.gpus - 1]
    return None


def _admitted(rates: RateTable, progress: Progress, cluster: Cluster) -> dict[str, ScalingCurve]:
    """Return the curves of running networks and of the first waiting ones that fit."""
    started = {member.name for member in (*progress.running, *progress.target.members)}
    curves = {
        network.name: curve_of(network, rates.comm_s, cluster.gpus)
        for network in rates.models
        if network.name not in progress.finished and network.min_gpus <= cluster.gpus
    }
    room = cluster.gpus
    names = set()
    for name in sorted(curves, key=lambda name: name not in started):
        if curves[name].min_gpus <= room:
            names.add(name)
            room -= curves[name].min_gpus
    return {name: curve for name, curve in curves.items() if name in names}
