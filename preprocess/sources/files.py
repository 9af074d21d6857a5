"""Inputs that are named one by one, without targets: image files, those below a folder, or an array."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence, Sized
from pathlib import Path

import numpy as np

from preprocess.base import InputError, printable
from preprocess.files.npz import ArrayPlace
from preprocess.sources.image_folder import EXTENSIONS, FilePerSample, find_images


class SequentialOrder:
    """For sources of which nobody learns, so that their samples need no other order."""

    def order(self: Sized, seed: int, epoch: int) -> np.ndarray:
        """As they are named, or stand there."""
        return np.arange(len(self))


class NamedFiles(FilePerSample, SequentialOrder):
    """Image files, in the order in which they are named.

    Args:
        paths: of files; of a folder all images below it are taken, in alphabetical order.

    Raises:
        InputError: one of them is not there, or a folder holds no images.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._files = list[str]()
        self.unread = Counter[str]()
        for path in map(str, paths):
            if not os.path.exists(path):
                raise InputError(f"{path}: no such file or folder")
            if not os.path.isdir(path):
                files = [path]
            else:
                files = sorted(find_images(path, (), self.unread))
            if not files:
                raise InputError(
                    f"{path}: no images in this folder (files that end in "
                    f"{', '.join(sorted(EXTENSIONS))})"
                )
            self._files += files

    def __len__(self) -> int:
        return len(self._files)


class NamedRows(SequentialOrder):
    """The rows of an array in a ``.npy`` file.

    Raises:
        InputError: it cannot be read, or has no rows.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._rows = ArrayPlace(str(path)).open()
        if not (self._rows.ndim and len(self._rows)):
            raise InputError(f"{path}: an array of shape {self._rows.shape} has no rows")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> np.ndarray:
        """The row; see :class:`~preprocess.base.Source`."""
        return np.array(self._rows[index])

    def name(self, index: int) -> str:
        """The file and the number of the row, from 0."""
        return printable(f"{self._path}[{index}]")
