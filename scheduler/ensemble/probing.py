"""Find which group sizes of a plan are probes: unmeasured sizes on which the plan depends.

Rates from training itself (:mod:`scheduler.ensemble.online`) are at the upper end of their range.
So if some value within the uncertainty would give a network another size, the plan gives it that
size: a probe, made by a regrouping and on samples that count. This module finds which sizes of a
plan are such probes. Their results justify another plan even if they are off by less than a
quarter; all other sizes would stay, whatever is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduler.base import Cluster, Options, Progress, RateTable, Round
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import Policy
from scheduler.ensemble.rates import rate

AT_A_TIME = 4  # probes of a plan; finding each takes another plan

Sizes = Mapping[str, int]  # network -> GPUs
Probes = frozenset[tuple[str, int]]  # networks, each on a number of GPUs


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
        high = rate(rates.by_name[name], gpus)
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
            replace(network, rates=rates) if network.name == name else network
            for network in table.models
        ),
    )


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
