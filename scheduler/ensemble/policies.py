"""Define the policies: functions of (rates, progress, cluster, options), and their properties.

The live runtime and the simulator call the same functions, at the start and whenever a group ends
an epoch, stops, finishes or fails. A policy keeps no state and reads no clock: the same inputs give
the same :class:`Round`. An empty Round means "let running groups finish their epochs"; if nothing
runs and networks remain, it means that none of them fits on the devices.

:data:`POLICIES` lists the built-in policies with their properties. A policy is looked up there by
name and compared by name nowhere else, so a custom :class:`Policy` can do everything that a
built-in one does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from launch.errors import InputError, pluralize
from scheduler.base import Cluster, Member, Options, Progress, RateTable, Round
from scheduler.ensemble.adaptive import group_sizes, select_admitted
from scheduler.ensemble.costs import PAPER_COSTS, REGROUPING_COSTS, Costs
from scheduler.ensemble.elastic import elastic_round
from scheduler.ensemble.exchanges import exchange_devices
from scheduler.ensemble.flotilla import form_flotilla
from scheduler.ensemble.indexed import rows_outside
from scheduler.ensemble.pace import FREE, LOCKSTEP, Stream
from scheduler.ensemble.placement import place_groups, rearrange

Decide = Callable[[RateTable, Progress, Cluster, Options], Round]

SETTINGS = frozenset(field.name for field in dataclasses.fields(Options))  # that a policy may read


@dataclass(frozen=True)
class Policy:
    """A policy and its properties.

    Args:
        name: the name for users.
        decide: returns the groups that should run now.
        help: a one-line description.
        reads: the fields of :class:`~scheduler.base.Options` that ``decide`` reads.
        needs_rates: whether training rates must be known first, because it decides by them or
            because its networks share a stream at their common pace. Otherwise nothing is
            measured.
        own_samples: whether every trainer prepares its own samples, so that there are no
            preprocessors.
        own_pace: whether it assumes that networks train at their own paces; users get a warning if
            they cannot.
        rearranges: whether it moves running groups; other policies leave them in place even if
            fewer networks could share each GPU.
        sets_batch: whether it chooses the batch of networks whose batch may change; with other
            policies a range of batches is an error in a spec.
        costs: the costs of moves in the system that it models; a simulation uses them by default.
        stream: the stream of that system, likewise.

    Raises:
        InputError: ``reads`` contains an unknown option.
    """

    name: str
    decide: Decide
    help: str = ""
    reads: frozenset[str] = SETTINGS
    needs_rates: bool = True
    own_samples: bool = False
    own_pace: bool = False
    rearranges: bool = False
    sets_batch: bool = False
    costs: Costs = PAPER_COSTS
    stream: Stream = FREE

    def __post_init__(self) -> None:
        unknown = sorted(self.reads - SETTINGS)
        if unknown:
            raise InputError(
                f"policy {self.name} reads unknown options {', '.join(map(repr, unknown))}; "
                f"the options are {', '.join(sorted(SETTINGS))}"
            )

    def describe_reads(self, settings: Mapping[str, str]) -> str:
        """Describe which of some settings the policy reads.

        Args:
            settings: fields of :class:`~scheduler.base.Options` -> their names for users.

        >>> settings = {"alpha": "--round-end-share", "delta": "--pace-tolerance"}
        >>> [POLICIES[name].describe_reads(settings) for name in ("local", "adaptive")]
        ['it reads --pace-tolerance', 'it reads none of --round-end-share, --pace-tolerance']
        """
        read = [called for setting, called in settings.items() if setting in self.reads]
        return f"it reads {', '.join(read) or 'none of ' + ', '.join(settings.values())}"


def fleet_global(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Train a flotilla until fewer than alpha of the devices are active, then the next (FLEET-G).

    A round that has fallen below alpha nevertheless continues if a new flotilla would give every
    network what it has and start no other: stopping would cost time and change nothing. So rounds
    that never reach alpha (few networks, or none that more GPUs would speed up) do not restart at
    each epoch's end, and there are at most as many rounds as networks and changes of the cluster
    and of rates. A round that was formed from wrong rates counts as below alpha: its networks would
    hold each other back to its end.

    With guessed rates, hardly any networks seem equally fast. So networks with unknown rates use
    the devices that a flotilla leaves idle, which measures their rates, unless they would hold the
    others back.

    Reference: [FLEET] section 4.3.2, Algorithm 1; alpha in its last paragraph.
    """
    formed = _formed_groups(rates, progress, cluster)
    is_full = sum(member.gpus for member in formed) >= options.alpha * cluster.gpus - 1e-9
    if formed and is_full and not progress.rates_changed:
        return Round(formed)
    counts = _with_guessed(
        form_flotilla(rates, rows_outside(rates.names, progress.finished), cluster.gpus, options),
        rates,
        progress,
        cluster.gpus,
    )
    if progress.running:  # perhaps only by a network that has finished, and is still being saved
        if formed and counts == Round(formed).counts:
            return Round(formed)
        return Round()
    placed = place_groups(counts, cluster.devices, cluster.gpus_per_node)
    return Round(exchange_devices(placed, rates, cluster))


