"""Image files in one folder per class, or with masks."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from launch.errors import InputError, pluralize, printable
from preprocess.base import RandomAccess, Source, and_more
from preprocess.fingerprint import SampleIds, identify_files
from preprocess.sources.masks import MaskFiles, PixelClasses
from preprocess.sources.targets import TargetedSource, Targets
from preprocess.splits import (
    TEST,
    TRAIN,
    choose_held_out,
    find_split_word,
    find_splits,
    mark_stand_in,
    parse_split,
)
from preprocess.target import TargetWish
from preprocess.transient_errors import is_transient, read_file

# Extensions of images, in lower case.
EXTENSIONS = frozenset(
    ".apng .bmp .dib .gif .j2k .jfif .jp2 .jpe .jpeg .jpg .pbm .pcx .pgm .png .pnm .ppm .tga .tif "
    ".tiff .webp".split()
)
_NOT_OURS = "__MACOSX"  # a folder that macOS leaves in archives


class FilePerSample:
    """Mixin for sources whose samples are files.

    Attributes:
        folder: the folder that holds them all.
        unread: the number of other files, by extension.
    """

    folder = ""
    unread: Counter[str]
    _files: list[str]  # relative paths

    def read(self, index: int) -> bytes:
        """Read the bytes of the file; see :class:`~preprocess.base.Source`."""
        return read_file(self.path(index), lambda: self.name(index))

    def path(self, index: int) -> str:
        """Return the path of the file, as the system has it."""
        return os.path.join(self.folder, self._files[index])

    def name(self, index: int) -> str:
        """Return the path of the file, printable."""
        return printable(self.path(index))

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples; see :mod:`preprocess.fingerprint`."""
        return identify_files(
            self._files, [os.path.join(self.folder, file) for file in self._files]
        )


class ImageFolder(FilePerSample, RandomAccess):
    """The images of ``folder/<class>/`` and its subfolders, in alphabetical order.

    Hidden files and folders, and files with other extensions than ``EXTENSIONS``, are ignored.
    Links to folders are followed, except links that form a cycle.

    Args:
        folder: holds one folder for each class.

    Raises:
        InputError: the folder is missing, holds no class or a class without images, or a link is
            broken.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self.places = (self.folder,)
        folders = class_folders(folder)
        if not folders:
            raise InputError(f"{folder}: no folders here; each class needs a folder of images")
        self.classes = tuple(map(printable, folders))
        unread = {name: Counter[str]() for name in folders}
        files = [_images(os.path.join(self.folder, name), unread[name]) for name in folders]
        self.unread = sum(unread.values(), Counter())
        for name, images in zip(folders, files, strict=True):
            if not images:
                raise InputError(
                    f"{os.path.join(self.folder, name)}: no images in this class (files that end "
                    f"in {', '.join(sorted(EXTENSIONS))}){_format_unread(unread[name])}"
                )
        self._files = [
            os.path.join(name, file)
            for name, images in zip(folders, files, strict=True)
            for file in images
        ]
        self.labels = np.repeat(np.arange(len(files)), [len(images) for images in files])


class ImageFiles(FilePerSample, TargetedSource):
    """The images of a folder and its subfolders, in alphabetical order, without targets.

    Args:
        folder: the folder.

    Raises:
        InputError: it has no images, or a link is broken.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.places = (folder,)
        self.unread = Counter()
        self._files = _images(folder, self.unread)
        if not self._files:
            raise InputError(
                f"{folder}: no images (files that end in {', '.join(sorted(EXTENSIONS))})"
                f"{_format_unread(self.unread)}"
            )
        super().__init__(Targets.missing(len(self._files)), None, len(self._files))


class MaskedImages(FilePerSample, TargetedSource):
    """Images, and the mask of each in another folder under the same name without extension.

    A trailing ``_mask`` in a mask's name is ignored. Masks are images too, or ``.npy`` files.

    Args:
        images: the folder of images.
        masks: the folder of masks.
        coding: the classes of mask pixels.

    Raises:
        InputError: there are no images, an image without a mask, a mask without an image, or two of
            one name.
    """

    def __init__(self, images: str, masks: str, coding: PixelClasses) -> None:
        self.folder = images
        self.places = (images,)
        self.unread = Counter()
        files = _by_stem(images, EXTENSIONS, self.unread)
        mask_files = _by_stem(masks, EXTENSIONS | {".npy"}, self.unread)
        if not files:
            raise InputError(
                f"{images}: no images (files that end in {', '.join(sorted(EXTENSIONS))})"
                f"{_format_unread(self.unread)}"
            )
        for files_here, files_there, folder_there, role in (
            (files, mask_files, masks, "mask"),
            (mask_files, files, images, "image"),
        ):
            lonely = sorted(files_here[stem] for stem in files_here.keys() - files_there.keys())
            if lonely:
                raise InputError(
                    f"{lonely[0]}: no {role} of this name in {folder_there}{and_more(lonely)}"
                )
        stems = sorted(files)
        prefix = os.path.join(images, "")
        self._files = [files[stem].removeprefix(prefix) for stem in stems]
        mask_source = MaskFiles([mask_files[stem] for stem in stems], coding)
        super().__init__(mask_source, None, len(files))


