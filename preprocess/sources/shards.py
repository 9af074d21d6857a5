"""Data sets in a few large files (shards) of many records, read sequentially.

A shard is scanned once for the offsets and targets of its records. The index is stored in a hidden
file beside the shards if that folder is writable, and used as long as names, sizes and times are
the same. Records are then read by offset, so a position in an epoch is a number, not the state of a
reader.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast
from zipfile import BadZipFile

import numpy as np

from launch.errors import InputError, encode_name, pluralize
from preprocess.base import (
    ORDER,
    UnreadableImage,
    UnreadableSample,
    flatten_rows,
    printable,
    rng_for,
)
from preprocess.fingerprint import FULL_READ_BYTES, SampleIds, hash_each, identify_by_content
from preprocess.record_target import parse_each, single_request
from preprocess.sources.masks import Masks, PixelClasses
from preprocess.sources.targets import (
    AnyTargets,
    TargetedSource,
    Targets,
    encode_label_sets,
    parse_targets,
)
from preprocess.splits import (
    TRAIN,
    check_numbered,
    choose_held_out,
    find_split_word,
    find_splits,
    mark_stand_in,
)
from preprocess.target import TARGET, Request, TargetWish, requested_semantics
from preprocess.transient_errors import read_with_retries

OPEN_FILES = 64  # open shards per process
BUFFER = 1024  # records in the shuffle buffer
_VERSION = 2  # of the scan; an index of another version is rebuilt

Value = int | float | str | tuple[int | float | str, ...]


class Record(NamedTuple):
    """A record of a shard.

    Attributes:
        offset: in the shard, in bytes.
        size: in bytes.
        value: its target as in the file; of a mask, offset and size of its image in the shard.
        weight: None if it has none.
        parts: offset and size of each of several inputs.
        further: the targets after the first, if there are several.
    """

    offset: int
    size: int
    value: Value
    weight: float | None = None
    parts: tuple[tuple[int, int], ...] = ()
    further: tuple[Value, ...] = ()


@dataclass(frozen=True)
class ShardIndex:
    """The positions of the records in shards, in order.

    Attributes:
        shards: the paths.
        starts: (shards + 1,) integers: records ``starts[i]`` to ``starts[i + 1]`` are in shard i.
        offsets: (records,) in bytes.
        sizes: (records,) in bytes.
        values: (records,) targets as in the file: integers, floats or text; (records, numbers) if
            each has several; concatenated if their lengths differ.
        lengths: (records,) how many of ``values`` belong to each record; empty if all have as many.
        weights: (records,) float64; empty if there are none.
        parts: (records, inputs, 2) offset and size of each of several inputs; empty for one.
        further: values and lengths of the targets after the first, if there are several.
    """

    shards: tuple[str, ...]
    starts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray
    parts: np.ndarray
    further: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    def of_target(self, number: int) -> ShardIndex:
        """Return the index with the values of one of several targets, by its number."""
        if not number:
            return replace(self, further=())
        values, lengths = self.further[number - 1]
        return replace(self, values=values, lengths=lengths, further=())


class Format(Protocol):
    """The interface of one kind of shard."""

    pattern: str  # a regular expression for file names

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of several inputs; empty for one."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of several targets; empty for one."""

    def scan(self, shard: str) -> Iterable[Record]:
        """Yield the records of a shard, in order.

        Raises:
            InputError: the shard is damaged, or a record has no target.
        """

    def image(self, record: bytes) -> bytes | np.ndarray:
        """Return the image file in a record, or its array.

        Raises:
            UnreadableImage: the record is damaged or has none.
        """


class RecordFormat(Format, Protocol):
    """The interface of shards whose records have several inputs."""

    def parse_input(self, name: str, content: bytes) -> bytes | np.ndarray:
        """Return an input of a record: its file or array.

        Raises:
            UnreadableImage: it is damaged.
        """


