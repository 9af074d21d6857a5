"""Write a data set into one HDF5 file, in the layout of :mod:`preprocess.sources.hdf5`."""

from __future__ import annotations

import errno
import glob
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import h5py
import numpy as np
from PIL import Image

from launch.errors import InputError, pluralize, printable
from preprocess.base import CannotWrite, Source, UnreadableSample, read_input
from preprocess.files.deferred_errors import DeferredErrorFile
from preprocess.pipeline import Pipeline
from preprocess.sample import wire_dtype
from preprocess.target import TargetSpec, plain_targets, read_mask, target_of

_CHUNK = 2**14  # bytes of small arrays per chunk

Progress = Callable[[int], object]


def write_hdf5(
    splits: Mapping[str, Source | Pipeline],
    path: str | Path,
    progress: Progress = lambda count: None,
    made_from: str = "",
) -> list[UnreadableSample]:
    """Write a data set to an HDF5 file, which appears complete or not at all.

    Args:
        splits: ``train``, optionally ``validation`` and ``test``: a source, whose files and arrays
            are written unchanged; or a pipeline, whose fixed transforms are applied first.
        path: the path of the file.
        progress: called with the number of samples just done.
        made_from: an identity, stored in the file to recognize its content later.

    Returns:
        The samples that could not be used and were left out.

    Raises:
        InputError: a pipeline is random or does not end in uint8; samples differ in shape or type;
            or the file cannot be created there.
        CannotWrite: the disk is full, and so on.
    """
    target_path = Path(path)
    if not target_path.name or target_path.is_dir():
        raise InputError(f"{target_path} is a folder; it must be the name of a file")
    partial = target_path.with_name(f".{target_path.name}.{os.getpid()}.tmp")
    # from a process that was killed
    for left_over in target_path.parent.glob(f".{glob.escape(target_path.name)}.*.tmp"):
        left_over.unlink(missing_ok=True)
    bad = []
    try:
        with _create(partial, target_path) as plain:
            target = DeferredErrorFile(plain, target_path)

            def advance(count: int) -> None:
                target.check()
                progress(count)

            with target.hdf5() as file:
                file.attrs["made_from"] = made_from
                for name, data in splits.items():
                    bad += _write_split(file.create_group(name), data, advance, bool(made_from))
            with _writing(target_path):
                os.fsync(plain.fileno())
                os.replace(partial, target_path)
    finally:
        with suppress(OSError):  # the earlier error says more
            partial.unlink(missing_ok=True)
    return bad


def _create(partial: Path, path: Path) -> IO[bytes]:
    try:
        with _writing(path):
            return open(partial, "w+b", buffering=0)
    except CannotWrite as error:
        if error.errno not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EACCES,
            errno.EPERM,
            errno.ENAMETOOLONG,
        ):
            raise
        raise InputError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of writing into CannotWrite, so that they differ from errors of reading."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror or str(error), str(path)) from error


def _write_split(
    group: h5py.Group, data: Source | Pipeline, progress: Progress, is_copy: bool
) -> list[UnreadableSample]:
    """Write one split, without gaps for unusable samples; return these.

    Args:
        is_copy: True to also store the indices of samples left out, which a copy needs.
    """
    source = data.source if isinstance(data, Pipeline) else data
    target = target_of(source)
    written: list[int] = []
    bad = []
    inputs = None
    mask_target = target.mask
    mask_column = "targets"
    if target.parts:
        group.create_group("targets", track_order=True)
        names = [f"targets/{name}" for name, part in target.parts.items() if part is mask_target]
        mask_column = "".join(names)
    masks = None
    if mask_target is not None:
        masks = _create_files(group, mask_column, len(source))
    for index in range(len(source)):
        try:
            content, mask = _sample(data, index, mask_target)
            if inputs is None:
                inputs = _create_inputs(group, data, content)
            inputs[len(written)] = _as_row(content, inputs, source.name(index))
            if masks is not None and mask_target is not None:
                masks[len(written)] = _encode(mask, mask_target)
            written.append(index)
        except UnreadableSample as error:
            bad.append(error)
        progress(1)
    if inputs is None:
        raise InputError(
            f"none of the {pluralize(len(source), 'sample')} can be used; the first: {bad[0]}"
        )
    for files in (inputs, masks):
        if files is not None:
            files.resize(len(written), axis=0)
    if target.parts:
        _write_several(group["targets"], source, target, written)
    else:
        _write_target(group, source, target, written)
    for name in ("weights", "groups", "strata"):
        values = getattr(source, name, None)
        if values is not None:
            group.create_dataset(name, data=np.asarray(values)[written])
    if is_copy:
        group.create_dataset("left_out_at", data=np.setdiff1d(np.arange(len(source)), written))
    for name, texts in (
        ("names", [source.name(index) for index in written]),
        ("left_out", [sample.name for sample in bad]),
        ("left_out_because", [sample.reason for sample in bad]),
    ):
        group.create_dataset(name, data=list(map(printable, texts)), dtype=h5py.string_dtype())
    return bad


