"""Recognize the format of a sweep by its content, and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.errors import SpecError, UserError
from fleet.spec.yaml_file import read_yaml
from fleet.sweeps import determined_experiment, keras_tuner_project, optuna_study, wandb_sweep
from fleet.sweeps.sweep import Sweep

EXPECTED = (
    "it should be a W&B sweep (YAML with method and parameters), a Determined experiment (YAML "
    "with searcher and hyperparameters), an Optuna study (journal or SQLite database), or the "
    "folder of a Keras Tuner project (with oracle.json)"
)
_SQLITE_URL = "sqlite:///"
_MAX_YAML_BYTES = 10_000_000  # a sweep is a page of text


def read_sweep(source: str, study: str | None = None) -> tuple[Sweep, Path]:
    """Read the sweep of another tool.

    Args:
        source: a file or a folder, or the URL of an SQLite database.
        study: the name of an Optuna study, if there are several.

    Returns:
        The sweep, and the path that was read.

    Raises:
        UserError: it cannot be read, or is no sweep.
    """
    path = Path(source.removeprefix(_SQLITE_URL))
    try:
        sweep = _read(path, study)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {EXPECTED}") from None
    if study is not None and sweep.kind != optuna_study.KIND:
        raise UserError(f"--study {study}: {path} is a {sweep.kind}, which has no studies")
    return sweep, path


def _read(path: Path, study: str | None) -> Sweep:
    if path.is_dir():
        if not keras_tuner_project.is_project(path):
            below = sorted(path.glob("*/oracle.json"))
            hint = f" (but {below[0].parent} has one)" if below else ""
            raise UserError(f"{path} is a folder without oracle.json{hint}; {EXPECTED}")
        return _naming(path, lambda: keras_tuner_project.read(path))
    size = path.stat().st_size
    if not size:
        raise UserError(f"{path} is empty; {EXPECTED}")
    if path.suffix == ".json" and keras_tuner_project.is_project(path.parent):
        return _read(path.parent, study)
    if optuna_study.is_database(path) or optuna_study.is_journal(path):
        return _naming(path, lambda: optuna_study.read(path, study))
    if size > _MAX_YAML_BYTES:
        raise UserError(f"{path} is none of the sweeps that can be read; {EXPECTED}")
    return _read_yaml(path)


def _read_yaml(path: Path) -> Sweep:
    """Read a sweep from YAML.

    Raises:
        UserError: it is no YAML, or no sweep; the message names the line.
    """
    try:
        content, lines = read_yaml(path, EXPECTED)
    except SpecError as error:
        text = "; ".join(map(str, error.mistakes))
        raise UserError(text if EXPECTED in text else f"{text}; {EXPECTED}") from None
    if wandb_sweep.is_sweep(content):
        read_it = wandb_sweep.read
    elif determined_experiment.is_experiment(content):
        read_it = determined_experiment.read
    elif "models" in content:
        raise UserError(f"{path} is a spec of FLEET already; {EXPECTED}")
    else:
        raise UserError(f"{path} is none of the sweeps that can be read; {EXPECTED}")
    try:
        return read_it(content)
    except UserError as error:
        line = _line_of(str(error).partition(": ")[0], lines)
        raise UserError(f"{path}:{line}: {error}") from None


def _line_of(key: str, lines: Mapping[tuple, int]) -> int:
    """Return the line of a dotted key, or of its nearest parent."""
    by_key = {".".join(map(str, path)): line for path, line in lines.items()}
    while key and key not in by_key:
        key = key.rpartition(".")[0]
    return by_key.get(key, 1)


def _naming(path: Path, read: Callable[[], Sweep]) -> Sweep:
    """Read a sweep; errors name its path.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return read()
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path}: {error}") from None
