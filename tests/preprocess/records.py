"""Shards for tests, written from the definitions of the formats."""

import io
import struct
import tarfile


def crc32c_bit_by_bit(data):
    """Compute CRC-32C by long division."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def checksum(data):
    crc = crc32c_bit_by_bit(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(message):
    length = struct.pack("<Q", len(message))
    return length + checksum(length) + message + checksum(message)


def varint(value):
    value &= (1 << 64) - 1
    groups = []
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def delimited(number, *parts):
    content = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(content)) + content


def integers(*values, packed=True):
    """Encode a Feature with an int64_list."""
    if packed:
        return delimited(3, delimited(1, *map(varint, values)))
    return delimited(3, *(varint(1 << 3) + varint(value) for value in values))


def text(*values):
    """Encode a Feature with a bytes_list."""
    return delimited(1, *(delimited(1, value) for value in values))


def floats(*values):
    """Encode a Feature with a float_list, packed and unpacked."""
    return delimited(
        2,
        delimited(1, struct.pack("<f", values[0])),
        *(varint(1 << 3 | 5) + struct.pack("<f", value) for value in values[1:]),
    )


def example(**features):
    """Encode a tf.train.Example; two underscores in a name mean a slash."""
    return delimited(
        1,
        *(
            delimited(1, delimited(1, name.replace("__", "/").encode()), delimited(2, feature))
            for name, feature in features.items()
        ),
    )


def labelled(image, label):
    """Encode an Example with an image and its label between other features."""
    return example(
        image__height=integers(4),
        image__encoded=text(image),
        rates=floats(1.0, 2.0),
        image__class__label=integers(label),
        image__filename=text(b"x.jpg"),
    )


def write_records(path, *messages):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, messages)))


def write_tar(path, members):
    """Make a tar file of (name, content)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