def open_image_folder(
    path: str,
    images: str = "images",
    masks: str | None = None,
    pixels: Mapping[str, int] | None = None,
    *,
    target: TargetWish | None = None,
) -> tuple[Source, Source | None]:
    """Open ``path/<class>/``, or ``path/train/<class>/`` beside other splits.

    Splits are found by their usual names, in any case; see :mod:`preprocess.splits`.

    Images with masks lie in ``path/images`` and ``path/masks``, each possibly in folders by split,
    or these inside such folders.

    Args:
        path: the path of the folder.
        images: the name of the folder of images.
        masks: the name of the folder of masks.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        target: the ``data.target`` of the spec.

    Returns:
        The training images and, if there is a folder for them, those for validation.

    Raises:
        InputError: the path is missing or holds neither.
    """
    check_folder(path)
    if target is None:
        is_mask = _has_masks(path, images, "masks")
    else:
        is_mask = target.semantics.is_of_pixels
    if is_mask or masks is not None:
        return _open_masked(
            path, images, masks or "masks", PixelClasses.from_options(pixels, target)
        )
    if pixels is not None:
        raise InputError(
            f"{path}: pixels is an option for masks, and there is no folder masks (options: masks)"
        )
    folders = class_folders(path)
    if target is not None and not target.semantics.exists and not _has_splits(path, folders):
        return ImageFiles(path), None
    if not _has_splits(path, folders):
        _check_classes(path, folders)
        return ImageFolder(path), None
    splits = find_splits(folders, path)
    if TRAIN not in splits:
        raise InputError(
            f"{path}: no folder train beside {', '.join(sorted(splits.values()))}; training images "
            "should be there, in one folder for each class"
        )
    train = os.path.join(path, splits[TRAIN])
    if not class_folders(train):
        raise InputError(
            f"{train}: it has no folders for classes; it must have one folder of images for each "
            "class, or a table must say the class of each file (source: table)"
        )
    held_out, _ = choose_held_out(splits)
    if held_out is None:
        return ImageFolder(train), None
    validation = ImageFolder(os.path.join(path, held_out))
    mark_stand_in(validation, held_out, validation.folder)
    return ImageFolder(train), validation


def _has_splits(path: str, folders: list[str]) -> bool:
    """Return True if subfolders are splits of the data, not classes."""
    splits = {parse_split(name) for name in folders}
    if TRAIN in splits and any(
        class_folders(os.path.join(path, name)) for name in folders if parse_split(name) == TRAIN
    ):
        return True
    return None not in splits and len(splits) > 1


def _check_classes(path: str, folders: list[str]) -> None:
    """Refuse folders that would be classes but are probably splits.

    Raises:
        InputError: they are splits under other names, or each of them is divided into splits.
    """
    inside = {name: class_folders(os.path.join(path, name)) for name in folders}
    if not folders or not all(inside.values()):
        return
    words = {find_split_word(name) for name in folders}
    if {TRAIN, TEST} <= words or (TRAIN in words and None not in words and len(words) > 1):
        raise InputError(
            f"{path}: {', '.join(map(printable, folders[:5]))} look like splits of the data, not "
            "like classes; name the folders train, validation and test, or set data.path, "
            "data.validation and data.test"
        )
    for name in folders:
        splits = {parse_split(below) for below in inside[name]}
        if None in splits or len(splits) < 2:
            return
    raise InputError(
        f"{os.path.join(path, folders[0])}: it has the folders {', '.join(inside[folders[0]])}, "
        "which are splits of the data; these must lie above the classes, as train/<class>"
    )


def _has_masks(path: str, images: str, masks: str) -> bool:
    """Return True if a folder, or its training split, holds just images and masks."""
    return any(
        set(class_folders(os.path.join(path, name))) == {images, masks}
        for name in ("", *(name for name in class_folders(path) if parse_split(name) == TRAIN))
    )


def _open_masked(
    path: str, images: str, masks: str, options: PixelClasses
) -> tuple[Source, Source | None]:
    divided = _find_mask_folders(path, images, masks)
    undivided = (os.path.join(path, images), os.path.join(path, masks))
    if TRAIN not in divided and not all(map(os.path.isdir, undivided)):
        raise InputError(
            f"{path}: no folders {images} and {masks} here, nor in train (options: images, masks)"
        )
    train = MaskedImages(*divided.get(TRAIN, undivided), options)
    assert train.masks is not None
    if TRAIN not in divided:
        return train, None
    held_out, _ = choose_held_out({split: split for split in divided})
    if held_out is None:
        return train, None
    validation = MaskedImages(*divided[held_out], train.masks.classes)
    mark_stand_in(validation, held_out, validation.folder)
    return train, validation


