"""TFRecord files of ``tf.train.Example`` messages, read without TensorFlow.

A file is a sequence of records: length (8 bytes, little-endian), masked CRC-32C of these bytes, the message,
masked CRC-32C of the message. An Example is a protocol buffer; three nested fields lead to a value:

    Example.features (1) -> Features.feature (1, a map: key 1, value 2)
    Feature: bytes_list (1) | float_list (2) | int64_list (3) -> value (1)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from preprocess.base import BadImage, InputError
from preprocess.files.crc32c import crc32c, masked
from preprocess.sources.shards import BUFFER, Record, Shards, opener

_BYTES, _FLOAT, _INT64 = 1, 2, 3  # the field numbers of Feature
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types

_Content = mmap.mmap | memoryview


@dataclass(frozen=True)
class TFRecord:
    """The format: which features of an Example are the image and its label.

    Args:
        image_key: a bytes feature, an encoded image file.
        label_key: an int64 feature; or a bytes feature, the class's name.
    """

    image_key: str = "image/encoded"
    label_key: str = "image/class/label"

    # train.tfrecord, train.tfrecord-00000-of-00010, train-00000-of-01024
    pattern = r"\.tfrec(ords?)?(-\d+-of-\d+)?$|-\d+-of-\d+$"

    def scan(self, shard: str) -> Iterator[Record]:
        """Offset, size with checksum, and label of each record.

        Only the pages that hold lengths, keys and labels are read, not the images between them.

        Raises:
            InputError: the file is damaged, compressed, or lacks the features.
        """
        with open(shard, "rb") as file:
            if not file.seek(0, 2):
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content[:2] == b"\x1f\x8b":
                    raise InputError(f"{shard} is compressed; records are read by offset: unpack it (gunzip)")
                for number, (offset, length) in enumerate(_records(shard, content)):
                    yield offset, length + 4, self._label(f"{shard}[{number}]", content, offset, length)

    def image(self, record: bytes) -> bytes:
        """The image file in a record, after its checksum was compared."""
        message = memoryview(record)[:-4]
        if masked(crc32c(message)).to_bytes(4, "little") != record[-4:]:
            raise BadImage("its checksum is wrong: the record is damaged")
        feature = dict(_features(message, 0, len(message))).get(self.image_key.encode())
        found = feature and _value(message, *feature)
        if not isinstance(found, tuple):
            raise BadImage(f"no bytes feature {self.image_key!r} in the record")
        return bytes(message[found[0]:found[1]])

    def _label(self, name: str, content: _Content, offset: int, length: int) -> int | str:
        try:
            features = dict(_features(content, offset, offset + length))
            label = features.get(self.label_key.encode())
            value = label and _value(content, *label)
        except (IndexError, ValueError, struct.error) as error:
            raise InputError(f"{name}: not a tf.train.Example: {error}") from None
        if self.image_key.encode() not in features or value is None:
            missing = self.label_key if value is None else self.image_key
            there = ", ".join(sorted(key.decode(errors="replace") for key in features)) or "none"
            raise InputError(f"{name}: no feature {missing!r} that can be used; its features: {there} "
                             "(options: image_key, label_key)")
        if isinstance(value, tuple):
            return bytes(content[value[0]:value[1]]).decode(errors="replace")
        return value


def open_tfrecord(path: str, image_key: str = TFRecord.image_key, label_key: str = TFRecord.label_key,
                  buffer: int = BUFFER) -> tuple[Shards, Shards | None]:
    """The records at a path; see :func:`preprocess.sources.shards.find_shards`.

    Args:
        path: a file, a pattern or a folder.
        image_key: see :class:`TFRecord`.
        label_key: see :class:`TFRecord`.
        buffer: records of the shuffle buffer.
    """
    return opener(TFRecord(image_key, label_key), path, buffer)


def _records(shard: str, content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where each message begins and how long it is."""
    position, end = 0, len(content)
    while position < end:
        header = content[position:position + 12]
        if len(header) < 12:
            raise InputError(f"{shard}: ends inside the record at byte {position}; the file is not complete")
        length, checksum = struct.unpack("<QI", header)
        if masked(crc32c(header[:8])) != checksum:
            raise InputError(f"{shard}: no TFRecord at byte {position}: the checksum of its length is wrong")
        if position + length + 16 > end:
            raise InputError(f"{shard}: ends inside the record at byte {position}; the file is not complete")
        yield position + 12, length
        position += length + 16


def _features(content: _Content, start: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The key and the place of each Feature of an Example."""
    for features in _delimited(content, start, end, 1):
        for entry in _delimited(content, *features, 1):
            key = next(_delimited(content, *entry, 1), None)
            value = next(_delimited(content, *entry, 2), None)
            if key is not None and value is not None:
                yield bytes(content[key[0]:key[1]]), value


def _value(content: _Content, start: int, end: int) -> int | tuple[int, int] | None:
    """The first value of a Feature: an integer, or the place of some bytes; None for anything else."""
    for kind, _, place in _fields(content, start, end):
        if kind == _BYTES and isinstance(place, tuple):
            return next(_delimited(content, *place, 1), None)
        if kind == _INT64 and isinstance(place, tuple):
            for number, wire, value in _fields(content, *place):
                if number == 1 and isinstance(value, tuple):  # packed
                    value = _varint(content, value[0])[0] if value[1] > value[0] else None
                if number == 1 and wire in (_VARINT, _DELIMITED) and isinstance(value, int):
                    return value - (1 << 64) if value >> 63 else value
    return None


def _delimited(content: _Content, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for number, _, value in _fields(content, start, end):
        if number == wanted and isinstance(value, tuple):
            yield value


def _fields(content: _Content, start: int, end: int
            ) -> Iterator[tuple[int, int, int | tuple[int, int] | None]]:
    """Number, wire type and value of each field of a message; of delimited ones the place of the value."""
    while start < end:
        tag, start = _varint(content, start)
        number, wire = tag >> 3, tag & 7
        value: int | tuple[int, int] | None = None
        if wire == _VARINT:
            value, start = _varint(content, start)
        elif wire == _DELIMITED:
            length, begin = _varint(content, start)
            value, start = (begin, begin + length), begin + length
        elif wire in (_FIXED64, _FIXED32):
            start += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if start > end:
            raise ValueError("a field reaches beyond its message")
        yield number, wire, value


def _varint(content: _Content, start: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, low ones first, and where it ends."""
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
