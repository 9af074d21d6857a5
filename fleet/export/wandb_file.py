"""Read and write the records of a W&B file (``run-ID.wandb``).

The file is a log like LevelDB's (its ``doc/log_format.md``) with a head of 7 bytes. Blocks of 32
KiB hold chunks, each with a checksum, a length and a kind: a whole record, or the first, a middle
or the last part of one. Unlike in LevelDB, the checksum is the CRC-32 of zlib, unmasked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

HEAD_SIZE = 7
_BLOCK = 32768
_CHUNK = struct.Struct("<IHB")  # checksum, length, kind
# (whether a chunk begins a record, whether it ends one) -> its kind
_KINDS = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}


def unpack_records(data: bytes) -> list[bytes]:
    """Return the records of a file.

    Args:
        data: the content of the file.

    Raises:
        ValueError: it is no such file, or it is damaged.
    """
    if not data.startswith(b":W&B"):
        raise ValueError("it does not begin with :W&B")
    records = []
    parts: list[bytes] = []
    offset = HEAD_SIZE
    while offset + _CHUNK.size <= len(data):
        if _BLOCK - offset % _BLOCK < _CHUNK.size:  # the end of a block is filled with zeros
            offset += _BLOCK - offset % _BLOCK
            continue
        checksum, length, kind = _CHUNK.unpack_from(data, offset)
        offset += _CHUNK.size
        content = data[offset : offset + length]
        offset += length
        if len(content) < length or checksum != _checksum(kind, content):
            raise ValueError(f"it is damaged near byte {offset}")
        parts.append(content)
        if kind in (_KINDS[True, True], _KINDS[False, True]):
            records.append(b"".join(parts))
            parts = []
    return records


def pack_records(head: bytes, records: Iterable[bytes]) -> bytes:
    """Return the content of a file.

    Args:
        head: its first 7 bytes.
        records: its records.

    >>> unpack_records(pack_records(b":W&B123", [b"one", b"", b"3" * 70000])) == [
    ...     b"one", b"", b"3" * 70000]
    True
    """
    data = bytearray(head)
    for record in records:
        remaining = memoryview(record)
        is_first = True
        is_last = False
        while not is_last:
            room = _BLOCK - len(data) % _BLOCK
            if room < _CHUNK.size:
                data += bytes(room)
                continue
            content = bytes(remaining[: room - _CHUNK.size])
            remaining = remaining[len(content) :]
            is_last = not remaining
            kind = _KINDS[is_first, is_last]
            data += _CHUNK.pack(_checksum(kind, content), len(content), kind) + content
            is_first = False
    return bytes(data)


def _checksum(kind: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(bytes([kind])))
