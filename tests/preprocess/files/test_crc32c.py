"""The checksum of TFRecord files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.files.crc32c import crc32c, mask_crc
from tests.preprocess.records import crc32c_bit_by_bit


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_known_messages_have_the_known_checksums(data, expected):
    assert crc32c(data) == expected


@given(st.binary(max_size=64))
def test_short_messages_agree_with_the_definition(data):
    assert crc32c(data) == crc32c_bit_by_bit(data)


@pytest.mark.parametrize("length", [1023, 1024, 1025, 2048, 5000])
def test_messages_of_several_blocks_agree_with_the_definition(length):
    data = bytes(number * number % 251 for number in range(length))
    assert crc32c(data) == crc32c_bit_by_bit(data)


def test_crc32c_mask_is_inverted_by_readers():
    unmasked = (mask_crc(0x12345678) - 0xA282EAD8) & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0x12345678