def _with_guessed(
    counts: Mapping[str, int], rates: RateTable, progress: Progress, gpus: int
) -> dict[str, int]:
    """Add networks with guessed rates to a flotilla, on devices that it leaves idle."""
    sizes = dict(counts)
    spare = gpus - sum(counts.values())
    for network in rates.models if progress.guessed else ():
        if not spare:
            break
        if (
            network.name in progress.guessed
            and network.name not in progress.finished
            and network.name not in sizes
            and network.min_gpus <= spare
        ):
            sizes[network.name] = network.min_gpus
            spare -= network.min_gpus
    return sizes


def local(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Form a flotilla of waiting networks on the free devices, whenever there are any (FLEET-L).

    Running groups are left alone until their networks finish; if no network waits, free devices
    stay free.

    Reference: [FLEET] sections 4.3.3 and 6.1.
    """
    running = _alive_groups(rates, progress, cluster)
    free = _free(running, cluster)
    if not free:
        return Round(running)
    counts = form_flotilla(rates, _waiting(running, rates, progress), len(free), options)
    members = (*running, *place_groups(counts, free, cluster.gpus_per_node))
    fixed = frozenset(device for member in running for device in member.devices)
    return Round(exchange_devices(members, rates, cluster, running, fixed))


def adaptive(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Share the devices anew whenever a network finishes or arrives, or rates change.

    Until then the last answer stands, even while groups are still changing toward it. See
    :mod:`scheduler.ensemble.adaptive`.
    """
    target = progress.target
    ended = {member.name for member in target.members} & progress.finished
    used = {device for member in target.members for device in member.devices}
    is_over = ended or progress.rates_changed or not used <= set(cluster.devices)
    if target.members and not is_over and not _may_begin(rates, progress, cluster):
        return target
    running = _alive_groups(rates, progress, cluster)
    sizes = group_sizes(rates, replace(progress, running=running), cluster)
    members = rearrange(sizes, running, cluster.devices, cluster.gpus_per_node)
    return Round(exchange_devices(members, rates, cluster, running))


def _may_begin(rates: RateTable, progress: Progress, cluster: Cluster) -> bool:
    """Return True if a network waits and there are devices for it."""
    targets = progress.target.members
    spare = cluster.gpus - sum(rates.models[rates.rows[member.name]].min_gpus for member in targets)
    if spare <= 0:
        return False
    waiting = _waiting(targets, rates, progress) & select_admitted(
        rates, replace(progress, running=targets), cluster
    )
    return any(rates.models[row].min_gpus <= spare for row in np.flatnonzero(waiting).tolist())


def elastic(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Share GPUs and choose batches anew whenever networks arrive or finish.

    See :mod:`scheduler.ensemble.elastic`.
    """
    return elastic_round(rates, progress, cluster)


def baseline(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Train one network per device: a free device takes a random waiting network.

    A network whose group has a minimum size gets that many devices. The random choice is a random
    order of all networks, drawn from the seed once, which is equivalent and lets a resumed run
    continue with the networks that it had started.

    Reference: [FLEET] section 6.1, "Baseline".
    """
    formed = _formed_groups(rates, progress, cluster)
    return Round((*formed, *_one_each(rates, formed, progress, cluster, options.seed)))


def homogeneous(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
    """Train one random network per device; start the next ones when all are done.

    Groups are as in :func:`baseline`; the differences are the shared stream and waiting for the
    last network.

    Reference: [FLEET] section 6.1, "Homogeneous Training" (Pittman et al., SC 2018).
    """
    formed = _formed_groups(rates, progress, cluster)
    return Round(formed or _one_each(rates, (), progress, cluster, options.seed))


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "baseline",
            baseline,
            "each GPU that is free takes a random network that waits",
            reads=frozenset({"seed"}),
            needs_rates=False,
            own_samples=True,
            costs=Costs(),
        ),
        # Its networks share a stream, so rates say how many preprocessors that needs.
        Policy(
            "homogeneous",
            homogeneous,
            "as many random networks as GPUs, one each; the next ones when all have ended",
            reads=frozenset({"seed"}),
            costs=Costs(),
        ),
        Policy(
            "local",
            local,
            "flotillas of waiting networks on the GPUs that become free (FLEET-L)",
            reads=frozenset({"delta", "peak_limited"}),
        ),
        Policy(
            "global",
            fleet_global,
            "rounds of one flotilla on all GPUs (FLEET-G)",
            reads=frozenset({"alpha", "delta", "peak_limited"}),
            stream=LOCKSTEP,
        ),
        Policy(
            "adaptive",
            adaptive,
            "all GPUs are shared anew among all networks whenever one ends or comes",
            reads=frozenset(),
            own_pace=True,
            rearranges=True,
            costs=REGROUPING_COSTS,
        ),
        Policy(
            "elastic",
            elastic,
            "all GPUs are shared anew, with a batch for each network, whenever one comes or ends",
            reads=frozenset(),
            own_pace=True,
            rearranges=True,
            sets_batch=True,
            costs=REGROUPING_COSTS,
        ),
    )
}
REFERENCE = POLICIES["baseline"]  # that speed-ups are measured against


