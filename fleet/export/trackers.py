"""The trackers that a run can be written for: a row each."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from shlex import quote

from fleet.errors import UserError
from fleet.export.tracked_run import DATABASES, TrackedRun


@dataclass(frozen=True)
class Tracker:
    """A tracker, and what must be known of it before its library is loaded.

    Attributes:
        write: module and function that add to a file or folder what is missing there of a run; written as imported.
        default_path: what is written, within the folder of a run where nothing else is said.
        is_file: whether that is a file.
        help: what is written, in a few words.
        viewer: what looks at it; ``{path}`` stands for it, and ``{storage}`` for it as libraries of databases name it.
    """

    name: str
    write: str
    default_path: str
    is_file: bool
    help: str
    viewer: str

    def command(self, path: Path) -> str:
        """What looks at what was written, for a shell.

        >>> TRACKERS["optuna"].command(Path("x y.db")), TRACKERS["optuna"].command(Path("x.log"))
        ("optuna-dashboard 'sqlite:///x y.db'", 'optuna-dashboard x.log')
        """
        storage = f"sqlite:///{path}" if path.suffix in DATABASES else str(path)
        return self.viewer.format(path=quote(str(path)), storage=quote(storage))


TRACKERS = {
    tracker.name: tracker
    for tracker in (
        Tracker(
            "mlflow",
            "fleet.export.mlflow_export:write",
            "track/mlflow",
            False,
            "add the run to a store of MLflow (DIR/mlflow.db): a parent, and a child for each network",
            "mlflow ui --backend-store-uri sqlite:///{path}/mlflow.db",
        ),
        Tracker(
            "wandb",
            "fleet.export.wandb_export:write",
            "track/wandb",
            False,
            "write an offline run of W&B for each network, for wandb sync",
            "wandb sync {path}/wandb/offline-run-*",
        ),
        Tracker(
            "optuna",
            "fleet.export.optuna_export:write",
            "track/optuna.log",
            True,
            "add studies to a journal of Optuna, or to a database whose name ends with .db",
            "optuna-dashboard {storage}",
        ),
    )
}


def target_paths(wanted: Sequence[Mapping[str, str | None]], root: Path) -> list[tuple[str, Path]]:
    """What ``trackers`` of a spec asks for: each tracker, and its file or folder.

    Args:
        root: the folder of the run.
    """
    return [
        (name, root / TRACKERS[name].default_path if path is None else Path(path))
        for one in wanted
        for name, path in one.items()
    ]


def write(name: str, run: TrackedRun, path: Path) -> None:
    """Add to what a tracker has what is missing there of a run; what is there already is not written again.

    Args:
        name: one of :data:`TRACKERS`.
        path: a file or folder, which is made.

    Raises:
        UserError: its library is not installed.
    """
    add = load(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_name(f".{path.name}.lock")):
        add(run, path)


def load(name: str) -> Callable[[TrackedRun, Path], None]:
    """Import the library of a tracker, which may take seconds.

    Returns:
        What adds a run to a file or folder.

    Raises:
        UserError: it is not installed.
    """
    try:
        add: Callable[[TrackedRun, Path], None] = resolve_name(TRACKERS[name].write)
    except ImportError as error:
        raise UserError(
            f"{name} needs a library that cannot be imported ({error}): "
            "pip install 'fleet-ensemble[track]'"
        ) from error
    return add


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """No other process writes there meanwhile, where the file system can keep it out."""
    with open(lock, "w", encoding="utf-8") as file:
        with suppress(OSError):  # some parallel file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