def _find_mask_folders(path: str, images: str, masks: str) -> dict[str, tuple[str, str]]:
    """Find the folders of images and masks by split: ``split/images``, ``images/split``."""
    folders_of_split: dict[str, tuple[str, str]] = {}
    for split, name in find_splits(class_folders(path), path).items():
        pair = os.path.join(path, name, images), os.path.join(path, name, masks)
        if all(map(os.path.isdir, pair)):
            folders_of_split[split] = pair
        elif split != TEST and any(map(os.path.isdir, pair)):
            missing = next(folder for folder in pair if not os.path.isdir(folder))
            raise InputError(f"{missing}: folder not found; each image needs a mask")
    if TRAIN in folders_of_split:
        return folders_of_split
    folders = os.path.join(path, images), os.path.join(path, masks)
    if not all(map(os.path.isdir, folders)):
        return folders_of_split
    of_images, of_masks = (find_splits(class_folders(parent), parent) for parent in folders)
    return {
        split: (
            os.path.join(folders[0], of_images[split]),
            os.path.join(folders[1], of_masks[split]),
        )
        for split in of_images
        if split in of_masks
    }


def _by_stem(folder: str, extensions: frozenset[str], unread: Counter[str]) -> dict[str, str]:
    """List the files below a folder by their relative names without extension."""
    files: dict[str, str] = {}
    for path in find_images(folder, (), unread, extensions):
        stem = os.path.splitext(os.path.relpath(path, folder))[0].removesuffix("_mask")
        first = files.setdefault(stem, path)
        if first != path:
            raise InputError(f"{path}: {first} has the same name; remove or rename one of them")
    return files


def check_folder(path: str) -> None:
    """Refuse a path that is not a folder."""
    if not os.path.exists(path):
        raise InputError(f"{path}: folder not found")
    if not os.path.isdir(path):
        raise InputError(f"{path} is a file; it must be a folder")


def class_folders(folder: str | Path) -> list[str]:
    """List the visible subfolders of a folder, in alphabetical order.

    Raises:
        InputError: a link is broken.
    """
    return _scan(str(folder), inside=(os.path.realpath(folder),))[0]


def _images(folder: str, unread: Counter[str]) -> list[str]:
    """List the images below a class's folder by relative path, sorted."""
    above = os.path.realpath(os.path.dirname(folder))
    return sorted(os.path.relpath(path, folder) for path in find_images(folder, (above,), unread))


def describe_unread(source: object) -> str:
    """Describe how many files beside those of a source are not read; "" if none."""
    unread: Counter[str] | None = getattr(source, "unread", None)
    if not unread:
        return ""
    folder = printable(getattr(source, "folder", ""))
    count = unread.total()
    if count == 1:
        text = f"1 file is not read because of its ending: {_endings(unread)}"
    else:
        files = pluralize(count, "file")
        text = f"{files} are not read because of their endings: {_endings(unread)}"
    if folder:
        return f"{folder}: {text}"
    return text


def _format_unread(unread: Counter[str]) -> str:
    if unread:
        return f", but {_endings(unread)}"
    return ""


def _endings(unread: Counter[str]) -> str:
    endings = sorted(unread, key=lambda ending: (-unread[ending], ending))
    listed = [f"{unread[ending]} {printable(ending) or 'without one'}" for ending in endings[:5]]
    return ", ".join(listed) + (" ..." if len(endings) > 5 else "")


def find_images(
    folder: str,
    inside: tuple[str, ...],
    unread: Counter[str],
    extensions: frozenset[str] = EXTENSIONS,
) -> Iterator[str]:
    """Yield the paths of images in a folder and its subfolders.

    Args:
        folder: the folder to search.
        inside: the real paths of the folders above it.
        unread: counts other files, by extension.
        extensions: the file extensions of images.
    """
    inside = (*inside, os.path.realpath(folder))
    folders, files = _scan(folder, inside)
    for name in files:
        ending = os.path.splitext(name)[1].lower()
        if ending in extensions:
            yield os.path.join(folder, name)
        else:
            unread[ending] += 1
    for name in folders:
        yield from find_images(os.path.join(folder, name), inside, unread, extensions)


def _scan(folder: str, inside: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """List the subfolders (sorted) and files of a folder, without hidden ones and cycles.

    Raises:
        InputError: the folder cannot be read, or a link is broken.
    """
    folders = []
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == _NOT_OURS:
                    continue
                if not (_leads_to_a_folder(entry.path) if entry.is_symlink() else entry.is_dir()):
                    files.append(entry.name)
                elif not (entry.is_symlink() and _leads_back(entry.path, inside)):
                    folders.append(entry.name)
    except OSError as error:
        if is_transient(error):
            raise
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(folders), files


def _leads_to_a_folder(link: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(link).st_mode)
    except OSError as error:
        if is_transient(error):
            raise
        # a link to a file: a missing image is reported when it is read
        if os.path.splitext(link)[1]:
            return False
        raise InputError(f"{link}: broken link ({error.strerror}); repair or remove it") from error


def _leads_back(link: str, inside: tuple[str, ...]) -> bool:
    """Return True if a link leads to a folder that contains it: a cycle."""
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(folder, "").startswith(target) for folder in inside)
