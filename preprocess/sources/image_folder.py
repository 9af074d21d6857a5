"""Image files in one folder per class."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from preprocess.base import InputError, RandomAccess
from preprocess.passing import may_pass, read_patiently

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff",
                        ".webp"})
VALIDATION_NAMES = ("validation", "val", "test")  # in this order


class ImageFolder(RandomAccess):
    """The images of ``folder/<class>/``, also in folders below; classes and files in alphabetical order.

    Hidden files and folders, and files with other extensions than ``EXTENSIONS``, are left out. Links to folders are
    followed, but for those that lead back to a folder that they are in.

    Args:
        folder: holds one folder for each class.

    Raises:
        InputError: no such folder, no class in it, a class without images, or a link that leads nowhere.
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
    """The names of the folders in a folder that are not hidden, in alphabetical order.

    Raises:
        InputError: a link leads nowhere.
    """
    return _scan(str(folder), inside=(os.path.realpath(folder),))[0]


def _images(folder: str) -> list[str]:
    """Paths of the images below a class's folder, relative to it, sorted."""
    above = os.path.realpath(os.path.dirname(folder))
    return sorted(os.path.relpath(path, folder) for path in _below(folder, (above,)))


def _below(folder: str, inside: tuple[str, ...]) -> Iterator[str]:
    """The images in a folder and in those below it.

    Args:
        inside: the folders that the way has led through, by their paths without links.
    """
    inside = (*inside, os.path.realpath(folder))
    folders, files = _scan(folder, inside)
    for name in files:
        if os.path.splitext(name)[1].lower() in EXTENSIONS:
            yield os.path.join(folder, name)
    for name in folders:
        yield from _below(os.path.join(folder, name), inside)


def _scan(folder: str, inside: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The folders in a folder, sorted, and its files; without hidden ones, and links that lead back to where they are.

    Raises:
        InputError: the folder cannot be read, or a link leads nowhere.
    """
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not (_leads_to_a_folder(entry.path) if entry.is_symlink() else entry.is_dir()):
                    files.append(entry.name)
                elif not (entry.is_symlink() and _leads_back(entry.path, inside)):
                    folders.append(entry.name)
    except OSError as error:
        if may_pass(error):
            raise
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(folders), files


def _leads_to_a_folder(link: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(link).st_mode)
    except OSError as error:
        if may_pass(error):
            raise
        if os.path.splitext(link)[1]:  # meant for a file: that an image is missing shows when it is read
            return False
        raise InputError(f"{link}: this link leads nowhere ({error.strerror}); mend it or remove it") from error


def _leads_back(link: str, inside: tuple[str, ...]) -> bool:
    """Whether a link leads to a folder that holds one of those that it is inside of: a loop."""
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(place, "").startswith(target) for place in inside)
