"""Samples of several inputs: their sources, the transforms of each, and the input of a mask.

A source of several inputs returns a mapping of names to arrays, or to the bytes of image files,
from ``read(index)``. Each input has a list of transforms of its own and is prepared as if it were
the only one (:mod:`preprocess.record_pipeline`); the results are the fields of one structured row
(:class:`preprocess.sample.RecordSpec`), so that streams and stores carry it like any other.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from launch.errors import InputError, pluralize
from preprocess.base import (
    AUGMENT,
    INPUT,
    Source,
    UnreadableImage,
    UnreadableSample,
    as_input,
    check_input_name,
)
from preprocess.chain import count_common, count_fixed, split_scale, user_code_of
from preprocess.padding import Pad
from preprocess.sample import mask_of
from preprocess.target import is_mask
from preprocess.transforms import Transform, parse_transforms
from preprocess.transforms.base import MovesPixels, name_of
from preprocess.transforms.color import Standardize
from preprocess.transforms.decoding import Decode, with_full_decoding
from preprocess.transforms.on_device import split_device
from preprocess.user_code import running_user_code

MASK = "target"  # the name of a mask in a list of inputs that move together


@dataclass(frozen=True)
class RecordTransforms:
    """The transforms of samples of several inputs.

    Attributes:
        fields: the name and the transforms of each input, in the order of the record.
        together: the inputs whose pixels move alike.
        mask_input: the input whose transforms move the mask of a sample; empty without masks.
        pads: how inputs of unequal length are padded; each is followed by its mask.
    """

    fields: tuple[tuple[str, tuple[Transform, ...]], ...]
    together: tuple[str, ...] = ()
    mask_input: str = ""
    pads: tuple[Pad, ...] = ()

    @property
    def varying(self) -> tuple[str, ...]:
        """The inputs of which batches are cut to their longest row."""
        return tuple(pad.name for pad in self.pads if pad.varies)

    @property
    def by_input(self) -> dict[str, tuple[Transform, ...]]:
        """The transforms of each input."""
        return dict(self.fields)

    @property
    def owner(self) -> str:
        """The input that is prepared with the target of its sample."""
        return self.mask_input or self.fields[0][0]

    @property
    def moving(self) -> tuple[str, ...]:
        """The inputs whose pixels random transforms move alike; empty if there are none."""
        if not self.together or not _random_up_to_moves(self.by_input[self.together[0]]):
            return ()
        return self.together

    def draws(self, name: str) -> int:
        """Return the purpose of an input's random numbers; see :class:`preprocess.chain.Chain`."""
        if name in self.together:
            name = self.together[0]
        return AUGMENT + (zlib.crc32(name.encode()) << 8)

    def slice(self, start: Counts | None, stop: Counts | None) -> RecordTransforms:
        """Return some of the transforms of each input, by the counts of its first ones."""
        fields = tuple(
            (name, transforms[_count(start, name) : _count(stop, name)])
            for name, transforms in self.fields
        )
        return replace(self, fields=fields)


Counts: TypeAlias = int | Mapping[str, int]  # of transforms; of several inputs, by name
AnyTransforms: TypeAlias = tuple[Transform, ...] | RecordTransforms


def _count(counts: Counts | None, name: str) -> int | None:
    if counts is None or isinstance(counts, int):
        return counts
    return counts[name]


def lists_of(transforms: AnyTransforms) -> tuple[tuple[Transform, ...], ...]:
    """Return the list of each input's transforms; of a single input, one list."""
    if isinstance(transforms, RecordTransforms):
        return tuple(transforms.by_input.values())
    return (transforms,)


def transforms_by_input(transforms: AnyTransforms) -> dict[str, tuple[Transform, ...]]:
    """Return the transforms of each input by name."""
    if isinstance(transforms, RecordTransforms):
        return transforms.by_input
    return {INPUT: transforms}


def slice_transforms(
    transforms: AnyTransforms, start: Counts | None, stop: Counts | None
) -> AnyTransforms:
    """Return some of the transforms, by the counts of the first ones."""
    if isinstance(transforms, RecordTransforms):
        return transforms.slice(start, stop)
    assert not isinstance(start, Mapping)
    assert not isinstance(stop, Mapping)
    return transforms[start:stop]


def count_unscaled(transforms: AnyTransforms) -> Counts:
    """Count the transforms before a scale at the end."""
    if isinstance(transforms, RecordTransforms):
        return {name: len(split_scale(items)[0]) for name, items in transforms.fields}
    return len(split_scale(transforms)[0])


