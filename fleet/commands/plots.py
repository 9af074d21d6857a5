"""What ``--plot`` of the commands has in common: the option, and a figure that is written to a file.

matplotlib is imported here alone, and only when a figure is wanted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_plot(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--plot``.

    Args:
        what: the figure shows.
    """
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"draw {what} (.png, .svg or .pdf)")


@contextmanager
def drawn(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure to draw on, which is written to a file at the end.

    Args:
        path: of the file; its ending says in which format.
        width, height: of the figure, in inches.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install 'fleet-ensemble[plots]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: a format that there is not
        raise UserError(f"--plot: {path}: {error}") from None
