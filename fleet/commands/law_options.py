"""The options with which commands take a law of run times."""

from __future__ import annotations

import argparse

from fleet.errors import UserError
from scheduler.reservation.laws import LAWS, Law, make_law

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