class Shards(TargetedSource):
    """The records of some shards; classes are the distinct labels, ascending.

    Args:
        shards: the paths, in order.
        form: how to read them; its ``repr`` identifies its options.
        buffer: size of the shuffle buffer, in records.
        target: the ``data.target`` of the spec.
        masks: the classes of mask pixels.
        are_lists: names of targets that are lists of labels, even if all lists are equally long.

    Attributes:
        are_lists: names of targets that are lists of labels.
    """

    _mask_number = 0

    def __init__(
        self,
        shards: list[str],
        form: Format,
        buffer: int = BUFFER,
        target: Request = None,
        masks: PixelClasses = PixelClasses(),  # noqa: B008
        are_lists: Collection[str] = (),
    ) -> None:
        if not shards:
            raise InputError("no shards")
        if buffer < 1:
            raise InputError(f"buffer: {pluralize(buffer, 'record')}; it must be at least 1")
        self._index = load_index(tuple(shards), form)
        self.places = tuple(shards)
        self._form = form
        self.input_names = form.input_names
        self._buffer = buffer
        index = self._index
        count = len(self._index.offsets)
        weights = index.weights if len(index.weights) else None
        self.are_lists = set(are_lists)
        targets: AnyTargets
        if not form.target_names:
            targets = self._parsed(TARGET, 0, single_request(target, shards[0]), masks)
        else:
            targets = parse_each(
                form.target_names,
                target,
                shards[0],
                lambda name, single: self._parsed(
                    name, form.target_names.index(name), single, masks
                ),
            )
        super().__init__(targets, weights, count)

    def _parsed(
        self, name: str, number: int, request: TargetWish | None, masks: PixelClasses
    ) -> Masks | Targets:
        """Parse a target of all records by its name and number among several."""
        if requested_semantics(request).is_of_pixels:
            self._mask_number = number
            return Masks(len(self._index.offsets), masks, self.name, self.mask)
        index = self._index.of_target(number)
        if name in self.are_lists or _are_lists(index, request):
            self.are_lists.add(name)
        origin = self._index.shards[0]
        return _parse_targets(index, request, origin, self.name, name in self.are_lists)

    def read(self, index: int) -> Any:
        """Read the image file of a record, or its array; see :class:`~preprocess.base.Source`."""
        if self.input_names:
            form = cast(RecordFormat, self._form)
            try:
                return {
                    name: form.parse_input(name, self._piece(index, *span))
                    for name, span in zip(
                        self.input_names, self._index.parts[index].tolist(), strict=True
                    )
                }
            except UnreadableImage as error:
                raise UnreadableSample(self.name(index), str(error)) from None
        offset = int(self._index.offsets[index])
        size = int(self._index.sizes[index])
        record = self._piece(index, offset, size)
        try:
            return self._form.image(record)
        except UnreadableImage as error:
            raise UnreadableSample(self.name(index), str(error)) from None

    def name(self, index: int) -> str:
        """Return the shard and the number of the record in it, from 0."""
        shard = self._shard(index)
        return printable(f"{self._index.shards[shard]}[{index - self._index.starts[shard]}]")

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return shards in random order, each front to back, through a shuffle buffer.

        So reading stays within the buffer's length of a front that passes through each shard once.

        Returns:
            (n,) int64.
        """
        rng = rng_for(seed, ORDER, epoch)
        starts = self._index.starts
        front = [
            np.arange(starts[shard], starts[shard + 1])
            for shard in rng.permutation(len(starts) - 1)
        ]
        return shuffle(np.concatenate(front), self._buffer, rng)

    def sample_ids(self) -> SampleIds:
        """Return the ids of the samples; shard and position identify large records."""
        sizes = self._index.sizes
        names = None
        if sizes.sum() > FULL_READ_BYTES:
            starts = np.diff(self._index.starts)
            files = list(map(os.path.basename, self._index.shards))
            shards = np.repeat(files, starts).tolist()
            numbers = np.concatenate(list(map(np.arange, starts))).tolist()
            names = hash_each(
                f"{shard}[{number}]" for shard, number in zip(shards, numbers, strict=True)
            )
        ids = identify_by_content(self, int(sizes.sum()), "record", names)
        if names is None:
            return ids
        return replace(ids, hashes={**ids.hashes, "size": sizes.astype(np.uint64) + 1})

    @cached_property
    def _open(self) -> OrderedDict[int, int]:
        """The open file descriptors, which other processes do not share."""
        return OrderedDict()

    def _shard(self, index: int) -> int:
        return int(np.searchsorted(self._index.starts, index, side="right")) - 1

    def mask(self, index: int) -> bytes:
        """Read the file of a record's mask, whose location is the target's value."""
        return self._piece(index, *self._mask_places[index].tolist())

    @cached_property
    def _mask_places(self) -> np.ndarray:
        """Where the masks lie, (records, 2): offset and size."""
        return self._index.of_target(self._mask_number).values

    def _piece(self, index: int, offset: int, size: int) -> bytes:
        return read_with_retries(
            lambda: os.pread(self._file(self._shard(index)), size, offset),
            lambda: self.name(index),
            again=lambda: self._close(self._shard(index)),
        )

    def _close(self, shard: int) -> None:
        if shard in self._open:
            with suppress(OSError):
                os.close(self._open.pop(shard))

    def _file(self, shard: int) -> int:
        """Return a descriptor of the shard; the least recently used one is closed."""
        if shard not in self._open:
            self._open[shard] = os.open(self._index.shards[shard], os.O_RDONLY)
            if len(self._open) > OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(shard)
        return self._open[shard]


def _parse_targets(
    index: ShardIndex,
    request: TargetWish | None,
    origin: str,
    name: Callable[[int], str],
    are_lists: bool,
) -> Targets:
    """Parse the targets of an index; single integers or text are classes by default."""
    if are_lists:
        if request is not None and not request.semantics.has_label_sets:
            raise InputError(
                f"{origin}: records have lists of labels; that is multilabel, not {request.kind}"
            )
        return encode_label_sets(_label_sets(index), request, origin, name)
    is_class = request is None and index.values.ndim == 1 and index.values.dtype.kind != "f"
    return parse_targets(index.values, TargetWish("class") if is_class else request, origin, name)


def _are_lists(index: ShardIndex, request: TargetWish | None) -> bool:
    """Return True if targets are lists of labels, not a zero or one per label."""
    if len(index.lengths):
        return True
    is_multilabel = requested_semantics(request).has_label_sets
    if index.values.dtype.kind == "U":
        return is_multilabel or index.values.ndim == 2
    return is_multilabel and not np.isin(index.values, (0, 1)).all()


def _label_sets(index: ShardIndex) -> list[set[object]]:
    """Return the labels of each record, if records have lists of them."""
    values = index.values
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    if len(index.lengths):
        rows = np.split(values, np.cumsum(index.lengths)[:-1])
    else:
        rows = list(flatten_rows(values))
    return [set(row.tolist()) for row in rows]


def shuffle(sequence: np.ndarray, buffer: int, rng: np.random.Generator) -> np.ndarray:
    """Pass a sequence through a shuffle buffer: each step draws one item and adds the next.

    An item at index i leaves at index i - buffer + 1 or later. A buffer of 1 changes nothing; one
    as long as the sequence gives a uniformly random permutation.

    >>> shuffle(np.arange(5), 1, np.random.default_rng(0)).tolist()
    [0, 1, 2, 3, 4]
    """
    count = len(sequence)
    occupied = np.minimum(buffer, count - np.arange(count))
    draws = (rng.random(count) * occupied).astype(np.int64).tolist()
    items = sequence.tolist()
    inside = items[:buffer]
    leaving = []
    for step, draw in enumerate(draws):
        leaving.append(inside[draw])
        # At the end of the sequence, the last item fills the empty slot.
        if step + buffer < count:
            inside[draw] = items[step + buffer]
        else:
            inside[draw] = inside[-1]
            inside.pop()
    return np.array(leaving, sequence.dtype)


def find_shards(path: str, pattern: str) -> tuple[list[str], list[str]]:
    """Find the training and validation shards at a path.

    Args:
        path: a shard; or a pattern of shards, with ``*`` or ``{000..127}``; or a folder of shards,
            which may be in folders by split, or have the split in their names; see
            :mod:`preprocess.splits`.
        pattern: a regular expression for file names.

    Raises:
        InputError: there are none, a numbered one is missing, or names do not show which are for
            training.
    """
    if not os.path.isdir(path):
        matches = sorted(matches for name in _expand(path) for matches in _matching(name))
        if glob.has_magic(path):
            check_numbered(matches)
        return _by_name(path, matches)
    folders = {
        entry.name: shards
        for entry in os.scandir(path)
        if entry.is_dir() and (shards := _shards_in(entry.path, pattern))
    }
    splits = find_splits(folders, path)
    if TRAIN in splits:
        held_out, _ = choose_held_out(splits)
        check_numbered([shard for shards in folders.values() for shard in shards])
        return folders[splits[TRAIN]], folders.get(held_out or "", [])
    matches = _shards_in(path, pattern)
    if not matches:
        raise InputError(f"{path}: no shards here (files whose names match {pattern})")
    check_numbered(matches)
    return _by_name(path, matches)


def _shards_in(folder: str, pattern: str) -> list[str]:
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    return sorted(os.path.join(folder, name) for name in names if re.search(pattern, name))


def _by_name(path: str, shards: list[str]) -> tuple[list[str], list[str]]:
    """Divide shards by the split in their names; all are for training if none has one."""
    splits: dict[str, list[str]] = {}
    for shard in shards:
        splits.setdefault(find_split_word(os.path.basename(shard)) or "", []).append(shard)
    if len(splits) == 1:  # the path names one split
        return shards, []
    first = os.path.basename(splits.get(TRAIN, [""])[0])
    begins_with_split = find_split_word(re.split(r"[\W\d_]", first)[0]) == TRAIN
    if "" in splits and not begins_with_split:
        if set(splits) == {"", TRAIN}:  # the word is part of another name
            return shards, []
        raise InputError(
            f"{path}: the names of some shards say {' or '.join(sorted(filter(None, splits)))}, "
            f"and {os.path.basename(splits[''][0])} says nothing; all must contain train, "
            "validation or test"
        )
    if TRAIN not in splits:
        raise InputError(
            f"{path}: no name of a shard says train, and some say {' or '.join(sorted(splits))}; "
            "name the shards for training in data.path"
        )
    held_out, _ = choose_held_out({split: split for split in splits if split})
    return splits[TRAIN], splits.get(held_out or "-", [])


def _expand(path: str) -> list[str]:
    """Expand ``a{08..10}`` as webdataset writes it: a08, a09, a10."""
    braces = re.search(r"\{(\d+)\.\.(\d+)\}", path)
    if braces is None:
        return [path]
    first, last = braces.groups()
    return [
        expanded
        for number in range(int(first), int(last) + 1)
        for expanded in _expand(
            path[: braces.start()] + f"{number:0{len(first)}}" + path[braces.end() :]
        )
    ]


def _matching(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    matches = glob.glob(path)
    if not matches:
        raise InputError(f"{path}: file not found")
    return matches


# of a saved index
_COLUMNS = (
    "starts",
    "offsets",
    "sizes",
    "values",
    "lengths",
    "weights",
    "parts",
)
_NO_PARTS = np.empty((0, 0, 2), np.int64)


def load_index(shards: tuple[str, ...], form: Format) -> ShardIndex:
    """Load the stored index of some shards if it fits; else scan them and store it."""
    names = encode_name("\n".join(map(os.path.basename, shards)))
    digest = hashlib.sha256(names).hexdigest()[:16]
    path = os.path.join(os.path.dirname(shards[0]), f".index-{digest}.npz")
    identity = _identity(shards, form)
    index = _load_saved(path, shards, identity)
    if index is None:
        index = _scan(shards, form)
        _save_index(index, identity, path)
    return index


def _identity(shards: tuple[str, ...], form: Format) -> str:
    """Return what the index depends on; it is rebuilt when this changes."""
    stats = [os.stat(shard) for shard in shards]
    files = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    return json.dumps([_VERSION, repr(form), files])


def _load_saved(path: str, shards: tuple[str, ...], identity: str) -> ShardIndex | None:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
            if str(saved["identity"]) == identity and not _is_lossy(saved["values"]):
                columns = {name: saved[name] for name in _COLUMNS if name in saved}
                further: list[tuple[np.ndarray, np.ndarray]] = []
                while f"values_{len(further) + 1}" in saved:
                    number = len(further) + 1
                    further.append((saved[f"values_{number}"], saved[f"lengths_{number}"]))
                if any(_is_lossy(values) for values, _ in further):
                    return None
                return ShardIndex(shards, **{"parts": _NO_PARTS, **columns}, further=tuple(further))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # it is missing or damaged
        pass
    return None


def _is_lossy(values: np.ndarray) -> bool:
    """Return True if text may have lost bytes that are not UTF-8, so that labels look equal."""
    if values.dtype.kind != "U":
        return False
    return bool((np.char.find(values, "\ufffd") >= 0).any())


def _save_index(index: ShardIndex, identity: str, path: str) -> None:
    partial = f"{path}.partial-{os.getpid()}"
    try:
        with open(partial, "wb") as file:
            columns = {name: getattr(index, name) for name in _COLUMNS}
            for number, (values, lengths) in enumerate(index.further, 1):
                columns |= {f"values_{number}": values, f"lengths_{number}": lengths}
            np.savez(file, identity=identity, **columns)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:  # a read-only folder or full disk: scan again next time
        with suppress(OSError):
            os.unlink(partial)


def _scan(shards: tuple[str, ...], form: Format) -> ShardIndex:
    records_of_shards = [[Record(*record) for record in form.scan(shard)] for shard in shards]
    records = [record for shard in records_of_shards for record in shard]
    if not records:
        raise InputError(
            f"{shards[0]}: no records in {'it' if len(shards) == 1 else 'these shards'}"
        )
    starts = np.cumsum([0, *map(len, records_of_shards)])
    offsets, sizes = (np.array([record[field] for record in records]) for field in (0, 1))
    weights = [record.weight for record in records if record.weight is not None]
    if weights and len(weights) < len(records):
        raise InputError(f"{shards[0]}: some records have a weight and some have none")
    values, lengths = _columns(shards[0], [record.value for record in records])
    further = tuple(
        _columns(shards[0], values_of_target)
        for values_of_target in zip(*(record.further for record in records), strict=True)
    )
    parts = (
        np.array([record.parts for record in records], np.int64) if records[0].parts else _NO_PARTS
    )
    return ShardIndex(
        shards,
        starts,
        offsets,
        sizes,
        values,
        lengths,
        np.array(weights, np.float64),
        parts,
        further,
    )


def _columns(shard: str, values: Sequence[Value]) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of all records, and the length of each if they differ."""
    are_lists = any(isinstance(value, tuple) for value in values)
    lists = [value if isinstance(value, tuple) else (value,) for value in values]
    numbers = [value for numbers_of_record in lists for value in numbers_of_record]
    if len({isinstance(value, str) for value in numbers}) > 1:
        raise InputError(
            f"{shard}: labels are partly numbers and partly text; all must be of one kind"
        )
    if not are_lists:
        return np.array(values), np.empty(0, np.int64)
    if not numbers:
        raise InputError(f"{shard}: the lists of labels of all records are empty")
    lengths = np.array(list(map(len, lists)))
    if (lengths == lengths[0]).all():
        return np.array(lists), np.empty(0, np.int64)
    return np.array(numbers), lengths


def open_shards(
    form: Format, path: str, buffer: int, target: Request, masks: PixelClasses
) -> tuple[Shards, Shards | None]:
    """Open the training records at a path and, if there are some, validation records."""
    train, held_out = find_shards(path, form.pattern)
    train_shards = Shards(train, form, buffer, target, masks)
    if not held_out:
        return train_shards, None
    shared = masks if train_shards.masks is None else train_shards.masks.classes
    validation = Shards(held_out, form, buffer, target, shared, train_shards.are_lists)
    folder, name = os.path.split(held_out[0])
    is_by_folder = folder != os.path.dirname(train[0])
    if is_by_folder:
        split = os.path.basename(folder)
    else:
        split = find_split_word(name) or ""
    mark_stand_in(validation, split, ", ".join(held_out[:3]))
    return train_shards, validation