def _sample(
    data: Source | Pipeline, index: int, mask_target: TargetSpec | None
) -> tuple[bytes | np.ndarray, np.ndarray | None]:
    """Return a sample as it is to be written, and its mask if it has one."""
    if isinstance(data, Pipeline):
        return data.augment_checked(data.prepare(index), index, epoch=0)
    content = read_input(data, index)
    if not isinstance(content, bytes):
        content = np.atleast_1d(content)
    mask = None
    if mask_target is not None:
        mask = read_mask(data, index, mask_target)
    return content, mask


def _create_inputs(
    group: h5py.Group, data: Source | Pipeline, first: bytes | np.ndarray
) -> h5py.Dataset:
    """Create the data set of the inputs, all like the first."""
    if isinstance(data, Pipeline):
        if data.is_random or data.sample.affine or data.sample.input.dtype != "uint8":
            raise InputError(
                "only transforms that are not random and end in uint8 can be done beforehand"
            )
        data = data.source
    if isinstance(first, bytes):
        return _create_files(group, "images", len(data))
    if first.dtype.kind not in "uifb":
        raise InputError(f"{data.name(0)} is an array of {first.dtype}, not of numbers")
    rows = max(1, min(_CHUNK // max(first.nbytes, 1), len(data)))
    return group.create_dataset(
        "images",
        (len(data), *first.shape),
        wire_dtype(first.dtype),
        maxshape=(None, *first.shape),
        chunks=(rows, *first.shape),
    )


def _create_files(group: h5py.Group, name: str, count: int) -> h5py.Dataset:
    """Create a data set for ``count`` encoded files."""
    return group.create_dataset(
        name, (count,), h5py.vlen_dtype(np.uint8), maxshape=(None,), chunks=(min(count, 64),)
    )


def _as_row(content: bytes | np.ndarray, inputs: h5py.Dataset, name: str) -> np.ndarray:
    """Return a sample as a row of the data set.

    Raises:
        InputError: it differs from the first: a file instead of an array, another shape or type.
    """
    is_file = h5py.check_vlen_dtype(inputs.dtype) is not None
    if isinstance(content, bytes) and is_file:
        return np.frombuffer(content, np.uint8)
    if (
        isinstance(content, np.ndarray)
        and not is_file
        and content.shape == inputs.shape[1:]
        and (wire_dtype(content.dtype) == inputs.dtype)
    ):
        return content
    if isinstance(content, bytes):
        description = "an encoded file"
    else:
        description = f"an array {content.shape} of {content.dtype}"
    raise InputError(
        f"{name} is {description}, unlike the first sample; all samples of one file must be alike"
    )


def _write_several(
    group: h5py.Group, source: Source, target: TargetSpec, written: Sequence[int]
) -> None:
    """Write several targets by name; masks were written one by one before."""
    values = plain_targets(source)
    for name, part in target.parts.items():
        if name in values:
            group.create_dataset(name, data=np.asarray(values[name])[written].astype(part.dtype))
        else:
            group[name].attrs["ignore"] = _ignored_value(part)
        names = part.names
        if part.semantics.has_classes and not names:
            names = tuple(map(str, range(part.outputs)))
        if names:
            texts = list(map(printable, names))
            group[name].attrs.create("names", texts, dtype=h5py.string_dtype())
        group[name].attrs["kind"] = part.kind


def _write_target(
    group: h5py.Group, source: Source, target: TargetSpec, written: Sequence[int]
) -> None:
    """Write the only target; masks were written one by one before."""
    column = target.semantics.column
    if target.semantics.is_of_pixels:
        group[column].attrs["ignore"] = _ignored_value(target)
    else:
        group.create_dataset(
            column, data=np.asarray(plain_targets(source))[written].astype(target.dtype)
        )
    if target.semantics.has_classes:
        classes = target.names or tuple(map(str, range(target.outputs)))
        texts = list(map(printable, classes))
        group.create_dataset("classes", data=texts, dtype=h5py.string_dtype())
    elif target.names:
        texts = list(map(printable, target.names))
        group.create_dataset("target_names", data=texts, dtype=h5py.string_dtype())
    if not target.semantics.is_scalar:
        group[column].attrs["kind"] = target.kind


def _encode(mask: np.ndarray | None, target: TargetSpec) -> np.ndarray:
    """Encode a mask (height, width) losslessly as a PNG file, (bytes,) uint8."""
    assert mask is not None
    pixels = np.where(mask == target.void, _ignored_value(target), mask).astype(
        target.dtype if target.dtype == np.uint8 else np.uint16
    )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


def _ignored_value(target: TargetSpec) -> int:
    """Return the value, in the file, of mask pixels that are ignored."""
    if target.dtype == np.uint8:
        return 255
    return 65535
