"""Tar shards as webdataset writes them: ``000017.jpg`` and ``000017.cls`` are one sample.

A target is text (a number, a class name, or several numbers), JSON, an array, or a mask's image.
The members of a sample are consecutive; their names are equal up to the first dot of the last
component.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, cast

import numpy as np

from launch.errors import InputError
from preprocess.base import UnreadableImage
from preprocess.files.npz import is_npy, parse_npy
from preprocess.record_target import check_names_of, request_of, single_request
from preprocess.sources.input_names import parse_input_names, parse_target_names
from preprocess.sources.masks import PixelClasses
from preprocess.sources.shards import BUFFER, Record, Shards, Value, open_shards
from preprocess.target import Request, TargetWish, requested_semantics


@dataclass(frozen=True)
class WebDataset:
    """The format: which members of a sample are the image and its target.

    Args:
        image_key: extensions, separated by semicolons; the first existing one is the image or
            array.
        label_key: extension of the target's member: a number, class name or several numbers as
            text, the same as ``json``, an array as ``npy``, or the image of a mask.
        weight_key: extension of the weight's member, a number as text; None for none.
        is_mask: True if targets are masks.
        is_text: True if targets are class names, even if they look like fractions.
        is_multilabel: True if a sample may have no label, or several.
    """

    image_key: str = "jpg;jpeg;png;webp;npy;jpe;jfif;bmp;tif;tiff;gif;ppm;pgm;pnm;jp2"
    label_key: str = "cls"
    weight_key: str | None = None
    is_mask: bool = False
    is_text: bool = False
    is_multilabel: bool = False

    pattern = r"\.tar$"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of several inputs; empty for one."""
        return ()

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of several targets; empty for one."""
        return ()

    def scan(self, shard: str) -> Iterator[Record]:
        """Yield offset, size, target and weight of each image.

        Raises:
            InputError: it is not a tar file, is damaged or compressed, or a sample lacks image or
                target.
        """
        try:
            with open(shard, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                for key, group in groupby(_members(tar), lambda member: member[0]):
                    for members in _samples((extension, span) for _, extension, span in group):
                        yield self._sample(f"{shard}[{key}]", file.fileno(), members)
        except tarfile.TarError as error:
            raise InputError(f"{shard}: not a whole and uncompressed tar file: {error}") from None

    def image(self, record: bytes) -> bytes | np.ndarray:
        """Return the record, which is an image file, or parse its array."""
        if is_npy(record):
            return parse_npy(record)
        return record

    def _sample(self, name: str, file: int, members: dict[str, tuple[int, int]]) -> Record:
        image = next((members[key] for key in self.image_key.split(";") if key in members), None)
        if image is None or self.label_key not in members:
            raise InputError(
                f"{name}: a sample must have an image ({self.image_key}) and a label "
                f"({self.label_key}); this one has {', '.join(members)} (options: image_key, "
                "label_key)"
            )
        value = self.read_value(name, file, members)
        return Record(*image, value, self._weight(name, file, members))

    def read_value(self, name: str, file: int, members: Mapping[str, tuple[int, int]]) -> Value:
        """Read the target of a sample from its members; of a mask return where it lies.

        Args:
            name: the name of the sample, for messages.
            file: the descriptor of the shard.
            members: offset and size of each member by its extension.
        """
        offset, size = members[self.label_key]
        if self.is_mask:
            return offset, size
        return self._target(name, os.pread(file, size, offset))

    def _target(self, name: str, content: bytes) -> Value:
        """Parse the target in a member."""
        try:
            if is_npy(content):
                return _value(parse_npy(content).tolist())
            text = content.decode(errors="backslashreplace").strip()
            if self.is_multilabel and not text:
                return ()
            if self.label_key.endswith("json"):
                return _value(json.loads(text))
        except (UnreadableImage, ValueError, TypeError) as error:
            raise InputError(f"{name}: its {self.label_key} is not a target: {error}") from error
        if self.is_text and not _is_whole(text):
            return text
        return _parse_text(text)

    def _weight(self, name: str, file: int, members: dict[str, tuple[int, int]]) -> float | None:
        if self.weight_key is None:
            return None
        try:
            offset, size = members[self.weight_key]
            return float(os.pread(file, size, offset))
        except (KeyError, ValueError):
            raise InputError(
                f"{name}: no weight: its member {self.weight_key} should be a number (options: "
                f"weight_key)"
            ) from None


@dataclass(frozen=True)
class WebDatasetRecords(WebDataset):
    """The format of samples of several inputs or targets, each a member.

    Args:
        inputs: the name of each input, and the extensions of its member, separated by semicolons;
            the first existing one is used. Empty for one input.
        targets: the name of each target, and the format that reads it; empty for one target.
    """

    inputs: tuple[tuple[str, str], ...] = ()
    targets: tuple[tuple[str, WebDataset], ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(name for name, _ in self.inputs)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the targets."""
        return tuple(name for name, _ in self.targets)

    def parse_input(self, name: str, content: bytes) -> bytes | np.ndarray:
        """Return an input of a record: an image file, or an array; see :class:`Shards`."""
        if is_npy(content):
            return parse_npy(content)
        extensions = dict(self.inputs)[name].split(";")
        if any(extension.rpartition(".")[2] in _PICTURES for extension in extensions):
            return content
        try:
            numbers = np.array(json.loads(f"[{content.decode()}]")[0], ndmin=1)
        except (UnicodeDecodeError, ValueError) as error:
            raise UnreadableImage(f"{name} is neither an image nor numbers: {error}") from None
        if numbers.dtype.kind not in "iufb":
            raise UnreadableImage(f"{name} is neither an image nor numbers")
        return numbers

    def _sample(self, name: str, file: int, members: dict[str, tuple[int, int]]) -> Record:
        parts = []
        for input_name, extensions in self.inputs:
            span = next((members[key] for key in extensions.split(";") if key in members), None)
            if span is None:
                raise InputError(
                    f"{name}: a sample must have the input {input_name} ({extensions}); this one "
                    f"has {', '.join(members)} (options: inputs)"
                )
            parts.append(span)
        if parts:
            members = {**members, self.image_key: parts[0]}
        for target_name, form in self.targets:
            if form.label_key not in members:
                raise InputError(
                    f"{name}: a sample must have the target {target_name} ({form.label_key}); this "
                    f"one has {', '.join(members)} (options: targets)"
                )
        sample = super()._sample(name, file, members)
        further = tuple(form.read_value(name, file, members) for _, form in self.targets[1:])
        if not parts:
            return sample._replace(further=further)
        sizes = sum(size for _, size in parts)
        return sample._replace(size=sizes, parts=tuple(parts), further=further)


