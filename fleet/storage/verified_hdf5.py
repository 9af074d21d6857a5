"""Write HDF5 files with checksums of every byte, and verify these before reading.

HDF5 can store checksums of data, but not of most metadata, which its library trusts: a flipped byte
there may cause anything from a wrong number to a crash. So checksums of everything are in the user
block at the head of the file, which the library ignores. The record is there, too, so that it can
be read and verified without the arrays. The checksum is CRC-32: it detects every damage of up to 32
adjacent bits, misses one in 4e9 of the others, and covers 4 GB per second on one core; BLAKE2b
takes four times as long.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from fleet.errors import CheckpointError, DamagedError
from fleet.storage.files import atomic_write
from preprocess.files.deferred_errors import DeferredErrorFile
from preprocess.transient_errors import retry_transient

# The checksum of the remaining user block, the checksum of everything after it, and the sizes of
# both in bytes.
_HEAD = re.compile(rb"FLEET checkpoint ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9]{10}) ([0-9]{15})\n")
# the length of such a line, and where what its first checksum covers begins
_HEAD_BYTES = 62
_FIRST_COVERED = 25
_PIECE = 2**20


def write_verified(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    record: Mapping[str, Any],
    previous: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write arrays and a record atomically.

    Args:
        path: path of the file.
        arrays: arrays by name.
        record: JSON values.
        previous: new name of the old file, once the new one is complete.
        check: raises if this process may no longer write.

    Raises:
        StorageError: the disk is full, the folder read-only, ...
    """
    text = json.dumps(record).encode()
    block = max(512, 1 << (_HEAD_BYTES + len(text) - 1).bit_length())  # HDF5 wants a power of two

    size = block + sum(array.nbytes for array in arrays.values())
    with atomic_write(path, "w+b", check, size, previous, buffering=0) as plain:
        target = DeferredErrorFile(plain, path)
        with target.hdf5(userblock_size=block) as file:
            group = file.create_group("arrays", track_order=True)
            for name, array in arrays.items():
                group.create_dataset(name.replace("/", "\\"), data=array)
        checksum = _sum(plain, block)
        remainder = b" %08x %010d %015d\n" % (checksum, block, plain.tell() - block)
        remainder += text.ljust(block - _HEAD_BYTES, b"\0")
        target.seek(0)
        target.write(b"FLEET checkpoint %08x" % zlib.crc32(remainder) + remainder)
        target.check()


def read_verified(
    path: Path, with_arrays: bool = True, read: Callable[[bytes], Any] = json.loads
) -> tuple[dict[str, np.ndarray], Any]:
    """Read arrays and a record; retry transient errors of the file system.

    Args:
        path: path of the file.
        with_arrays: False to read and verify only the record, which is fast.
        read: parses the text of the record.

    Raises:
        DamagedError: a byte differs from what was written.
        CheckpointError: the file system cannot read the file.
    """
    try:
        return retry_transient(lambda: _read_once(path, with_arrays, read))
    except (OSError, LookupError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _read_once(
    path: Path, with_arrays: bool, read: Callable[[bytes], Any]
) -> tuple[dict[str, np.ndarray], Any]:
    with open(path, "rb") as file:
        record = read(_read_block(path, file, with_arrays))
    if not with_arrays:
        return {}, record
    # The file never changes, and locks may be unavailable.
    with h5py.File(path, "r", locking=False) as content:
        arrays = {
            name.replace("\\", "/"): dataset[()] for name, dataset in content["arrays"].items()
        }
    return arrays, record


def _read_block(path: Path, file: IO[bytes], with_arrays: bool) -> bytes:
    """Return the text of the record after verifying it, and the arrays if requested."""
    head = _HEAD.fullmatch(start := file.read(_HEAD_BYTES))
    if not head:
        raise DamagedError(f"{path} cannot be read: it is damaged, or not a checkpoint")
    block = int(head[3])
    size = int(head[4])
    actual = os.fstat(file.fileno()).st_size
    if block + size != actual:
        raise DamagedError(
            f"{path} cannot be read: it has {actual} bytes instead of {block + size}"
        )
    text = file.read(block - _HEAD_BYTES)
    if b"%08x" % zlib.crc32(start[_FIRST_COVERED:] + text) != head[1]:
        raise DamagedError(f"{path} cannot be read: its record is damaged")
    if with_arrays and _sum(file, block) != int(head[2], 16):
        raise DamagedError(f"{path} cannot be read: its arrays are damaged")
    return text.rstrip(b"\0")


def _sum(file: IO[bytes], start: int) -> int:
    """Return the checksum of a file, from an offset in bytes to its end."""
    file.seek(start)
    checksum = 0
    while piece := file.read(_PIECE):
        checksum = zlib.crc32(piece, checksum)
    return checksum