def count_all_fixed(transforms: AnyTransforms) -> Counts:
    """Count the transforms before the first random one or scale."""
    if isinstance(transforms, RecordTransforms):
        return {name: count_fixed(items) for name, items in transforms.fields}
    return count_fixed(transforms)


def count_all_common(lists: Sequence[AnyTransforms]) -> Counts:
    """Count the leading transforms that all lists share; see :func:`chain.count_common`."""
    first = lists[0]
    if not isinstance(first, RecordTransforms):
        return count_common([items for items in lists if isinstance(items, tuple)])
    records = [items for items in lists if isinstance(items, RecordTransforms)]
    return {
        name: count_common([items.by_input[name] for items in records]) for name, _ in first.fields
    }


def has_random_work(transforms: AnyTransforms) -> bool:
    """Return True if the host applies random transforms."""
    for items in lists_of(transforms):
        host = split_scale(split_device(items)[0])[0]
        if count_fixed(host) < len(host):
            return True
    return False


def is_any(counts: Counts) -> bool:
    """Return True if a count of transforms is not 0."""
    if isinstance(counts, int):
        return counts > 0
    return any(counts.values())


# ---- sources ------------------------------------------------------------------------------------


def is_record(source: Source) -> bool:
    """Return True if a source has several inputs, or one with a name."""
    return bool(find_inputs(source))


def find_inputs(source: Source) -> dict[str, bool]:
    """Return the names of a source's inputs, and whether they are files; {} for one array.

    Built-in sources tell names in ``input_names``. Of others, and for files, a sample is read.
    """
    names: Sequence[str] = getattr(source, "input_names", ())
    if not names and user_code_of(source) is None:
        return {}
    for index in range(len(source)):
        try:
            content: Any = source.read(index)
        except UnreadableSample:
            continue
        except Exception:  # the probe reports it, with its line
            return {}
        if not isinstance(content, Mapping):
            return {}
        for name in content:
            check_input_name(name, f"data.source: read({index})")
        return {
            str(name): isinstance(value, bytes | bytearray | memoryview)
            for name, value in content.items()
        }
    return dict.fromkeys(names, False)


class RecordReader(threading.local):
    """Reads the records of a source, each once while it is held.

    Args:
        source: returns mappings from ``read(index)``; or arrays, if its only input is padded.
        transforms: the transforms of the inputs.
    """

    def __init__(self, source: Source, transforms: RecordTransforms) -> None:
        self.source = source
        self._code = user_code_of(source)
        self._pads = transforms.pads
        masks = {mask_of(pad.name) for pad in transforms.pads}
        self._names = tuple(name for name in transforms.by_input if name not in masks)
        self._records: dict[int, Mapping[str, Any] | Exception] | None = None
        self._sizes: dict[int, tuple[str, tuple[int, ...]]] = {}

    @contextmanager
    def holding(self, indices: Iterable[int] = ()) -> Iterator[None]:
        """Hold the records that are read in this context; some of them are read at its start."""
        self._records = {}
        self._sizes.clear()
        try:
            with running_user_code(self._code, quick=True):
                for index in indices:
                    try:
                        self._records[index] = self._read_record(index)
                    except UnreadableSample as error:
                        self._records[index] = error
                    except Exception:  # it is read again where it is used, which explains it
                        continue
            yield
        finally:
            self._records = None

    def read(self, index: int, name: str) -> bytes | np.ndarray:
        """Read an input of a sample.

        Raises:
            UnreadableSample: the sample is missing or unreadable.
            InputError: the source returned something else, or lacks the input.
        """
        record = self._records.get(index) if self._records is not None else None
        if record is None:
            try:
                with running_user_code(self._code, quick=True):
                    record = self._read_record(index)
            except UnreadableSample as error:
                record = error
            if self._records is not None:
                self._records[index] = record
        if isinstance(record, Exception):
            raise record
        return as_input(record[name], f"data.source: read({index}), {name},")

    def held_inputs(self, indices: Iterable[int], name: str) -> list[Any] | None:
        """Return an input of held samples, as the source gave it; None if one could not be read."""
        assert self._records is not None
        records = [self._records.get(index) for index in indices]
        if not all(isinstance(record, Mapping) for record in records):
            return None
        return [record[name] for record in records]  # type: ignore[index]

    def check_size(self, index: int, name: str, size: tuple[int, ...]) -> None:
        """Check that inputs of a held sample that move alike have one size.

        Args:
            index: the index of the sample.
            name: the name of the input.
            size: its (height, width) before random transforms.

        Raises:
            UnreadableSample: another input has another size.
        """
        first, expected = self._sizes.setdefault(index, (name, size))
        if size != expected:
            raise UnreadableSample(
                self.source.name(index),
                f"{first} is {format_sizes(expected)} and {name} {format_sizes(size)}; inputs that "
                "move together must have one size",
            )

    def _read_record(self, index: int) -> Mapping[str, Any]:
        content: Any = self.source.read(index)
        listed = ", ".join(self._names)
        if self._names == (INPUT,) and not isinstance(content, Mapping):
            content = {INPUT: content}
        if not isinstance(content, Mapping):
            raise InputError(
                f"data.source: read({index}) returned a {type(content).__name__}; other samples "
                f"have the inputs {listed}, so it should return a mapping with these names"
            )
        if set(content) != set(self._names):
            raise InputError(
                f"data.source: read({index}) returned the inputs "
                f"{', '.join(map(str, content)) or 'none'}; other samples have {listed}"
            )
        if not self._pads:
            return content
        record = dict(content)
        for pad in self._pads:
            array = as_input(content[pad.name], f"data.source: read({index}), {pad.name},")
            if isinstance(array, bytes):
                raise InputError(f"data.pad: {pad.name}: files of images cannot be padded")
            try:
                record[pad.name], record[mask_of(pad.name)] = pad.apply(array)
            except UnreadableImage as error:
                raise UnreadableSample(
                    f"{self.source.name(index)} ({pad.name})", str(error)
                ) from error
        return record


