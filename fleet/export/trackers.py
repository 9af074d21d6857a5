"""The table of trackers that a run can be exported to."""

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
    """The description of a tracker, which does not load its library.

    Attributes:
        name: its name.
        write: import path ``module:function`` of the function that adds a run to a file or folder.
        default_path: the file or folder, relative to the folder of the run.
        is_file: True for a file.
        help: what is written, in a few words.
        viewer: command that shows the file or folder, with ``{path}`` for its path and
            ``{storage}`` for its database URL.
    """

    name: str
    write: str
    default_path: str
    is_file: bool
    help: str
    viewer: str

    def command(self, path: Path) -> str:
        """Return the shell command that shows what was written.

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
            "add the run to an MLflow store (DIR/mlflow.db): a parent, and a child for each "
            "network",
            "mlflow ui --backend-store-uri sqlite:///{path}/mlflow.db",
        ),
        Tracker(
            "wandb",
            "fleet.export.wandb_export:write",
            "track/wandb",
            False,
            "write an offline W&B run for each network, for wandb sync",
            "wandb sync {path}/wandb/offline-run-*",
        ),
        Tracker(
            "optuna",
            "fleet.export.optuna_export:write",
            "track/optuna.log",
            True,
            "add studies to an Optuna journal, or to a database whose name ends with .db",
            "optuna-dashboard {storage}",
        ),
    )
}


def target_paths(
    trackers: Sequence[Mapping[str, str | None]], root: Path
) -> list[tuple[str, Path]]:
    """Return the trackers that a spec names, each with its file or folder.

    Args:
        trackers: the value of the spec's key.
        root: the folder of the run.
    """
    return [
        (name, root / TRACKERS[name].default_path if path is None else Path(path))
        for tracker in trackers
        for name, path in tracker.items()
    ]


def write(name: str, run: TrackedRun, path: Path) -> None:
    """Add missing results of a run to a tracker's file or folder; nothing is written twice.

    Args:
        name: one of :data:`TRACKERS`.
        run: the run.
        path: a file or folder, which is created.

    Raises:
        UserError: the tracker's library is not installed.
    """
    add = load(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".{path.name}.lock")):
        add(run, path)


def load(name: str) -> Callable[[TrackedRun, Path], None]:
    """Import the library of a tracker, which may take seconds.

    Returns:
        The function that adds a run to a file or folder.

    Raises:
        UserError: the library is not installed.
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
def _locked(lock: Path) -> Iterator[None]:
    """Keep other processes from writing, if the file system has locks."""
    with open(lock, "w", encoding="utf-8") as file:
        with suppress(OSError):  # some parallel file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
