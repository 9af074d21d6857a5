"""Memory-mapped arrays in ``.npy`` and ``.npz`` files."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from launch.errors import InputError
from preprocess.base import UnreadableImage

# of a member of a zip file: the lengths of its name and extra field
_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class ArrayPlace:
    """The location of an array: a ``.npy`` file, or a member of an ``.npz`` file."""

    path: str
    member: str | None = None

    def __str__(self) -> str:
        if self.member is None:
            return self.path
        return f"{self.path}:{self.member}"

    def open(self) -> np.ndarray:
        """Memory-map the array.

        A compressed member is unpacked into memory, and so are rows of unequal length, which NumPy
        saves as an array of objects.

        Raises:
            InputError: it cannot be read, is incomplete, or holds Python objects other than arrays
                and lists of numbers.
        """
        try:
            if self.member is None:
                with open(self.path, "rb") as file:
                    if is_npy(file.peek(6)) and _read_header(file)[2].hasobject:
                        return _read_rows(file)
                return np.load(self.path, mmap_mode="r", allow_pickle=False)
            return self._open_member(f"{self.member}.npy")
        except OSError as error:
            raise InputError(f"{self}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            raise InputError(f"{self}: {error}") from error

    def _open_member(self, name: str) -> np.ndarray:
        with zipfile.ZipFile(self.path) as archive:
            info = archive.getinfo(name)
            with archive.open(info) as member:
                if _read_header(member)[2].hasobject:
                    return _read_rows(member)
            if info.compress_type != zipfile.ZIP_STORED:
                with archive.open(info) as member:
                    return npy.read_array(member, allow_pickle=False)
        with open(self.path, "rb") as file:
            file.seek(info.header_offset)
            name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            file.seek(name_length + extra_length, os.SEEK_CUR)
            shape, is_fortran, dtype = _read_header(file)
            if not np.prod(shape):
                return np.empty(shape, dtype)
            return np.memmap(self.path, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")


class _RowsUnpickler(pickle.Unpickler):
    """An unpickler of arrays and of what Python has built in, which can run nothing."""

    _allowed = frozenset({"_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype"})

    def find_class(self, module: str, name: str) -> Any:
        """Return a function or class of NumPy that makes arrays.

        Raises:
            ValueError: it is another one.
        """
        if module.partition(".")[0] != np.__name__ or name not in self._allowed:
            raise ValueError(_OBJECTS)
        renamed = {"numpy.core": "numpy._core"}
        if np.lib.NumpyVersion(np.__version__) < "2.0.0":
            renamed = {"numpy._core": "numpy.core"}
        for before, now in renamed.items():
            module = module.replace(before, now)
        return super().find_class(module, name)


_OBJECTS = (
    "it holds Python objects other than arrays and lists of numbers, which are not read: they "
    "could run anything; save it as numbers or text"
)


def _read_rows(file: IO[bytes]) -> np.ndarray:
    """Read an array of objects after its header: (n,) arrays or lists of numbers.

    Raises:
        ValueError: it holds other objects.
    """
    try:
        rows = _RowsUnpickler(file).load()
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise ValueError(f"{_OBJECTS} ({error})") from error
    is_flat = isinstance(rows, np.ndarray) and rows.ndim == 1
    if not is_flat or not all(isinstance(row, np.ndarray | list | tuple) for row in rows):
        raise ValueError(_OBJECTS)
    numbers = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        try:
            numbers[index] = np.asarray(row)
        except ValueError as error:  # lists of unequal length in a list
            raise ValueError(_OBJECTS) from error
        if numbers[index].size and numbers[index].dtype.kind not in "uifb":
            raise ValueError(_OBJECTS)
    return numbers


def is_npy(data: bytes) -> bool:
    """Return True if the bytes are those of a ``.npy`` file."""
    return data[:6] == npy.MAGIC_PREFIX


def parse_npy(data: bytes) -> np.ndarray:
    """Parse the array of a ``.npy`` file.

    Raises:
        UnreadableImage: it is damaged, or holds Python objects.
    """
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UnreadableImage(f"not an array: {error}") from error


def member_names(path: str | Path) -> list[str]:
    """List the names of the arrays in an ``.npz`` file.

    Raises:
        InputError: it is not such a file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return sorted(
                name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not an .npz file, or not a whole one: {error}") from error


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    return npy.read_array_header_2_0(file)  # (3, 0) is the same, with names in UTF-8
