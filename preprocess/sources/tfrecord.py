"""TFRecord files of ``tf.train.Example`` messages, read without TensorFlow.

A file is a sequence of records: length (8 bytes, little-endian), masked CRC-32C of these bytes, the
message, masked CRC-32C of the message. An Example is a protocol buffer; three nested fields lead to
a value:

    Example.features (1) -> Features.feature (1, a map: key 1, value 2) Feature: bytes_list (1) |
    float_list (2) | int64_list (3) -> value (1)

The protobuf library would parse, and so read from disk, each message as a whole. This module skips
the images while it looks for labels.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from launch.errors import InputError
from preprocess.base import UnreadableImage
from preprocess.files.npz import is_npy, parse_npy
from preprocess.sources.masks import PixelClasses
from preprocess.sources.shards import BUFFER, Record, Shards, Value, open_shards
from preprocess.target import TargetWish, requested_semantics

# the field numbers of Feature
_BYTES = 1
_FLOAT = 2
_INT64 = 3
# wire types
_VARINT = 0
_FIXED64 = 1
_DELIMITED = 2
_FIXED32 = 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

_Content = mmap.mmap | memoryview


@dataclass(frozen=True)
class TFRecord:
    """The format: which features of an Example are the image and its target.

    Args:
        image_key: a bytes feature, an encoded image or ``.npy`` file; or a feature of numbers.
        label_key: an int64 feature: a class, or labels or values if the spec says so; a float
            feature: values; or a bytes feature: the class's name or the image of a mask.
        weight_key: a float or int64 feature; None for none.
        shape: the shape of an array; None for the shape of the feature.
        dtype: the dtype of an array in a bytes feature without header; None otherwise.
        is_mask: True if targets are masks.
        is_class: True if the first integer of an int64 feature is the class, whatever follows it.
        is_multilabel: True if targets are lists of labels, numbers or texts, possibly empty.
    """

    image_key: str = "image/encoded"
    label_key: str = "image/class/label"
    weight_key: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    is_mask: bool = False
    is_class: bool = True
    is_multilabel: bool = False

    input_names = ()
    target_names = ()
    # train.tfrecord, train.tfrecord-00000-of-00010, train-00000-of-01024
    pattern = r"\.tfrec(ords?)?(-\d+-of-\d+)?$|-\d+-of-\d+$"

    def scan(self, shard: str) -> Iterator[Record]:
        """Yield offset, size with checksum, target and weight of each record.

        Only the pages with lengths, keys and labels are read, not the images between them.

        Raises:
            InputError: the file is damaged, compressed, or lacks the features.
        """
        with open(shard, "rb") as file:
            if not file.seek(0, 2):
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content[:2] == b"\x1f\x8b":
                    raise InputError(
                        f"{shard} is compressed; records are read by offset: unpack it (gunzip)"
                    )
                for number, (offset, length) in enumerate(_records(shard, content)):
                    value, weight = self._target(f"{shard}[{number}]", content, offset, length)
                    yield Record(offset, length + 4, value, weight)

    def image(self, record: bytes) -> bytes | np.ndarray:
        """Return the image file in a record, or its array, after comparing its checksum."""
        message = memoryview(record)[:-4]
        if mask_crc(crc32c(record[:-4])).to_bytes(4, "little") != record[-4:]:
            raise UnreadableImage("its checksum is wrong: the record is damaged")
        feature = dict(_features(message, 0, len(message))).get(self.image_key.encode())
        content = feature and _value(message, *feature)
        if isinstance(content, ByteRange):
            data = bytes(message[content.start : content.end])
            if self.dtype is None:
                if is_npy(data):
                    return self._shaped(parse_npy(data))
                return data
            complete = len(data) - len(data) % np.dtype(self.dtype).itemsize
            return self._shaped(np.frombuffer(data[:complete], self.dtype).copy())
        if not isinstance(content, list) or not content:
            raise UnreadableImage(
                f"no feature {self.image_key!r} with bytes or numbers in the record"
            )
        dtype: type = np.int64
        if isinstance(content[0], float):
            dtype = np.float32
        return self._shaped(np.array(content, dtype))

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        try:
            if self.shape is None:
                return array
            return array.reshape(self.shape)
        except ValueError:
            raise UnreadableImage(
                f"it has {array.size} numbers, not those of shape {self.shape} (options: shape, "
                f"dtype)"
            ) from None

    def _target(
        self, name: str, content: _Content, offset: int, length: int
    ) -> tuple[Value, float | None]:
        """Parse the target and weight of a record."""
        try:
            features = dict(_features(content, offset, offset + length))
            target, weight = (
                None if field is None else _value(content, *field)
                for field in (
                    features.get(key.encode()) if key else None
                    for key in (self.label_key, self.weight_key)
                )
            )
        except (IndexError, ValueError, struct.error) as error:
            raise InputError(f"{name}: not a tf.train.Example: {error}") from None
        for key, is_there in (
            (
                self.label_key,
                target not in (None, [])
                or (self.is_multilabel and self.label_key.encode() in features),
            ),
            (self.image_key, self.image_key.encode() in features),
            (
                self.weight_key,
                self.weight_key is None or (isinstance(weight, list) and weight != []),
            ),
        ):
            if not is_there:
                available = (
                    ", ".join(sorted(key.decode(errors="replace") for key in features)) or "none"
                )
                raise InputError(
                    f"{name}: no feature {key!r} that can be used; its features: {available} "
                    "(options: image_key, label_key, weight_key)"
                )
        parsed = self._as_target(name, content, target)
        if self.is_multilabel and isinstance(target, ByteRange):
            parsed = tuple(_texts(content, *features[self.label_key.encode()]))
        return parsed, float(weight[0]) if isinstance(weight, list) else None

    def _as_target(self, name: str, content: _Content, value: ByteRange | list | None) -> Value:
        if isinstance(value, ByteRange):
            if self.is_mask:
                return value.start, value.end - value.start
            return _text(content, value)
        if self.is_multilabel:
            return tuple(value or ())
        assert value is not None
        if self.is_mask:
            raise InputError(
                f"{name}: the feature {self.label_key!r} holds numbers; a mask should be an "
                f"encoded image"
            )
        if len(value) == 1 or (self.is_class and isinstance(value[0], int)):
            return value[0]
        return tuple(value)


def open_tfrecord(
    path: str,
    image_key: str = TFRecord.image_key,
    label_key: str | None = None,
    weight_key: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    pixels: Mapping[str, int] | None = None,
    buffer: int = BUFFER,
    *,
    target: TargetWish | None = None,
) -> tuple[Shards, Shards | None]:
    """Open the records at a path; see :func:`preprocess.sources.shards.find_shards`.

    Args:
        path: a file, a pattern or a folder.
        image_key: see :class:`TFRecord`.
        label_key: see :class:`TFRecord`; ``image/segmentation/class/encoded`` by default for masks.
        weight_key: see :class:`TFRecord`.
        shape: see :class:`TFRecord`.
        dtype: see :class:`TFRecord`.
        pixels: the number of each class in masks; see
            :class:`preprocess.sources.masks.PixelClasses`.
        buffer: size of the shuffle buffer, in records.
        target: the ``data.target`` of the spec.

    Raises:
        InputError: files or features are missing, or options have no meaning.
    """
    if dtype is not None:
        try:
            np.dtype(dtype)
        except TypeError:
            raise InputError(
                f"tfrecord: dtype: {dtype!r} should be a type of NumPy, like uint8"
            ) from None
    semantics = requested_semantics(target)
    if not label_key:
        label_key = TFRecord.label_key
        if semantics.is_of_pixels:
            label_key = "image/segmentation/class/encoded"
    form = TFRecord(
        image_key,
        label_key,
        weight_key,
        None if shape is None else tuple(shape),
        dtype,
        semantics.is_of_pixels,
        is_class=target is None or semantics.is_scalar,
        is_multilabel=semantics.has_label_sets,
    )
    return open_shards(form, path, buffer, target, PixelClasses.from_options(pixels, target))


def mask_crc(crc: int) -> int:
    """Mask a checksum as TFRecord stores it: rotate right by 15 bits, and add a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _records(shard: str, content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where each message begins and how long it is, in bytes."""
    position = 0
    end = len(content)
    while position < end:
        header = content[position : position + 12]
        if len(header) < 12:
            raise InputError(
                f"{shard}: ends inside the record at byte {position}; the file is not complete"
            )
        length, checksum = struct.unpack("<QI", header)
        if mask_crc(crc32c(header[:8])) != checksum:
            raise InputError(
                f"{shard}: not a TFRecord at byte {position}: the checksum of its length is wrong"
            )
        if position + length + 16 > end:
            raise InputError(
                f"{shard}: ends inside the record at byte {position}; the file is not complete"
            )
        yield position + 12, length
        position += length + 16


def _features(content: _Content, start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield the key and the byte range of each Feature of an Example."""
    for features in _delimited(content, start, end, 1):
        for entry in _delimited(content, *features, 1):
            key = next(_delimited(content, *entry, 1), None)
            value = next(_delimited(content, *entry, 2), None)
            if key is not None and value is not None:
                yield bytes(content[key[0] : key[1]]), value


class ByteRange(NamedTuple):
    """A range of bytes."""

    start: int
    end: int


def _value(content: _Content, start: int, end: int) -> ByteRange | list[int] | list[float] | None:
    """Parse a Feature: the range of its first bytes, or all its numbers; None for anything else."""
    for kind, _, span in _fields(content, start, end):
        if kind == _BYTES and isinstance(span, tuple):
            first = next(_delimited(content, *span, 1), None)
            if first is None:
                return None
            return ByteRange(*first)
        if kind == _INT64 and isinstance(span, tuple):
            return list(_integers(content, *span))
        if kind == _FLOAT and isinstance(span, tuple):
            return list(_floats(content, *span))
    return None


def _text(content: _Content, span: tuple[int, int]) -> str:
    return bytes(content[span[0] : span[1]]).decode(errors="backslashreplace")


def _texts(content: _Content, start: int, end: int) -> Iterator[str]:
    """Yield the values of a bytes_list, as text."""
    for kind, _, span in _fields(content, start, end):
        if kind == _BYTES and isinstance(span, tuple):
            yield from (_text(content, item) for item in _delimited(content, *span, 1))


def _integers(content: _Content, start: int, end: int) -> Iterator[int]:
    """Yield the values of an int64_list, packed or not."""
    for number, wire, value in _fields(content, start, end):
        if number == 1 and wire == _VARINT and isinstance(value, int):
            yield _signed(value)
        elif number == 1 and isinstance(value, tuple):
            at, last = value
            while at < last:
                number_read, at = _varint(content, at)
                yield _signed(number_read)


def _signed(value: int) -> int:
    if value >> 63:
        return value - (1 << 64)
    return value


def _floats(content: _Content, start: int, end: int) -> Iterator[float]:
    """Yield the values of a float_list, packed or not."""
    for number, _, span in _fields(content, start, end):
        if not isinstance(span, tuple) or (span[1] - span[0]) % 4:
            raise ValueError("a list of floats holds something else")
        if number == 1:
            yield from struct.unpack(f"<{(span[1] - span[0]) // 4}f", content[span[0] : span[1]])


def _delimited(content: _Content, start: int, end: int, field: int) -> Iterator[tuple[int, int]]:
    for number, _, value in _fields(content, start, end):
        if number == field and isinstance(value, tuple):
            yield value


def _fields(
    content: _Content, start: int, end: int
) -> Iterator[tuple[int, int, int | tuple[int, int]]]:
    """Yield number, wire type and value of each field; the byte range of all but varints."""
    while start < end:
        tag, start = _varint(content, start)
        number = tag >> 3
        wire = tag & 7
        value: int | tuple[int, int]
        if wire == _VARINT:
            value, start = _varint(content, start)
        elif wire in (_DELIMITED, _FIXED64, _FIXED32):
            if wire == _DELIMITED:
                length, begin = _varint(content, start)
            else:
                length, begin = _FIXED_BYTES[wire], start
            value = (begin, begin + length)
            start = begin + length
        else:
            raise ValueError(f"wire type {wire}")
        if start > end:
            raise ValueError("a field reaches beyond its message")
        yield number, wire, value


def _varint(content: _Content, start: int) -> tuple[int, int]:
    """Parse an integer of 7 bits per byte, low ones first; return it and where it ends."""
    value = shift = 0
    while True:
        byte = content[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than 10 bytes")