def format_sizes(size: Sequence[int]) -> str:
    """Format a height and width, such as 4 x 6."""
    return " x ".join(map(str, size)) or "a number"


class InputSource:
    """One input of a source of several, as a source of its own.

    Args:
        reader: reads the records.
        input_name: the name of the input.
        has_target: whether it has the target of its sample; else all its samples are of one class.
    """

    restores_settings = True  # its reader does, once for all inputs

    def __init__(self, reader: RecordReader, input_name: str, has_target: bool) -> None:
        self.source = reader.source
        self.reader = reader
        self._input_name = input_name
        self._has_target = has_target
        if not has_target:
            self.labels = np.broadcast_to(np.int64(0), len(reader.source))
            self.classes = ("0", "1")

    def __len__(self) -> int:
        return len(self.source)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TARGETS and self.__dict__.get("_has_target"):
            return getattr(self.source, name)
        raise AttributeError(name)

    def read(self, index: int) -> bytes | np.ndarray:
        """Read the input of a sample; see :class:`preprocess.base.Source`."""
        return self.reader.read(index, self._input_name)

    def check_size(self, index: int, size: tuple[int, ...]) -> None:
        """Check the size of an input that moves as others; see :class:`RecordReader`."""
        self.reader.check_size(index, self._input_name, size)

    def name(self, index: int) -> str:
        """Return the sample's name, with that of the input."""
        return f"{self.source.name(index)} ({self._input_name})"

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """Return the order of the source."""
        return self.source.order(seed, epoch)


_OF_TARGETS = ("labels", "classes", "target", "targets", "weights", "read_target", "masks")


def input_sources(source: Source, transforms: RecordTransforms) -> dict[str, InputSource]:
    """Return the inputs of a source, each as a source; the owner's has its targets."""
    reader = RecordReader(source, transforms)
    return {
        name: InputSource(reader, name, name == transforms.owner) for name, _ in transforms.fields
    }


# ---- transforms of a spec -----------------------------------------------------------------------


def parse_record_transforms(
    items: object, source: Source, together: Sequence[str] = (), pads: Sequence[Pad] = ()
) -> AnyTransforms:
    """Parse a spec's transforms: a list for one input, or a mapping by input for several.

    Args:
        items: ``data.transforms``.
        source: the samples, of which one is read if they may have several inputs.
        together: ``data.together``.
        pads: ``data.pad``.

    Raises:
        InputError: names every wrong item, one line each; or the transforms are not those of the
            inputs.
    """
    inputs = find_inputs(source)
    if not inputs and not pads:
        return _parse_single(items, together)
    if not inputs:
        inputs = {INPUT: False}
        items = items if isinstance(items, Mapping) else {INPUT: items}
        if list(items[INPUT]) == ["decode"]:
            items = {}
    _check_pads(pads, inputs)
    listed = ", ".join(inputs)
    if not isinstance(items, Mapping):
        if list(items) not in ([], ["decode"]):  # type: ignore[call-overload]
            example = ", ".join(f"{name}: [...]" for name in inputs)
            raise InputError(
                f"transforms: a list is for one input, and samples have {listed}; write "
                f"transforms: {{{example}}}"
            )
        items = {}
    unknown = [name for name in items if name not in inputs]
    if unknown:
        raise InputError(f"transforms: no input is named {unknown[0]!r}; there are {listed}")
    fields = []
    for name, is_file in inputs.items():
        default = ("decode",) if is_file else ()
        try:
            fields.append((name, parse_transforms(items.get(name, default))))
        except InputError as error:
            text = str(error).replace("transforms", f"transforms.{name}")
            raise InputError(text) from None
        if any(pad.name == name for pad in pads):
            _check_padded(name, fields[-1][1])
            fields.append((mask_of(name), ()))
    transforms = RecordTransforms(tuple(fields), pads=tuple(pads))
    return _with_moves(transforms, source, together)