_PICTURES = frozenset(WebDataset.image_key.split(";")) - {"npy"}


def _parse_inputs(inputs: Any) -> tuple[tuple[str, str], ...]:
    """Return the name and the extensions of each of several inputs.

    Raises:
        InputError: networks cannot use the name of an input.
    """
    named = parse_input_names(inputs)
    if isinstance(named, str):
        named = {named: named}
    return tuple((name, extensions.lower()) for name, extensions in named.items())


def open_webdataset(
    path: str,
    image_key: str = WebDataset.image_key,
    label_key: str | None = None,
    weight_key: str | None = None,
    pixels: Mapping[str, int] | None = None,
    buffer: int = BUFFER,
    inputs: str | Sequence[str] | Mapping[str, str] | None = None,
    targets: str | Sequence[str] | Mapping[str, str] | None = None,
    *,
    target: Request = None,
) -> tuple[Shards, Shards | None]:
    """Open the shards at a path; see :func:`preprocess.sources.shards.find_shards`.

    Args:
        path: a file, a pattern or a folder.
        image_key: see :class:`WebDataset`.
        label_key: see :class:`WebDataset`; by default ``mask.png`` for masks, else ``cls``.
        weight_key: see :class:`WebDataset`.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        buffer: size of the shuffle buffer, in samples.
        inputs: the extension of the input's member, instead of ``image_key``; of several inputs, a
            list of extensions, or a mapping of names to extensions.
        targets: the extension of the target's member, instead of ``label_key``; of several targets,
            a list of extensions, or a mapping of names to extensions.
        target: the ``data.target`` of the spec.
    """
    named_targets: str | dict[str, str] | None = label_key
    if targets is not None:
        named_targets = parse_target_names(targets)
    if isinstance(inputs, str):
        image_key = inputs
        inputs = None
    target = _with_guessed_masks(target, named_targets, path)
    first_form: WebDataset
    forms: tuple[tuple[str, WebDataset], ...] = ()
    if isinstance(named_targets, dict):
        forms = tuple(
            (name, _form(image_key, extension, weight_key, request_of(target, name)))
            for name, extension in named_targets.items()
        )
        first_form = forms[0][1]
    else:
        first_form = _form(image_key, named_targets, weight_key, single_request(target, path))
    form = first_form
    if inputs is not None or forms:
        form = WebDatasetRecords(
            **{field.name: getattr(form, field.name) for field in fields(WebDataset)},
            inputs=() if inputs is None else _parse_inputs(inputs),
            targets=forms,
        )
    return open_shards(form, path, buffer, target, PixelClasses.from_request(pixels, target))


