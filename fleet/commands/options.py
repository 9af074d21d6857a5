"""Declare options that several commands share: spec, cluster, policies and laws of run times."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fleet.arguments import count, delta, number, seed, share
from fleet.errors import UserError
from launch.errors import pluralize
from scheduler.base import Cluster, Options
from scheduler.ensemble.policies import POLICIES, Policy
from scheduler.reservation.distributions import LAWS, Law, make_law


def add_spec(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare the spec that a command works on."""
    parser.add_argument("spec", nargs="?" if optional else None, help="YAML file of the spec")


def add_seed(parser: argparse._ActionsContainer, purpose: str, default: int | None = 0) -> None:
    """Declare ``--seed``.

    Args:
        parser: the parser or a group of it.
        purpose: what is drawn with the seed.
        default: the default; None if a spec may set the seed.
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
        help="number of GPUs per node (as in the measurement of the rates)",
    )


def cluster_of(
    args: argparse.Namespace, gpus_per_node: int, slots: int = 1, fills: bool = False
) -> Cluster:
    """Return the cluster that the options describe.

    Args:
        args: the arguments of the command.
        gpus_per_node: the default; a smaller cluster is part of one node.
        slots: number of slots per GPU.
        fills: whether slots are used even if that is slower.

    Raises:
        InputError: the cluster is too large, or smaller than one of its nodes.
    """
    return Cluster.of(
        args.gpus, args.gpus_per_node or max(1, min(gpus_per_node, args.gpus)), slots, fills
    )


def describe_gpus(cluster: Cluster) -> str:
    """Describe the GPUs of a cluster.

    >>> describe_gpus(Cluster.of(4, 2)), describe_gpus(Cluster.of(4, 2, slots=3))
    ('4 GPUs, 2 per node', '4 GPUs, 2 per node, up to 3 networks on each')
    """
    if cluster.slots > 1:
        shared = f", up to {pluralize(cluster.slots, 'network')} on each"
    else:
        shared = ""
    per_node = cluster.gpus_per_node // cluster.slots
    return f"{pluralize(cluster.whole_gpus, 'GPU')}, {per_node} per node{shared}"


def add_policy(
    parser: argparse.ArgumentParser, default: str, *more: str, required: bool = False
) -> None:
    """Declare ``--policy``.

    Args:
        parser: the parser of the command.
        default: the default, in parentheses.
        more: valid names besides those of policies.
        required: whether the option is required.
    """
    parser.add_argument(
        "--policy",
        metavar="NAME",
        required=required,
        help=f"scheduling policy: {', '.join([*POLICIES, *more])}, or a custom module:policy "
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
        help="how much slower than the fastest network the others of a flotilla may be: a share of "
        f"its rate, like 15%%, or samples per second, like 20/s (15%%); {_readers('delta')}",
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
        help="follow the paper literally: assign GPUs even if they make a network slower "
        "(Algorithm 2), and extrapolate rates beyond the measured ones from twice the GPUs of a "
        f"node (Equation 5); {_readers('peak_limited')}",
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
        args: the arguments of the command.
        policies: the policies that the command uses.
        default: the settings that the options override.
        read: settings that the command itself reads.

    Raises:
        UserError: an option would have no effect.
        InputError: a setting is out of range.
    """
    settings = {name: getattr(args, name) for name in _OPTION_OF if getattr(args, name) is not None}
    for setting in settings:
        if not any(setting in (*policy.reads, *read) for policy in policies):
            readers = "; ".join(
                f"{policy.name} does not read it: {policy.describe_reads(_OPTION_OF)}"
                for policy in policies
            )
            raise UserError(f"{_OPTION_OF[setting]}: {readers}")
    return replace(default or Options(), **settings)


FORMER_OPTIONS = {"--delta": "--pace-tolerance", "--alpha": "--round-end-share"}
_OPTION_OF = {
    "delta": "--pace-tolerance",
    "alpha": "--round-end-share",
    "peak_limited": "--literal",
    "seed": "--seed",
}


POINTS = 200  # default number of intervals that discretize a law

_OPTIONS = {
    "mu": "mean before truncation (truncnorm), or of the logarithm (lognormal)",
    "sigma": "standard deviation before truncation (truncnorm), or of the logarithm (lognormal)",
    "alpha": "shape (beta, pareto)",
    "beta": "second shape (beta)",
    "rate": "one over the mean before truncation (exponential)",
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
        help=f"number of equal intervals that discretize the law ({POINTS})",
    )


def law_of(args: argparse.Namespace) -> Law | None:
    """Return the law that the options describe, or None.

    Raises:
        UserError: there are parameters but no ``--distribution``.
        InputError: the law does not have these parameters.
    """
    parameters = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if args.distribution is not None:
        return make_law(args.distribution, **parameters)
    if parameters:
        raise UserError(f"--{next(iter(parameters))} needs --distribution {'|'.join(LAWS)}")
    return None
