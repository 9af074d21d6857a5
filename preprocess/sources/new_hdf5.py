"""The data sets of an HDF5 file to predict."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from preprocess.sources.hdf5_file import find_member, open_file, wrapping_errors


class _EncodedRows:
    """A data set of encoded files.

    Args:
        files: (n,) variable-length uint8.
    """

    def __init__(self, files: h5py.Dataset) -> None:
        self._files = files
        self.shape = files.shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> bytes:
        return np.asarray(self._files[index]).tobytes()


def open_rows(path: str) -> dict[str, Any]:
    """Return the data sets at the root of a file, or in its only group, by name.

    Raises:
        InputError: it is not such a file.
    """
    with wrapping_errors(path):
        group: Any = open_file(path)
        members = {name: find_member(group, name) for name in group}
        groups = [member for member in members.values() if isinstance(member, h5py.Group)]
        if len(members) == len(groups) == 1:
            members = {name: find_member(groups[0], name) for name in groups[0]}
    return {
        name: _EncodedRows(member) if _is_encoded(member) else member
        for name, member in members.items()
        if isinstance(member, h5py.Dataset)
    }


def _is_encoded(member: h5py.Dataset) -> bool:
    return member.ndim == 1 and h5py.check_vlen_dtype(member.dtype) == np.uint8
