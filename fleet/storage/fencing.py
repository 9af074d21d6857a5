"""Fence out a launch that may only have been stopped, by moving files to new folders.

A rank may be stopped for hours between checking its right to write and the rename, and a rename
cannot be made conditional. But it takes effect in the folder whose handle the rank opened before
the check (:func:`fleet.storage.files.atomic_write`). So a launch that takes a run over from one
that has not released it gives each network a new folder under the old name, and moves the files
there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from glob import escape
from pathlib import Path

from fleet.storage.checkpoint import checkpoint_generation
from fleet.storage.files import map_in_threads, storage_errors
from fleet.storage.paths import RunPaths

_ASIDE = ".aside.tmp"


def fence_out(paths: RunPaths, name: str | None = None) -> None:
    """Recreate the folders of all networks, or of one, with their files.

    If it is killed, nothing is lost: the next call continues.

    Args:
        paths: files of the run.
        name: name of one network; None for all.

    Raises:
        StorageError: the folder cannot be written.
    """
    with storage_errors(paths.models):
        _move_back(paths, name)
        if name is None:
            folders = sorted(paths.models.glob("[!.]*/"))
        else:
            folders = list(filter(Path.is_dir, [paths.model(name)]))
        for folder in folders:
            os.rename(folder, folder.with_name(f".{folder.name}{_ASIDE}"))
        _move_back(paths, name)


def _move_back(paths: RunPaths, name: str | None) -> None:
    for aside in sorted(paths.models.glob(f".{'*' if name is None else escape(name)}{_ASIDE}/")):
        folder = aside.with_name(aside.name[1:].removesuffix(_ASIDE))
        folder.mkdir(exist_ok=True)
        _move(aside, folder)


def _move(aside: Path, folder: Path) -> None:
    """Move files into a folder; files that it already has are newer."""
    while aside.exists():
        for path in list(aside.iterdir()):  # a rank that is not stopped may add one
            if path.name.startswith(".") or (folder / path.name).exists():
                path.unlink(missing_ok=True)
            else:
                with suppress(FileNotFoundError):
                    os.rename(path, folder / path.name)
        try:
            aside.rmdir()
        except OSError:
            if not any(aside.iterdir()):
                raise


def newest_written_generation(paths: RunPaths) -> int:
    """Return the newest generation that has written a checkpoint; 0 if none has."""
    return max(map_in_threads(checkpoint_generation, paths.models.glob("*/*.h5")), default=0)
