"""Options that several commands share: a spec, a cluster, the settings of a policy, a law of run times."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fleet.arguments import count, delta, number, seed, share
from fleet.errors import UserError
from fleet.units import pluralize
from scheduler.base import Cluster, Options
from scheduler.ensemble.policies import POLICIES, Policy
from scheduler.reservation.distributions import LAWS, Law, make_law


def add_spec(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare the spec that a command works on."""
    parser.add_argument("spec", nargs="?" if optional else None, help="YAML file of the spec")


def add_seed(parser: argparse._ActionsContainer, purpose: str, default: int | None = 0) -> None:
    """Declare ``--seed``.

    Args:
        purpose: what is drawn with it.
        default: where it is not given; None where a spec may have one.
    """
    parser.add_argument(
        "--seed",
        type=seed,
        default=default,
        metavar="S",
        help=f"seed of {purpose} ({default or 0})",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare ``--gpus`` and ``--gpus-per-node``."""
    parser.add_argument(
        "--gpus", type=count, required=True, metavar="M", help="number of GPUs of the cluster"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=count,
        metavar="G",
        help="number of GPUs of each of its nodes (as where the rates were measured)",
    )


def cluster_of(
    args: argparse.Namespace, gpus_per_node: int, slots: int = 1, fills: bool = False
) -> Cluster:
    """Return the cluster that the options describe.

    Args:
        args: of the command.
        gpus_per_node: where the options do not say; a smaller cluster is part of one node.
        slots: of each GPU.
        fills: whether they are used also where it does not pay.

    Raises:
        InputError: the cluster is very large, or a node is larger than it.
    """
    return Cluster.of(
        args.gpus, args.gpus_per_node or max(1, min(gpus_per_node, args.gpus)), slots, fills
    )


def describe_gpus(cluster: Cluster) -> str:
    """Return how many GPUs a cluster has, in words.

    >>> describe_gpus(Cluster.of(4, 2)), describe_gpus(Cluster.of(4, 2, slots=3))
    ('4 GPUs, 2 a node', '4 GPUs, 2 a node, up to 3 networks on each')
    """
    if cluster.slots > 1:
        shared = f", up to {pluralize(cluster.slots, 'network')} on each"
    else:
        shared = ""
    return f"{pluralize(cluster.whole_gpus, 'GPU')}, {cluster.gpus_per_node // cluster.slots} a node{shared}"


def add_policy(
    parser: argparse.ArgumentParser, default: str, *more: str, required: bool = False
) -> None:
    """Declare ``--policy``.

    Args:
        default: what holds without it, in brackets.
        more: names that it takes beside those of policies.
    """
    parser.add_argument(
        "--policy",
        metavar="NAME",
        required=required,
        help=f"policy that decides: {', '.join([*POLICIES, *more])}, or a custom module:policy "
        f"{default}",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of policies."""
    group = parser.add_argument_group("settings of policies")
    group.add_argument(
        "--pace-tolerance",
        dest="delta",
        type=delta,
        metavar="D",
        help="how close to the fastest the networks of a flotilla are: as a share of its rate, like "
        f"15%%, or in samples per second, like 20/s (15%%); {_readers('delta')}",
    )
    group.add_argument(
        "--round-end-share",
        dest="alpha",
        type=share,
        metavar="A",
        help=f"share of the GPUs below which a round ends, like 80%% (80%%); {_readers('alpha')}",
    )
    group.add_argument(
        "--literal",
        dest="peak_limited",
        action="store_false",
        default=None,
        help="as in the paper: let a flotilla give away GPUs that make a network slower (Algorithm 2), "
        "and estimate rates beyond the measured ones from twice the GPUs of a node (Equation 5); "
        f"{_readers('peak_limited')}",
    )
    add_seed(group, f"all random choices; {_readers('seed')}", default=None)


def _readers(setting: str) -> str:
    return "read by " + ", ".join(
        policy.name for policy in POLICIES.values() if setting in policy.reads
    )


def options_of(
    args: argparse.Namespace, policies: Sequence[Policy], default: Options | None = None, *read: str
) -> Options:
    """Return the settings that the options describe.

    Args:
        args: of the command.
        policies: those that are asked.
        default: what holds where the options do not say.
        read: settings that something else than a policy reads.

    Raises:
        UserError: nothing reads a setting that is given.
        InputError: a setting is out of its range.
    """
    _refuse_unread(args, policies, read)
    settings = {name: getattr(args, name) for name in _OPTION_OF if getattr(args, name) is not None}
    return replace(default or Options(), **settings)


FORMER_OPTIONS = {"--delta": "--pace-tolerance", "--alpha": "--round-end-share"}
_OPTION_OF = {
    "delta": "--pace-tolerance",
    "alpha": "--round-end-share",
    "peak_limited": "--literal",
    "seed": "--seed",
}


def _refuse_unread(
    args: argparse.Namespace, policies: Sequence[Policy], read: Sequence[str]
) -> None:
    """Refuse what is given and changes nothing."""
    for setting, option in _OPTION_OF.items():
        if getattr(args, setting) is not None and not any(
            setting in (*policy.reads, *read) for policy in policies
        ):
            readers = "; ".join(
                f"{policy.name} does not read it: {policy.describe_reads(_OPTION_OF)}"
                for policy in policies
            )
            raise UserError(f"{option}: {readers}")


POINTS = 200  # intervals that a law is cut into by default

_OPTIONS = {
    "mu": "mean before the cut (truncnorm), or of the logarithm (lognormal)",
    "sigma": "standard deviation before the cut (truncnorm), or of the logarithm (lognormal)",
    "alpha": "shape (beta, pareto)",
    "beta": "second shape (beta)",
    "rate": "one over the mean before the cut (exponential)",
    "low": "shortest run time",
    "high": "longest run time",
}


def add_law_parameters(parser: argparse.ArgumentParser) -> None:
    """Declare the parameters of a law; ``--distribution`` itself is declared by the command."""
    group = parser.add_argument_group("parameters of --distribution")
    for name, text in _OPTIONS.items():
        group.add_argument(f"--{name}", type=number(), metavar="X", help=text)
    group.add_argument(
        "--points",
        type=count,
        default=POINTS,
        metavar="N",
        help=f"number of equal intervals that the law is cut into ({POINTS})",
    )


def law_of(args: argparse.Namespace) -> Law | None:
    """Return the law that the options describe, or None.

    Raises:
        UserError: there are parameters and no ``--distribution``.
        InputError: they are not those of the law.
    """
    parameters = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if args.distribution is not None:
        return make_law(args.distribution, **parameters)
    if parameters:
        raise UserError(f"--{next(iter(parameters))} goes with --distribution {'|'.join(LAWS)}")
    return None
