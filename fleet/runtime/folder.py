"""The folder of a run: ownership, leases, and deletion for a fresh start."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.errors import StorageError, UserError
from fleet.spec import Spec, dump
from fleet.storage.fencing import fence_out, newest_written_generation
from fleet.storage.files import atomic_write, is_path_error, storage_errors
from fleet.storage.lease import Lease
from fleet.storage.network_leases import read_holders, reclaim_networks
from fleet.storage.paths import RunPaths
from fleet.units import listed

_DOOR_S = (
    300.0  # for those before to begin: they read all checkpoints, and perhaps decode all samples
)
_KNOCK_S = 1.0


def check_folder(paths: RunPaths) -> None:
    """Refuse a folder that FLEET did not create.

    Raises:
        UserError: it is.
    """
    root = paths.root
    if root.exists() and not root.is_dir():
        raise UserError(f"output: {root} is a file; it should be a folder, or nothing yet")
    if root.exists() and any(root.iterdir()) and not paths.marker.exists():
        raise UserError(f"output: {root} holds files that FLEET did not write; name another folder")


def take_folder(paths: RunPaths, fresh: bool, lease: Lease | None) -> None:
    """Acquire a run's folder for this launch.

    Args:
        fresh: delete what earlier launches have left.
        lease: keeps other launches out from now on.

    Raises:
        UserError: it is somebody else's, or another launch is at work there.
    """
    check_folder(paths)
    # What is put into the mailbox once this launch has the lease is for this launch.
    letters = list(paths.mailbox.glob("*"))
    if lease is not None:
        with writing_into(paths):
            lease.take(paths.lease, floor=newest_written_generation(paths))
            took_over = lease.took_over
            if reclaim_networks(paths, lease) or took_over:
                fence_out(paths)
    if fresh and paths.root.exists():
        _empty(paths, letters)


def check_shareable(spec: Spec, option: str) -> None:
    """Refuse to share a run that several launches cannot share.

    Args:
        option: the option that the user gave, for the message.

    Raises:
        UserError: its networks come while it goes on, to the one launch that asks for them.
    """
    if spec.searches:
        raise UserError(
            f"{option}: a search is of one launch, which asks for networks; start it alone, as with "
            "fleet submit --chain, which goes on with it job after job"
        )
    if spec.document.keep_open is not None:
        raise UserError(
            f"{option}: keep_open waits for networks that are added, and launches that share those of a run "
            "take none; leave it out"
        )


def enter_folder(paths: RunPaths, lease: Lease) -> None:
    """Enter a run's folder together with other launches; see :mod:`network_leases`.

    Raises:
        UserError: it is somebody else's, or a launch that wants to be alone is at work there.
    """
    check_folder(paths)
    with writing_into(paths):
        until = time.monotonic() + _DOOR_S
        while True:
            try:
                lease.take(paths.lease, floor=newest_written_generation(paths))
                break
            except UserError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_KNOCK_S)
        if lease.took_over and not read_holders(paths):  # it may have been a launch that was alone
            fence_out(paths)


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
        UserError: its name cannot be a folder's.
        StorageError: the disk is full, ...
    """
    try:
        with storage_errors(paths.root):
            paths.root.mkdir(parents=True, exist_ok=True)
            paths.marker.touch()
        yield
    except StorageError as error:
        if not is_path_error(error):
            raise
        raise UserError(f"output: {error}") from None


def _empty(paths: RunPaths, letters: Iterable[Path]) -> None:
    """Delete what earlier launches have written, and nothing else."""
    foreign = paths.foreign_files()
    if foreign:
        listing = listed([str(path.relative_to(paths.root)) for path in foreign], 5)
        raise UserError(
            f"--fresh: {paths.root} also holds what FLEET did not write: {listing}; move it away, or name "
            "another output"
        )
    try:
        # They say whose it is, and who is in it.
        preserved = {
            paths.marker,
            paths.lease,
            paths.network_leases,
            paths.jobs_lease,
            paths.mailbox,
        }
        for letter in letters:
            letter.unlink(missing_ok=True)
        for path in set(paths.root.iterdir()) - preserved:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise UserError(f"--fresh: {paths.root} cannot be emptied: {error}") from None
