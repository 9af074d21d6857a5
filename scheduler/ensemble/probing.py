"""Find which group sizes of a plan are probes: unmeasured sizes on which the plan depends.

Rates from training itself (:mod:`scheduler.ensemble.online`) are at the upper end of their range.
So if some value within the uncertainty would give a network another size, the plan gives it that
size: a probe, made by a regrouping and on samples that count. This module finds which sizes of a
plan are such probes. Their results justify another plan even if they are off by less than a
quarter; all other sizes would stay, whatever is measured.

A plan never moves a group to other nodes without a reason. So to learn how groups train that lie
otherwise, :func:`try_spans` moves a few: these are probes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduler.base import Cluster, GroupShape, Network, Options, Progress, RateTable, Round, Span
from scheduler.ensemble.exchanges import exchange_devices
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import Policy
from scheduler.ensemble.rates import rate

AT_A_TIME = 4  # probes of a plan; finding each takes another plan
SPANS_AT_A_TIME = 2  # groups of a plan that lie otherwise, to learn whether they become faster
_HOPED = 2.0  # times the rate: enough to exchange devices of running groups

Sizes = Mapping[str, int]  # network -> GPUs
# Networks, each on a number of GPUs, or on GPUs that lie so.
Probes = frozenset[tuple[str, int | GroupShape]]


def find_probes(
    sizes: Sizes,
    rates: RateTable,
    lower_rates: Callable[[str], Sequence[float]],
    answer: Callable[[RateTable], Sizes],
) -> Probes:
    """Return the sizes that networks have only because their rates there are uncertain.

    Args:
        sizes: the sizes in the plan from ``rates``.
        rates: the table with each rate at the upper end of its range.
        lower_rates: returns the rates of a network on 1, 2, ... GPUs at the lower end of their
            range; measured rates are equal to the upper end.
        answer: returns the sizes that the plan would have with other rates.

    Returns:
        At most :data:`AT_A_TIME` probes, the most uncertain ones by GPUs; each would be another
        size if the network's rates were at their lower ends.

    a and b share 4 GPUs. b was measured on two. If a were no faster on two than it was on one, it
    would get only one:

    >>> from scheduler.base import Network
    >>> pair = Network("a", (10.0, 20.0), max_gpus=2), Network("b", (10.0, 15.0), max_gpus=2)
    >>> rates = RateTable(1, 4, pair)
    >>> lower = {"a": (10.0, 10.0), "b": (10.0, 15.0)}
    >>> def best(table):
    ...     return {net.name: 1 + net.rates.index(max(net.rates)) for net in table.models}
    >>> sorted(find_probes(best(rates), rates, lower.get, best))
    [('a', 2)]
    """
    doubts = []
    for name, gpus in sizes.items():
        high = rate(rates.by_name[name], gpus, Span.ANY)
        lower = lower_rates(name)
        if gpus <= len(lower) and lower[gpus - 1] < high:
            doubts.append((gpus * (1 - lower[gpus - 1] / high), name, tuple(lower)))
    doubts.sort(key=lambda doubt: (-doubt[0], doubt[1]))
    return frozenset(
        (name, sizes[name])
        for _, name, lower in doubts[:AT_A_TIME]
        if answer(_with_rates(rates, name, lower)).get(name) != sizes[name]
    )


def _with_rates(table: RateTable, name: str, rates: tuple[float, ...]) -> RateTable:
    return replace(
        table,
        models=tuple(
            _with_lower_rates(network, rates) if network.name == name else network
            for network in table.models
        ),
    )


def _with_lower_rates(network: Network, rates: tuple[float, ...]) -> Network:
    spread_rates = tuple(
        spread * lower / high
        for spread, lower, high in zip(network.spread_rates, rates, network.rates, strict=False)
    )
    return replace(network, rates=rates, spread_rates=spread_rates)


def find_probes_of_plan(
    policy: Policy,
    rates: RateTable,
    lower_rates: Callable[[str], Sequence[float]],
    progress: Progress,
    cluster: Cluster,
    options: Options,
    target: Round,
) -> Probes:
    """Return the probes in the answer of a policy.

    Args:
        rates, progress, cluster, options: the inputs of the answer.
        lower_rates: see :func:`find_probes`.
        target: the answer of the policy.

    Returns:
        An empty set for a policy that leaves groups in place, because it would not act on the
        results; also empty if the answer has not changed, because its probes are known.
    """
    if not policy.rearranges or (target == progress.target and not progress.rates_changed):
        return frozenset()
    again = replace(progress, rates_changed=True)
    # At its minimum size a network was measured, or nowhere; thousands of networks on one GPU each
    # need no check.
    sizes = {
        name: gpus for name, gpus in target.counts.items() if gpus > rates.by_name[name].min_gpus
    }
    return find_probes(
        sizes,
        rates,
        lower_rates,
        lambda trial_rates: plan(policy, trial_rates, again, cluster, options).counts,
    )


def try_spans(
    policy: Policy,
    rates: RateTable,
    is_untried: Callable[[str, GroupShape], bool],
    progress: Progress,
    cluster: Cluster,
    target: Round,
) -> tuple[Round, Probes]:
    """Let a few groups of an answer lie otherwise: spread instead of on few nodes, or reversed.

    Args:
        policy, rates, progress, cluster: the policy, and the inputs of its answer.
        is_untried: returns whether it is worth knowing how fast a network trains in a group that
            lies otherwise than this shape.
        target: the answer of the policy.

    Returns:
        The answer with groups that exchange devices with others, at no loss to these, and which of
        its groups are probes. It is unchanged for a policy that leaves groups in place, and if it
        has not changed.
    """
    if (
        not policy.rearranges
        or cluster.nodes == 1
        or cluster.slots > 1
        or (target == progress.target and not progress.rates_changed)
    ):
        return target, frozenset()
    planned = {member.name: member.devices for member in target.members}
    shapes = {
        member.name: GroupShape.of(member.devices, cluster)
        for member in progress.running
        if planned.get(member.name) == member.devices
    }
    moved = [name for name, shape in shapes.items() if shape.span and is_untried(name, shape)][
        :SPANS_AT_A_TIME
    ]
    if not moved:
        return target, frozenset()
    hoped = replace(
        rates,
        models=tuple(
            _with_hope(network, shapes[network.name].span) if network.name in moved else network
            for network in rates.models
        ),
    )
    members = exchange_devices(target.members, hoped, cluster, progress.running)
    probes = {
        (member.name, GroupShape.of(member.devices, cluster))
        for member in members
        if member.name in moved
    }
    return Round(members), frozenset(probes - set(shapes.items()))


def _with_hope(network: Network, span: Span) -> Network:
    """Return a network that trains faster in groups that lie otherwise."""
    if span is Span.SPREAD:
        spread_rates = tuple(samples_per_s / _HOPED for samples_per_s in network.rates)
    else:
        spread_rates = tuple(samples_per_s * _HOPED for samples_per_s in network.rates)
    return replace(network, spread_rates=spread_rates)
