"""HDF5 files in practice: text in any of its forms, and data that lies in other files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from launch.errors import InputError
from preprocess.base import and_more
from preprocess.transient_errors import is_transient

# Messages of HDF5, and advice for the user.
_ADVICE = {
    "truncated file": "the file is not complete; copy or write it again",
    "already open for write": "the program that wrote it has not closed it; close it, or run "
    "h5clear -s on it",
    "is not registered": "install its compression filter, or write it again without",
}


def open_file(path: str | Path) -> h5py.File:
    """Open a file for reading, without a lock.

    Parallel file systems may not support locks; files are replaced, never changed.
    """
    return h5py.File(path, "r", locking=False)


@contextmanager
def wrapping_errors(path: str | Path) -> Iterator[None]:
    """Wrap errors of HDF5 in an InputError that names the file.

    Raises:
        InputError: the file is truncated, still open in its writer, damaged, and so on.
        OSError: a transient error; see :mod:`preprocess.transient_errors`.
    """
    try:
        yield
    except (OSError, KeyError, RuntimeError) as error:
        if is_transient(error):
            raise
        reason = _reason_of(error)
        advice = next((f"; {text}" for key, text in _ADVICE.items() if key in reason), "")
        raise InputError(f"{path}: cannot be read as HDF5: {reason}{advice}") from error


def _reason_of(error: Exception) -> str:
    """Return the message of h5py in one line; a KeyError puts it in quotes."""
    return " ".join(str(error).strip("\"'").split())


def find_member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Look up a member of a group; None if it does not exist.

    Raises:
        InputError: it is a broken link, or its data lies in a file that is missing or too small.
    """
    if name not in group:
        return None
    try:
        object_ = group[name]
    except KeyError as error:
        reason = _reason_of(error)
        link = group.get(name, getlink=True)
        target = getattr(link, "path", "")
        if isinstance(link, h5py.ExternalLink):  # some versions of HDF5 do not name the file
            target = f"{link.filename}:{target}"
        raise InputError(
            f"{group.file.filename}: the link {group.name.rstrip('/')}/{name} is broken: it "
            f"leads to {target}: {reason}"
        ) from error
    if isinstance(object_, h5py.Dataset):
        _check_external(object_)
        _check_virtual(object_, frozenset())
    return object_


def decode_text(values: np.ndarray) -> list[str]:
    """Decode text; bytes that are not UTF-8 become escapes, so that texts stay different."""
    return [
        value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        for value in values.tolist()
    ]


def _check_external(dataset: h5py.Dataset) -> None:
    """Refuse data in raw files that are missing or too short: HDF5 would read zeros."""
    remaining = dataset.size * dataset.dtype.itemsize if dataset.external else 0
    for name, offset, size in dataset.external or ():
        folder = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", _folder(dataset))
        file = os.path.join(folder, os.fsdecode(name))
        origin = f"{_describe(dataset)} lies in the file {os.path.abspath(file)}"
        if not os.path.isfile(file):
            raise InputError(
                f"{origin}, which is missing (HDF5 searches the "
                f"working directory, or HDF5_EXTFILE_PREFIX)"
            )
        needed = offset + min(size, remaining)
        if os.path.getsize(file) < needed:
            raise InputError(
                f"{origin}, which has {os.path.getsize(file)} bytes; it should have {needed}"
            )
        remaining -= min(size, remaining)


def _check_virtual(dataset: h5py.Dataset, above: frozenset[tuple[str, str]]) -> None:
    """Refuse a virtual data set with missing or too small sources, or rows without one.

    HDF5 would read its fill value there, usually zero.

    Args:
        above: files and names of the virtual data sets that this one is a source of.
    """
    identity = (os.path.realpath(dataset.file.filename), dataset.name)
    if not dataset.is_virtual or identity in above:
        return
    has_source = np.zeros(len(dataset), bool)
    for source in dataset.virtual_sources():
        bounds = _bounds(source.vspace)
        if bounds is None:
            rows = slice(None)
        else:
            rows = slice(bounds[0][0], bounds[1][0] + 1)
        has_source[rows] = True
        for file, name in _sources_of(dataset, source.file_name, source.dset_name):
            _check_source(dataset, file, name, source, above | {identity})
    lonely = np.flatnonzero(~has_source)
    if len(lonely):
        raise InputError(
            f"{_describe(dataset)} is virtual, and row {lonely[0]}{and_more(lonely)} has no source"
        )


def _check_source(
    dataset: h5py.Dataset,
    file: str,
    name: str,
    source: Any,
    above: frozenset[tuple[str, str]],
) -> None:
    """Refuse a missing or too small source of a virtual data set."""
    origin = f"{_describe(dataset)} is virtual, and its source"
    path = _find_file(dataset, file)
    if path is None:
        raise InputError(f"{origin} {os.path.join(_folder(dataset), file)} is not there")
    with wrapping_errors(path), open_file(path) as opened:
        source_dataset = opened.get(name)
        if not isinstance(source_dataset, h5py.Dataset):
            raise InputError(f"{origin} {path} has no data set {name}")
        bounds = _bounds(source.src_space)
        if bounds is not None:
            is_small = any(
                last >= size for last, size in zip(bounds[1], source_dataset.shape, strict=True)
            )
        else:  # the whole data set
            is_small = _bounds(source.vspace) is not None and (
                source_dataset.size < source.vspace.get_select_npoints()
            )
        if is_small:
            raise InputError(
                f"{origin} {path}: {source_dataset.name} {source_dataset.shape} is smaller than "
                f"it was"
            )
        _check_external(source_dataset)
        _check_virtual(source_dataset, above)


def _sources_of(dataset: h5py.Dataset, file: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the sources that a name stands for: ``%b`` in ``part-%b.h5`` is 0, 1, ...

    If a few numbers are missing before another file, the first missing one is yielded too.
    """
    if "%b" not in file:
        yield file, name
        return

    def is_there(number: int) -> bool:
        return _find_file(dataset, file.replace("%b", str(number))) is not None

    count = next(number for number in itertools.count() if not is_there(number))
    if not count or any(map(is_there, range(count + 1, count + 10))):
        count += 1
    for number in range(count):
        yield file.replace("%b", str(number)), name.replace("%b", str(number))


def _bounds(space: h5py.h5s.SpaceID) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the first and last index of a selection; None if it is unbounded or takes all."""
    try:
        return space.get_select_bounds()
    except (RuntimeError, ValueError):
        return None


def _describe(dataset: h5py.Dataset) -> str:
    return f"{dataset.file.filename}: {dataset.name}"


def _folder(dataset: h5py.Dataset) -> str:
    return os.path.dirname(os.path.abspath(dataset.file.filename))


def _find_file(dataset: h5py.Dataset, file: str) -> str | None:
    """Find a source as HDF5 does: as named, beside the file, or in the working directory."""
    if file == ".":
        return dataset.file.filename
    folder = _folder(dataset)
    prefixes = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", folder).split(":")
    folders = [*filter(None, prefixes), folder, ""]
    places = [os.path.join(path, file) for path in folders]
    if os.path.isabs(file):
        places += [os.path.join(path, os.path.basename(file)) for path in folders]
    return next((path for path in places if os.path.isfile(path)), None)
