"""The folder of a run: ownership, leases, and deletion for a fresh start."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fleet.errors import StorageError, UserError
from fleet.spec import Spec, dump
from fleet.storage.fencing import fence_out, newest_written_generation
from fleet.storage.files import (
    atomic_write,
    is_path_error,
    storage_errors,
    sync_names,
    with_retries,
)
from fleet.storage.lease import Lease
from fleet.storage.network_leases import reclaim_networks
from fleet.storage.paths import RunPaths
from fleet.units import listed
from preprocess.transient_errors import retry_transient


def check_folder(paths: RunPaths) -> None:
    """Refuse a folder that FLEET did not create.

    Raises:
        UserError: the folder is a file, or holds files that FLEET did not write.
    """
    root = paths.root
    if root.exists() and not root.is_dir():
        raise UserError(f"output: {root} is a file; it should be a folder or not exist yet")
    files = retry_transient(lambda: list(root.iterdir()) if root.exists() else [])
    if files and not paths.marker.exists():
        raise UserError(f"output: {root} holds files that FLEET did not write; use another folder")


def take_folder(paths: RunPaths, fresh: bool, lease: Lease | None) -> None:
    """Acquire a run's folder for this launch.

    Args:
        fresh: delete the files of earlier launches.
        lease: locks the folder for other launches from now on.

    Raises:
        UserError: FLEET did not create the folder, or another launch is using it.
    """
    check_folder(paths)
    # Commands that arrive after the lease was acquired are for this launch.
    stale_commands = list(paths.mailbox.glob("*"))
    if lease is not None:
        with writing_into(paths):
            lease.take(paths.lease, floor=newest_written_generation(paths))
            took_over = lease.took_over
            with abandoned_on_error(lease):
                if reclaim_networks(paths, lease) or took_over:
                    fence_out(paths)
    if fresh and paths.root.exists():
        _empty(paths, stale_commands)


@contextmanager
def abandoned_on_error(lease: Lease) -> Iterator[None]:
    """Abandon a lease if the disk refuses to fence out its former holder.

    Then the next launch fences it out. Otherwise that one would miss the checkpoints of networks
    whose folders are being moved.
    """
    try:
        yield
    except StorageError:
        lease.abandon()
        raise


def write_spec(spec: Spec, paths: RunPaths) -> None:
    """Write the spec of a run into its folder."""
    with writing_into(paths), atomic_write(paths.spec) as file:
        file.write(dump(spec.document, of_run=True))


def nearest_folder(paths: RunPaths) -> Path:
    """Return the folder of a run, or the existing folder above it."""
    root = paths.root.absolute()
    return next(path for path in (root, *root.parents) if path.exists())


def free_disk(paths: RunPaths) -> int:
    """Return the free bytes where a run's folder is or will be."""
    return shutil.disk_usage(nearest_folder(paths)).free


@contextmanager
def writing_into(paths: RunPaths) -> Iterator[None]:
    """Create a run's folder and guard writing its first file.

    Raises:
        UserError: a folder of this name cannot be created.
        StorageError: the disk is full, ...
    """
    try:
        with storage_errors(paths.root):
            paths.root.mkdir(parents=True, exist_ok=True)
            if not paths.marker.exists():
                _mark(paths)
        yield
    except StorageError as error:
        if not is_path_error(error):
            raise
        raise UserError(f"output: {error}") from None


def _mark(paths: RunPaths) -> None:
    """Mark a new folder as written by FLEET before anything else is in it, even after a crash."""
    paths.marker.touch()
    with_retries(partial(sync_names, paths.root))


def _empty(paths: RunPaths, stale_commands: Iterable[Path]) -> None:
    """Delete the files of earlier launches and nothing else."""
    foreign = paths.foreign_files()
    if foreign:
        listing = listed([str(path.relative_to(paths.root)) for path in foreign], 5)
        raise UserError(
            f"--fresh: {paths.root} also holds files that FLEET did not write: {listing}; move "
            "them elsewhere, or use another output"
        )
    try:
        # These record the owner of the folder and the launches that use it.
        preserved = {
            paths.marker,
            paths.lease,
            paths.network_leases,
            paths.jobs_lease,
            paths.mailbox,
        }
        for path in stale_commands:
            path.unlink(missing_ok=True)
        for path in set(paths.root.iterdir()) - preserved:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise UserError(f"--fresh: {paths.root} cannot be emptied: {error}") from None
