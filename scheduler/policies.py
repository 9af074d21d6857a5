"""What should run now: every policy is one function of (rates, progress, cluster, options).

The live runtime and the simulator call the same functions, at the start and
whenever a group ends an epoch, stops, finishes or fails. A policy keeps no
state and reads no clock: the same inputs give the same :class:`Round`. An
empty Round means "let what runs come to its epoch's end"; when nothing runs
and networks remain, it means that none of them fits on the devices there are.

==============  ==========================================================================
``baseline``    each free device takes a random network (its least GPUs, mostly one)
``global``      FLEET-G: rounds of a flotilla on all devices ([FLEET] Algorithm 1)
==============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler.base import Cluster, InputError, Member, Options, Progress, RateTable, Round
from scheduler.flotilla import flotilla
from scheduler.placement import place

Policy = Callable[[RateTable, Progress, Cluster, Options], Round]


def decide(policy: str, rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Ask a policy by name.

    Raises:
        InputError: there is no such policy.
    """
    if policy not in POLICIES:
        raise InputError(f"no policy {policy!r}; there are: " + ", ".join(POLICIES))
    return POLICIES[policy](rates, progress, cluster, options)


def fleet_global(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """FLEET-G: train a flotilla until fewer than alpha of the devices are active, then form a new one.

    A round that has fallen below alpha goes on nevertheless where a new
    flotilla would give every network what it has and start no other: stopping
    would cost time and change nothing. So rounds that never reach alpha (few
    networks, or none that more GPUs would speed up) do not restart at each
    epoch's end, and there are at most as many rounds as networks and changes
    of the cluster.

    Reference: [FLEET] section 4.3.2, Algorithm 1; alpha in its last paragraph.
    """
    running = _alive(rates, progress, cluster)
    if running and sum(member.gpus for member in running) >= options.alpha * cluster.gpus - 1e-9:
        return Round(running)
    counts = flotilla(rates, _unfinished(rates, progress), cluster.gpus, options)
    if not running:
        return Round(place(counts, cluster.devices, cluster.gpus_per_node))
    return Round(running) if counts == Round(running).counts else Round()


def baseline(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """One network per device: a device that is free takes a random one of those that wait.

    A network whose group has a lower bound gets that many devices. The random
    choice is a random order of all networks, drawn from the seed once and for
    all, which comes to the same and lets a resumed run go on with the networks
    it had begun.

    Reference: [FLEET] section 6.1, "Baseline".
    """
    running = _alive(rates, progress, cluster)
    free = _free(running, cluster)
    started = []
    for name in _random_order(rates, _waiting(rates, progress), options.seed):
        least = _network_bounds(rates)[name]
        if least <= len(free):
            started.append(Member(name, tuple(free[:least])))
            del free[:least]
    return Round((*running, *started))


POLICIES: dict[str, Policy] = {
    "baseline": baseline,
    "global": fleet_global,
}


def _alive(rates: RateTable, progress: Progress, cluster: Cluster) -> tuple[Member, ...]:
    """The running groups, without devices that died and without groups left below their least size."""
    least = _network_bounds(rates)
    usable = set(cluster.devices)
    groups = (Member(member.name, tuple(d for d in member.devices if d in usable))
              for member in progress.running if member.name not in progress.finished)
    return tuple(group for group in groups if group.gpus >= least[group.name])


def _network_bounds(rates: RateTable) -> dict[str, int]:
    return {network.name: network.min_gpus for network in rates.models}


def _unfinished(rates: RateTable, progress: Progress) -> list[str]:
    return [network.name for network in rates.models if network.name not in progress.finished]


def _waiting(rates: RateTable, progress: Progress) -> list[str]:
    running = {member.name for member in progress.running}
    return [name for name in _unfinished(rates, progress) if name not in running]


def _free(running: tuple[Member, ...], cluster: Cluster) -> list[int]:
    held = {device for member in running for device in member.devices}
    return [device for device in cluster.devices if device not in held]


def _random_order(rates: RateTable, names: list[str], seed: int) -> list[str]:
    """Names in an order that depends on the seed and the rate table alone."""
    order = np.random.default_rng(seed).permutation(len(rates.models))
    rank = {rates.models[row].name: place for place, row in enumerate(order)}
    return sorted(names, key=rank.__getitem__)
