"""Image files in one folder per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from preprocess.base import InputError, RandomAccess
from preprocess.passing import read_patiently

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff",
                        ".webp"})
VALIDATION_NAMES = ("validation", "val", "test")  # in this order


class ImageFolder(RandomAccess):
    """The images of ``folder/<class>/``, also in folders below; classes and files in alphabetical order.

    Hidden files and folders, and files with other extensions than ``EXTENSIONS``, are left out.

    Args:
        folder: holds one folder for each class.

    Raises:
        InputError: no such folder, no class in it, or a class without images.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self.places = (self.folder,)
        self.classes = tuple(class_folders(folder))
        if not self.classes:
            raise InputError(f"{folder}: it has no folders; it must have one folder of images for each class")
        files = [_images(os.path.join(self.folder, name)) for name in self.classes]
        for name, found in zip(self.classes, files, strict=True):
            if not found:
                raise InputError(f"{os.path.join(self.folder, name)}: no images in this class "
                                 f"(files that end in {', '.join(sorted(EXTENSIONS))})")
        self._files = [os.path.join(name, file)
                       for name, found in zip(self.classes, files, strict=True) for file in found]
        self.labels = np.repeat(np.arange(len(files)), [len(found) for found in files])

    def read(self, index: int) -> bytes:
        """The bytes of the file; see :class:`~preprocess.base.Source`."""
        return read_patiently(lambda: self._content(index), lambda: self.name(index))

    def name(self, index: int) -> str:
        """The path of the file."""
        return os.path.join(self.folder, self._files[index])

    def _content(self, index: int) -> bytes:
        with open(self.name(index), "rb", buffering=0) as file:
            return file.read()


def open_image_folder(path: str) -> tuple[ImageFolder, ImageFolder | None]:
    """``path/<class>/``, or ``path/train/<class>/`` beside ``path/validation/<class>/`` (or val, or test).

    Returns:
        The training images and, where there is a folder for them, those for validation.

    Raises:
        InputError: the path is missing or holds neither.
    """
    check_folder(path)
    train = os.path.join(path, "train")
    if not (os.path.isdir(train) and class_folders(train)):  # else "train" is a class of that name
        return ImageFolder(path), None
    for name in VALIDATION_NAMES:
        if os.path.isdir(os.path.join(path, name)):
            return ImageFolder(train), ImageFolder(os.path.join(path, name))
    return ImageFolder(train), None


def check_folder(path: str) -> None:
    """Complain of a path that is no folder."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such folder")
    if not os.path.isdir(path):
        raise InputError(f"{path} is a file; it must be a folder")


def class_folders(folder: str | Path) -> list[str]:
    """The names of the folders in a folder that are not hidden, in alphabetical order."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: str) -> list[str]:
    """Paths of the images below a folder, relative to it, sorted."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = os.path.relpath(root, folder)
        found += [name if inside == "." else os.path.join(inside, name) for name in files
                  if not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS]
    return sorted(found)