def default_policy(settings: Collection[str] = ()) -> Policy:
    """Return the policy to use when none is named.

    It is `adaptive`, or `global` if a setting is given that only `global` reads.

    Args:
        settings: names of the given fields of :class:`Options`; other names are ignored.
    """
    read = POLICIES["global"].reads - POLICIES["adaptive"].reads
    return POLICIES["global" if read.intersection(settings) else "adaptive"]


def check_round(answer: object, rates: RateTable, progress: Progress, cluster: Cluster) -> None:
    """Check that the answer of a custom policy can be carried out.

    Raises:
        InputError: it is not a :class:`~scheduler.base.Round`, or names networks or devices that
            cannot be assigned.
    """
    if not isinstance(answer, Round):
        raise InputError(f"returns a {type(answer).__name__}; it must return a Round")
    devices: list[int] = []
    names: set[str] = set()
    for member in answer.members:
        if isinstance(member, Member):
            network = rates.by_name.get(member.name)
        else:
            network = None
        if network is None or member.name in progress.finished or member.name in names:
            raise InputError(
                f"gives devices to {getattr(member, 'name', member)!r}, "
                "which is not an unfinished network"
            )
        if not network.min_gpus <= member.gpus <= (network.max_gpus or member.gpus):
            raise InputError(
                f"gives {pluralize(member.gpus, 'device')} to {member.name}, which takes "
                f"{network.min_gpus} to {network.max_gpus or cluster.gpus}"
            )
        low, high = network.batches or (None, None)
        if member.batch is not None and (
            low is None or high is None or not low <= member.batch <= high
        ):
            if network.batches:
                limits = f"it must be from {low} to {high}"
            else:
                limits = "its batch cannot change"
            raise InputError(f"gives {member.name} a batch of {member.batch}; {limits}")
        devices += member.devices
        names.add(member.name)
    if len(set(devices)) < len(devices) or not set(devices) <= set(cluster.devices):
        raise InputError(
            f"assigns the devices {sorted(devices)}; "
            f"it can assign each of {list(cluster.devices)} once"
        )


def _alive_groups(rates: RateTable, progress: Progress, cluster: Cluster) -> tuple[Member, ...]:
    """Return the running groups that have their minimum size without dead devices."""
    return _without_dead_devices(progress.running, rates, progress, cluster)


def _formed_groups(rates: RateTable, progress: Progress, cluster: Cluster) -> tuple[Member, ...]:
    """Return the running groups, and those of the last answer that still wait for devices.

    They no longer wait if the group that should release the devices has just been continued: it
    keeps them.
    """
    running = _alive_groups(rates, progress, cluster)
    started = {member.name for member in running}
    in_use = {device for member in running for device in member.devices}
    answered = _without_dead_devices(progress.target.members, rates, progress, cluster)
    return (
        *running,
        *(
            member
            for member in answered
            if member.name not in started and in_use.isdisjoint(member.devices)
        ),
    )


def _without_dead_devices(
    groups: Sequence[Member], rates: RateTable, progress: Progress, cluster: Cluster
) -> tuple[Member, ...]:
    if not groups:
        return ()
    usable = set(cluster.devices)
    alive = []
    for group in groups:
        if group.name in progress.finished:
            continue
        if not usable.issuperset(group.devices):
            group = replace(group, devices=tuple(d for d in group.devices if d in usable))
        if group.gpus >= rates.by_name[group.name].min_gpus:
            alive.append(group)
    return tuple(alive)


def _waiting(groups: Sequence[Member], rates: RateTable, progress: Progress) -> NDArray[np.bool_]:
    """Return which unfinished networks have none of these groups, bool of shape (networks,)."""
    waiting = rows_outside(rates.names, progress.finished).copy()
    waiting[[rates.rows[member.name] for member in groups]] = False
    return waiting


def _free(running: tuple[Member, ...], cluster: Cluster) -> list[int]:
    return list(
        cluster.without([device for member in running for device in member.devices]).devices
    )


def _one_each(
    rates: RateTable, running: tuple[Member, ...], progress: Progress, cluster: Cluster, seed: int
) -> tuple[Member, ...]:
    """Place waiting networks in random order on the free devices, each on its minimum of GPUs."""
    free = _free(running, cluster)
    started = []
    if not free:
        return ()
    order = _order(seed, len(rates.names))
    for row in order[np.flatnonzero(_waiting(running, rates, progress)[order])]:
        network = rates.models[row]
        if network.min_gpus <= len(free):
            started.append(Member(network.name, tuple(free[: network.min_gpus])))
            del free[: network.min_gpus]
            if not free:
                break
    return tuple(started)


@lru_cache(maxsize=4)
def _order(seed: int, networks: int) -> NDArray[np.int64]:
    """Return the rows of networks in a random order, shape (networks,)."""
    return np.random.default_rng(seed).permutation(networks)
