"""Show which networks train first, and on which GPUs.

  fleet plan --rates rates.json --gpus 16 --gpus-per-node 4 --policy global
  fleet plan spec.yaml --gpus 16

Rates come from --rates, from `schedule.rates` of the spec, or from the profile of an earlier run of
the spec. The spec also sets the policy, its settings, and the sizes of groups.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleet.commands import options as opts
from fleet.commands.output import show
from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.terminal import bar, print_table
from launch.errors import pluralize
from launch.place import format_numbers
from scheduler.base import Cluster, GroupShape, Member, Progress, RateTable, Round
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.placement import nodes_of, score
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import Policy
from scheduler.ensemble.rates import extend_as_printed, rate
from scheduler.ensemble.rates_file import read_rates
from scheduler.ensemble.sharing import share

if TYPE_CHECKING:
    from fleet.spec import Spec

FORMER_OPTIONS = opts.FORMER_OPTIONS
MAX_LISTED = 16  # devices of one network, or ranges of devices


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    opts.add_spec(parser, optional=True)
    parser.add_argument("--rates", metavar="FILE", help="JSON file of training rates")
    opts.add_cluster(parser)
    opts.add_policy(parser, "(the spec's, or global)")
    opts.add_options(parser)


def run(args: argparse.Namespace) -> None:
    """Print the first round."""
    spec = _load(args.spec)
    rates = _rates(args, spec)
    policy = find_policy(args.policy or (spec.schedule.policy if spec else "global"))
    options = opts.options_of(args, [policy], None if spec is None else spec.options)
    cluster = opts.cluster_of(args, rates.gpus_per_node)
    if spec is not None:
        from fleet.commands.known_rates import shared_cluster, with_sharing

        rates = with_sharing(spec, rates)
        cluster = shared_cluster(spec, cluster)
    if not options.peak_limited:  # print the same rates that the plan uses
        rates = extend_as_printed(rates, cluster.whole_gpus)
    if policy.sets_batch:
        rates = with_best_batches(rates, cluster.whole_gpus)
    planned = plan(policy, rates, Progress(), cluster, options)
    paces = _paces(rates, planned, cluster)
    idle_gpus = cluster.whole_gpus - len(_networks_by_gpu(planned, cluster))
    placement = score(planned.members, cluster.gpus_per_node)
    waiting = len(rates.models) - len(planned.members)
    summary = (
        f"{len(planned.members)} of {pluralize(len(rates.models), 'network')} train now, {waiting} "
        f"wait; {pluralize(idle_gpus, 'idle GPU')}; placement score {placement:.4g} "
        "(nodes per GPU, summed over groups)"
    )
    show(
        args,
        lambda: {
            "members": [
                {
                    "name": member.name,
                    "gpus": member.gpus,
                    "nodes": nodes_of(member.devices, cluster.gpus_per_node),
                    "devices": _gpus(member, cluster),
                    "samples_per_s": paces[member.name],
                    **({} if member.batch is None else {"batch": member.batch}),
                }
                for member in planned.members
            ],
            "idle_gpus": idle_gpus,
            "placement_score": placement,
        }
        | ({"networks_per_gpu": cluster.slots} if cluster.slots > 1 else {}),
        lambda: _print(policy, planned, paces, cluster, summary),
    )


def _gpus(member: Member, cluster: Cluster) -> tuple[int, ...]:
    """Return the GPUs of a group, regardless of its slots."""
    if cluster.slots == 1:
        return member.devices
    return tuple(map(cluster.gpu, member.devices))


def _networks_by_gpu(planned: Round, cluster: Cluster) -> Counter[int]:
    """Return GPU -> number of its networks."""
    return Counter(gpu for member in planned.members for gpu in _gpus(member, cluster))


def _load(path: str | None) -> Spec | None:
    if path is None:
        return None
    from fleet.spec import load  # importing pydantic takes a while, and rates do not need it

    spec = load(path)
    if not spec.networks:
        raise UserError(
            f"{path}: the networks of a search are not known in advance, so they cannot be planned"
        )
    return spec


def _rates(args: argparse.Namespace, spec: Spec | None) -> RateTable:
    if spec is None:
        if args.rates is None:
            raise UserError("give a spec, or a rates file with --rates")
        return read_rates(args.rates)
    from fleet.runtime.known_rates import find_rates_file, read_rates_of

    file = find_rates_file(spec, args.rates)
    if file is None:
        raise UserError(f"no rates of {args.spec} are known yet; give a rates file with --rates")
    return read_rates_of(spec, file)


def _devices(devices: Sequence[int]) -> str:
    """Format the numbers of devices; many are joined to ranges.

    >>> _devices((2, 0)), _devices((9, *range(20)))
    ('2 0', '0-19')
    """
    if len(devices) <= MAX_LISTED:
        return " ".join(map(str, devices))
    ranges = format_numbers(sorted(set(devices)), " ").split()
    return " ".join(ranges[:MAX_LISTED] + ["..."] * (len(ranges) > MAX_LISTED))


def _paces(rates: RateTable, planned: Round, cluster: Cluster) -> dict[str, float]:
    """Return network -> samples/s in this round."""
    networks = {network.name: network for network in rates.models}
    counts = _networks_by_gpu(planned, cluster)
    return {
        member.name: rate(
            networks[member.name], member.gpus, GroupShape.of(member.devices, cluster).span
        )
        * share(rates.sharing, max(counts[gpu] for gpu in _gpus(member, cluster)))
        for member in planned.members
    }


def _print(
    policy: Policy, planned: Round, paces: dict[str, float], cluster: Cluster, summary: str
) -> None:
    fastest = max(paces.values(), default=1.0)
    has_batches = any(member.batch is not None for member in planned.members)
    print_table(
        ["network", "GPUs", "nodes", "devices", *["batch"] * has_batches, "samples/s", ""],
        [
            [
                member.name,
                member.gpus,
                nodes_of(member.devices, cluster.gpus_per_node),
                _devices(_gpus(member, cluster)),
                *["" if member.batch is None else member.batch] * has_batches,
                paces[member.name],
                bar(paces[member.name], fastest, 20),
            ]
            for member in planned.members
        ],
        title=f"{policy.name}: first round on {opts.describe_gpus(cluster)}",
    )
    print(summary)