def _check_pads(pads: Sequence[Pad], inputs: Mapping[str, bool]) -> None:
    for pad in pads:
        if pad.name not in inputs:
            raise InputError(f"pad: no input is named {pad.name!r}; there are {', '.join(inputs)}")
        if mask_of(pad.name) in inputs:
            raise InputError(
                f"pad: {pad.name}: its mask would be called {mask_of(pad.name)}, like another input"
            )


def _check_padded(name: str, items: Sequence[Transform]) -> None:
    if items and isinstance(items[-1], Standardize):
        raise InputError(
            f"transforms.{name}: standardize would count the numbers that fill its rows; "
            "standardize padded inputs in your data, or in the network"
        )


def _parse_single(items: object, together: Sequence[str]) -> tuple[Transform, ...]:
    if together:
        raise InputError(
            "together: samples have one input; its mask moves with it, so leave this out"
        )
    if isinstance(items, Mapping):
        if set(items) - {"input"}:
            raise InputError(
                f"transforms: {next(iter(items))}: samples have one input, without a name; write a "
                "list"
            )
        items = items.get("input", ())
    return parse_transforms(items)


def _with_moves(
    transforms: RecordTransforms, source: Source, together: Sequence[str]
) -> RecordTransforms:
    """Return transforms whose inputs ``together`` move alike, with the input of a mask.

    Raises:
        InputError: they cannot move alike, or it is not clear with which input a mask moves.
    """
    names = tuple(name for name in together if name != MASK or name in transforms.by_input)
    unknown = [name for name in names if name not in transforms.by_input]
    if unknown:
        raise InputError(
            f"together: no input is named {unknown[0]!r}; there are "
            f"{', '.join(transforms.by_input)}"
        )
    _check_alike(transforms, names)
    mask_input = ""
    if is_mask(source):
        mask_input = _find_mask_input(transforms, names)
    moved = {*names, mask_input}
    return RecordTransforms(
        tuple(
            (name, with_full_decoding(items) if name in moved else items)
            for name, items in transforms.fields
        ),
        names,
        mask_input,
        transforms.pads,
    )


def _find_mask_input(transforms: RecordTransforms, together: Sequence[str]) -> str:
    if together:
        return together[0]
    pictures = [
        name
        for name, items in transforms.fields
        if any(isinstance(item, Decode | MovesPixels) for item in items)
    ]
    if len(pictures) == 1:
        return pictures[0]
    raise InputError(
        "together: it is not clear with which input a mask moves; write together: [INPUT, target] "
        f"with one of {', '.join(transforms.by_input)}"
    )


def _check_alike(transforms: RecordTransforms, names: Sequence[str]) -> None:
    """Check that inputs draw the same random numbers for all that moves their pixels.

    Raises:
        InputError: they do not.
    """
    moves = {name: _random_up_to_moves(transforms.by_input[name]) for name in names}
    for name in names[1:]:
        if moves[name] != moves[names[0]]:
            raise InputError(
                f"together: {names[0]} and {name} cannot move alike: their random transforms are "
                f"{_list(moves[names[0]])} and {_list(moves[name])}; both need the same "
                "random_crop, random_resized_crop, flip and rotate in the same order, before "
                "random transforms that only one of them has"
            )


def _random_up_to_moves(items: Sequence[Transform]) -> list[Transform]:
    """Return the random transforms up to the last that moves pixels, as they draw."""
    random = [_without_filter(item) for item in items if item.is_random]
    last = max(
        (number for number, item in enumerate(random, 1) if isinstance(item, MovesPixels)),
        default=0,
    )
    return random[:last]


def _without_filter(item: Any) -> Any:
    if hasattr(item, "filter"):
        return replace(item, filter="bilinear")
    return item


def _list(items: Sequence[Transform]) -> str:
    return ", ".join(map(name_of, items)) or pluralize(0, "transform")