def _form(
    image_key: str, label_key: str | None, weight_key: str | None, target: TargetWish | None
) -> WebDataset:
    """Return the format that reads one target."""
    semantics = requested_semantics(target)
    if not label_key:
        label_key = WebDataset.label_key
        if semantics.is_of_pixels:
            label_key = "mask.png"
    return WebDataset(
        image_key,
        label_key,
        weight_key,
        semantics.is_of_pixels,
        is_text=semantics.is_scalar,
        is_multilabel=semantics.has_label_sets,
    )


def _with_guessed_masks(
    target: Request, extensions: str | Mapping[str, str] | None, path: str
) -> Request:
    """Return the request with masks for targets whose members are images."""
    if not isinstance(extensions, Mapping):
        if target is None and extensions is not None and extensions.endswith(_IMAGES):
            return TargetWish("mask")
        return target
    check_names_of(target, tuple(extensions), path)
    requests = {} if target is None else dict(cast(Mapping[str, TargetWish], target))
    for name, extension in extensions.items():
        if extension.endswith(_IMAGES):
            requests.setdefault(name, TargetWish("mask"))
    return requests


# formats of masks; JPEG would change their numbers
_IMAGES = (
    "png",
    "tif",
    "tiff",
    "bmp",
    "gif",
)


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _parse_text(text: str) -> Value:
    """Parse an integer, a fraction, or several numbers separated by spaces or commas; else text."""
    if _is_whole(text):
        return int(text)
    numbers = text.replace(",", " ").split()
    try:
        parsed = tuple(int(number) if _is_whole(number) else float(number) for number in numbers)
    except ValueError:
        return text
    if not parsed:
        return text
    if len(parsed) > 1:
        return parsed
    return parsed[0]


def _value(value: object) -> Value:
    """Return a target from JSON or an array.

    Raises:
        TypeError: it is not a target.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return tuple(int(item) if isinstance(item, bool) else item for item in value)
    raise TypeError(f"{str(value)[:50]} is neither a number, nor a text, nor a list of these")


def _samples(
    members: Iterable[tuple[str, tuple[int, int]]],
) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the samples among members of one name: a repeated extension begins another one."""
    sample: dict[str, tuple[int, int]] = {}
    for extension, span in members:
        if extension in sample:
            yield sample
            sample = {}
        sample[extension] = span
    yield sample


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield key, extension, and (offset, size) of each file."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep them all
        folder, _, name = member.name.rpartition("/")
        key, _, extension = name.partition(".")
        if member.isfile() and key:
            yield f"{folder}/{key}", extension.lower(), (member.offset_data, member.size)
