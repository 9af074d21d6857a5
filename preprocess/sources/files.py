"""Unlabeled inputs for prediction: image files, folders of them, or an array."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence, Sized
from pathlib import Path

import numpy as np

from launch.errors import InputError, printable
from preprocess.files.npz import ArrayPlace
from preprocess.sources.image_folder import EXTENSIONS, FilePerSample, find_images


class SequentialOrder:
    """Mixin for sources that are not trained on: samples keep their order."""

    def order(self: Sized, seed: int, epoch: int) -> np.ndarray:
        """Return 0, 1, ..., n - 1."""
        return np.arange(len(self))


class NamedFiles(FilePerSample, SequentialOrder):
    """Image files, in the given order.

    Args:
        paths: the paths of files; of a folder, all images below it are used, in alphabetical order.

    Raises:
        InputError: a path is missing, or a folder holds no images.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._files = list[str]()
        self.unread = Counter[str]()
        for path in map(str, paths):
            if not os.path.exists(path):
                raise InputError(f"{path}: file or folder not found")
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
        """Return a row, (...); see :class:`~preprocess.base.Source`."""
        return np.array(self._rows[index])

    def name(self, index: int) -> str:
        """Return the file and the number of the row, from 0."""
        return printable(f"{self._path}[{index}]")
