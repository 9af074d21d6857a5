"""The rows of arrays to predict: an ``.npz`` or HDF5 file, or a folder of ``.npy`` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launch.errors import InputError, printable
from preprocess.base import INPUT
from preprocess.files.npz import ArrayPlace, member_names
from preprocess.sources.files import SequentialOrder

_ENDINGS = (".npz", ".h5", ".hdf5", ".hdf")


def is_array_file(path: str | Path) -> bool:
    """Return True for an ``.npz`` or HDF5 file, and for a folder with ``.npy`` files."""
    file = Path(path)
    if file.is_dir():
        return any(file.glob("*.npy"))
    return file.suffix.lower() in _ENDINGS


class NewArrays(SequentialOrder):
    """The rows of the arrays of a file.

    Args:
        path: the path of the file or folder.
        names: the names that the array of each input may have, the preferred one first. A single
            input may also be the only array of the file.

    Raises:
        InputError: it cannot be read, or lacks an input; or the inputs have different lengths.
    """

    input_names: tuple[str, ...] = ()

    def __init__(self, path: str | Path, names: Mapping[str, Sequence[str]]) -> None:
        self._path = str(path)
        if set(names) != {INPUT}:
            self.input_names = tuple(names)
        arrays = _open(self._path)
        self._arrays = {
            name: _find(self._path, arrays, name, candidates) for name, candidates in names.items()
        }
        first = next(iter(self._arrays))
        self._length = len(self._arrays[first])
        for name, rows in self._arrays.items():
            if len(rows) != self._length:
                raise InputError(
                    f"{path}: {first} has {self._length} rows and {name} {len(rows)}; all inputs "
                    "need the same samples"
                )

    def __len__(self) -> int:
        return self._length

    def read(self, index: int) -> Any:
        """Return the row of each input by name, or of the only one: an array or a file's bytes."""
        rows = {name: _as_row(array[index]) for name, array in self._arrays.items()}
        if self.input_names:
            return rows
        return rows[INPUT]

    def name(self, index: int) -> str:
        """Return the file and the number of the row, from 0."""
        return printable(f"{self._path}[{index}]")


def _as_row(value: Any) -> bytes | np.ndarray:
    return value if isinstance(value, bytes) else np.array(value, ndmin=1)


def _open(path: str) -> dict[str, Any]:
    """Return the arrays of a file or folder by name; their rows are read when they are used.

    Raises:
        InputError: it cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        return {part.stem: ArrayPlace(str(part)).open() for part in sorted(file.glob("*.npy"))}
    if not file.is_file():
        raise InputError(f"{path}: file not found")
    if file.suffix.lower() == ".npz":
        return {name: ArrayPlace(path, name).open() for name in member_names(path)}
    # Importing h5py takes longer than reading the other files.
    from preprocess.sources.new_hdf5 import open_rows

    return open_rows(path)


def _find(path: str, arrays: Mapping[str, Any], name: str, candidates: Sequence[str]) -> Any:
    """Return the array of an input.

    Raises:
        InputError: there is none.
    """
    matches = [candidate for candidate in candidates if candidate in arrays]
    if not matches and name == INPUT and len(arrays) == 1:
        matches = list(arrays)
    if not matches:
        listed = " or ".join(map(repr, dict.fromkeys(candidates)))
        of_input = "" if name == INPUT else f" for the input {name}"
        raise InputError(
            f"{path}: no array {listed}{of_input}, which the networks take; there are "
            f"{', '.join(arrays) or 'none'}"
        )
    rows = arrays[matches[0]]
    if not rows.shape:
        raise InputError(f"{path}: {matches[0]} is one number; each sample needs a row")
    return rows
