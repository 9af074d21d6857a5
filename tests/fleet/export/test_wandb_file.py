"""Tests of W&B files: what is packed is read again, also by a reader of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.export.wandb_file import pack_records, unpack_records

HEAD = b":W&B\xe1\xbe\x01"
BLOCK, CHUNK = 32768, 7
# Records that end near the end of a block, where chunks are split.
SIZES = st.one_of(
    st.integers(0, 40), st.integers(BLOCK - 40, BLOCK + 40), st.just(BLOCK - 2 * CHUNK - 7)
)


def chunk_kinds(data):
    """Return the kind of each chunk, as LevelDB's documentation describes them."""
    offset, kinds = len(HEAD), []
    while offset + CHUNK <= len(data):
        if BLOCK - offset % BLOCK < CHUNK:
            offset += BLOCK - offset % BLOCK
            continue
        kinds.append(data[offset + 6])
        offset += CHUNK + int.from_bytes(data[offset + 4 : offset + 6], "little")
    return kinds


@given(st.lists(SIZES, max_size=6))
def test_packed_records_are_unpacked(sizes):
    records = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = pack_records(HEAD, records)
    assert unpack_records(data) == records
    described = "".join(map(str, chunk_kinds(data)))
    assert described.replace("1", "").replace("3", "").replace("24", "") == ""
    assert described.count("1") + described.count("2") == len(records)


def test_first_part_may_be_empty():
    fits = b"x" * (BLOCK - 7 - 2 * CHUNK)  # leaves seven bytes of the block
    data = pack_records(HEAD, [fits, b"next"])
    assert chunk_kinds(data) == [1, 2, 4]
    assert unpack_records(data) == [fits, b"next"]


def test_damaged_file_is_refused():
    data = bytearray(pack_records(HEAD, [b"one", b"two"]))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="damaged near byte 27"):
        unpack_records(bytes(data))
    with pytest.raises(ValueError, match="does not begin with :W&B"):
        unpack_records(b"else" + bytes(data[4:]))
