"""Options that several commands share: JSON output, a cluster, the settings of a policy, a law of run times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from fleet.errors import UserError
from fleet.storage.files import as_json
from fleet.units import parse_delta
from scheduler.base import Cluster, Delta, Options
from scheduler.ensemble.policies import POLICIES, Policy
from scheduler.reservation.laws import LAWS, Law, make_law


def add_cluster(parser: argparse.ArgumentParser, default_node: str) -> None:
    """Declare ``--gpus`` and ``--gpus-per-node``."""
    parser.add_argument("--gpus", type=int, required=True, metavar="M", help="of the cluster")
    parser.add_argument("--gpus-per-node", type=int, metavar="G", help=f"of its nodes ({default_node})")


def cluster_of(args: argparse.Namespace, gpus_per_node: int) -> Cluster:
    """The cluster that the options describe.

    Args:
        args: of the command.
        gpus_per_node: where the options do not say; a smaller cluster is part of one node.

    Raises:
        InputError: no GPUs, or a node that is larger than the cluster.
    """
    if args.gpus_per_node is None:
        return Cluster.of(args.gpus, max(1, min(gpus_per_node, args.gpus)))
    return Cluster.of(args.gpus, args.gpus_per_node)


def add_policy(parser: argparse.ArgumentParser, default: str, *more: str, required: bool = False) -> None:
    """Declare ``--policy``.

    Args:
        default: what holds without it, in brackets.
        more: names that it takes beside those of policies.
    """
    parser.add_argument("--policy", metavar="NAME", required=required,
                        help=f"that decides: {', '.join([*POLICIES, *more])}, or module:policy of your own {default}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the settings of policies."""
    group = parser.add_argument_group("settings of policies")
    group.add_argument("--delta", metavar="D",
                       help="how close to the fastest the networks of a flotilla are: as a share of its rate, like "
                            f"15%%, or in samples per second, like 20/s (15%%); {_readers('delta')}")
    group.add_argument("--alpha", type=float, metavar="A",
                       help=f"share of the GPUs below which a round ends (0.8); {_readers('alpha')}")
    group.add_argument("--literal", action="store_true",
                       help="let a flotilla give GPUs that make a network slower, as the paper's Algorithm 2 does; "
                            f"{_readers('peak_limited')}")
    group.add_argument("--seed", type=int, metavar="S", help=f"of all random choices (0); {_readers('seed')}")


def _readers(setting: str) -> str:
    return "read by " + ", ".join(policy.name for policy in POLICIES.values() if setting in policy.reads)


def options_of(args: argparse.Namespace, policies: Sequence[Policy], default: Options | None = None,
               *read: str) -> Options:
    """The settings that the options describe.

    Args:
        args: of the command.
        policies: those that are asked.
        default: what holds where the options do not say.
        read: settings that something else than a policy reads.

    Raises:
        UserError: nothing reads a setting that is given.
        UserError, InputError: a setting is out of its range.
    """
    _refuse_unread(args, policies, read)
    default = default or Options()
    if args.seed is not None and args.seed < 0:
        raise UserError(f"--seed {args.seed}: 0 or more")
    return Options(alpha=default.alpha if args.alpha is None else args.alpha,
                   delta=default.delta if args.delta is None else _delta(args.delta),
                   peak_limited=default.peak_limited and not args.literal,
                   seed=default.seed if args.seed is None else args.seed)


_OPTION_OF = {"delta": "--delta", "alpha": "--alpha", "peak_limited": "--literal", "seed": "--seed"}


def _refuse_unread(args: argparse.Namespace, policies: Sequence[Policy], read: Sequence[str]) -> None:
    """Refuse what is given and changes nothing."""
    given = {"delta": args.delta, "alpha": args.alpha, "peak_limited": args.literal or None, "seed": args.seed}
    for setting, option in _OPTION_OF.items():
        if given[setting] is not None and not any(setting in (*policy.reads, *read) for policy in policies):
            told = "; ".join(f"{policy.name} does not read it: {policy.reads_of(_OPTION_OF)}" for policy in policies)
            raise UserError(f"{option}: {told}")


def _delta(text: str) -> Delta:
    try:
        return parse_delta(text)
    except ValueError as error:
        raise UserError(f"--delta is {text!r}; it {error}") from None


POINTS = 200  # intervals that a law is cut into unless said


_OPTIONS = {
    "mu": "mean before the cut (truncnorm), of the logarithm (lognormal)",
    "sigma": "standard deviation before the cut (truncnorm), of the logarithm (lognormal)",
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
        group.add_argument(f"--{name}", type=float, metavar="X", help=text)
    group.add_argument("--points", type=int, default=POINTS, metavar="N",
                       help=f"put the law on N + 1 equally spaced values ({POINTS})")


def law_of(args: argparse.Namespace) -> Law | None:
    """The law that the options describe, None when they describe none.

    Raises:
        UserError: there are parameters and no ``--distribution``.
        InputError: they are not those of the law.
    """
    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if args.distribution is not None:
        return make_law(args.distribution, **given)
    if given:
        raise UserError(f"--{next(iter(given))} goes with --distribution {'|'.join(LAWS)}")
    return None


def add_json(parser: argparse.ArgumentParser) -> None:
    """Give a command its ``--json`` option."""
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object to standard output and nothing else")


def print_json(value: Any) -> None:
    """Print a dataclass, dict or list as JSON; what JSON cannot say (NaN, infinity) becomes null."""
    print(json.dumps(as_json(value), indent=1, allow_nan=False))
