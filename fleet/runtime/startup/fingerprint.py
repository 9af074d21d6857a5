"""Changes of the data since networks were trained on it, and the saved fingerprint of the data."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from fleet.errors import UserError
from fleet.runtime.startup.data import Inputs, open_data_sets
from fleet.runtime.startup.past import read_known_fingerprint
from fleet.spec import Spec
from fleet.storage.files import atomic_write, remove
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec
from launch.errors import InputError
from preprocess.fingerprint import (
    Fingerprint,
    compare_fingerprints,
    read_fingerprint,
    write_fingerprint,
)

_MAX_FILES = 20_000  # whose times a report checks


def describe_data_changes(spec: Spec, before: Fingerprint | None, now: Fingerprint) -> list[str]:
    """Describe changes of the data, with the path of each split; empty without changes."""
    if before is None:
        return []
    split_paths = {"validation": spec.data.validation, "test": spec.data.test}
    changes = []
    for split, words in compare_fingerprints(before, now).items():
        split_path = split_paths.get(split)
        path = split_path if isinstance(split_path, str) else spec.data.path or spec.data.source
        if split in split_paths and not isinstance(split_path, str):
            held_out = f" ({split})"
        else:
            held_out = ""
        changes.append(f"{path}{held_out}: {', '.join(words)}")
    return list(dict.fromkeys(changes))


def find_data_changes(paths: RunPaths) -> list[str]:
    """Describe changes of a run's data as far as they are cheap to detect.

    The data is not checked if none of its files was touched since its fingerprint was saved, if it
    is missing, or if a custom source reads it.
    """
    try:
        spec = load_run_spec(paths)
        before = read_known_fingerprint(paths)
        if before is None or ":" in spec.data.source:
            return []
        data_paths = (spec.data.path, spec.data.validation, spec.data.test)
        saved_s = paths.data.stat().st_mtime
        if not any(isinstance(path, str) and _is_newer(Path(path), saved_s) for path in data_paths):
            return []
        return describe_data_changes(spec, before, open_data_sets(spec, before=before)[1])
    except (UserError, InputError, OSError):
        return []


def _is_newer(path: Path, moment_s: float) -> bool:
    """Return True if a file, or a file of a folder, was changed later."""
    paths = itertools.chain([path], path.rglob("*") if path.is_dir() else ())
    return any(entry.stat().st_ctime > moment_s for entry in itertools.islice(paths, _MAX_FILES))


def check_data_unchanged(
    paths: RunPaths, before: Fingerprint | None, now: Fingerprint, fresh_networks: Collection[str]
) -> None:
    """Refuse to continue if another launch has changed the fingerprint in the meantime.

    Args:
        before: the saved fingerprint before the data was opened.
        now: the fingerprint of the opened data.
        fresh_networks: networks that start over, whose checkpoints are ignored.

    Raises:
        UserError: another launch has changed the fingerprint between the two.
    """
    again = read_known_fingerprint(paths, fresh_networks)
    if again is not None and all(
        fingerprint is None or _division_key(fingerprint) != _division_key(again)
        for fingerprint in (before, now)
    ):
        raise UserError(
            f"{paths.root}: another launch has trained on other data in the meantime; start this "
            "launch again"
        )


def save_fingerprint(paths: RunPaths, inputs: Inputs, fence: Fence) -> None:
    """Save the fingerprint and the division of the data if they differ from the saved ones."""
    now = inputs.fingerprint
    if inputs.folds is not None:
        all_folds = np.full(len(now.sides), -1, np.int16)
        all_folds[inputs.rows] = inputs.folds
        now = replace(now, folds=all_folds)
    saved = read_fingerprint(paths.data)
    if saved is None or _fingerprint_key(saved) != _fingerprint_key(now):
        with atomic_write(paths.data, "wb", check=fence.check) as file:
            write_fingerprint(file, now)


def _division_key(fingerprint: Fingerprint) -> tuple[str, bytes]:
    return fingerprint.digest, fingerprint.sides.tobytes()


def _fingerprint_key(fingerprint: Fingerprint) -> tuple[str, bytes, str, bytes, str]:
    return (
        *_division_key(fingerprint),
        fingerprint.division,
        fingerprint.folds.tobytes(),
        fingerprint.test_path,
    )


def delete_stale_data(paths: RunPaths, now: Fingerprint) -> None:
    """Delete decoded samples and predictions made from other data."""
    saved = read_fingerprint(paths.data)
    if saved is not None and (saved.test_path != now.test_path or compare_fingerprints(saved, now)):
        for path in (paths.decoded, *paths.all_predictions()):
            remove(path)
