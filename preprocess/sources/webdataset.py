"""Tar shards as webdataset writes them: ``000017.jpg`` and ``000017.cls`` are one sample.

The members of a sample follow one another; their names are the same up to the first dot of the last part.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from preprocess.base import InputError
from preprocess.sources.shards import BUFFER, Record, Shards, opener


@dataclass(frozen=True)
class WebDataset:
    """The format: which members of a sample are the image and its label.

    Args:
        image_key: extensions, separated by semicolons; the first that is there is the image.
        label_key: extension of the member with the label, a number or the class's name, as text.
    """

    image_key: str = "jpg;jpeg;png;webp"
    label_key: str = "cls"

    pattern = r"\.tar$"

    def scan(self, shard: str) -> Iterator[Record]:
        """Offset, size and label of each image.

        Raises:
            InputError: no tar file, a damaged or compressed one, or a sample without image or label.
        """
        try:
            with open(shard, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                for key, found in groupby(_members(tar), lambda member: member[0]):
                    members = {extension: place for _, extension, place in found}
                    yield self._sample(f"{shard}[{key}]", file.fileno(), members)
        except tarfile.TarError as error:
            raise InputError(f"{shard}: not a whole and uncompressed tar file: {error}") from None

    def image(self, record: bytes) -> bytes:
        """The record is the image file."""
        return record

    def _sample(self, name: str, file: int, members: dict[str, tuple[int, int]]) -> Record:
        image = next((members[key] for key in self.image_key.split(";") if key in members), None)
        if image is None or self.label_key not in members:
            raise InputError(f"{name}: a sample must have an image ({self.image_key}) and a label "
                             f"({self.label_key}); this one has {', '.join(members)} "
                             "(options: image_key, label_key)")
        offset, size = members[self.label_key]
        text = os.pread(file, size, offset).decode(errors="replace").strip()
        return *image, int(text) if text.lstrip("-").isdecimal() else text


def open_webdataset(path: str, image_key: str = WebDataset.image_key, label_key: str = WebDataset.label_key,
                    buffer: int = BUFFER) -> tuple[Shards, Shards | None]:
    """The samples of the shards at a path; see :func:`preprocess.sources.shards.find_shards`.

    Args:
        path: a file, a pattern or a folder.
        image_key: see :class:`WebDataset`.
        label_key: see :class:`WebDataset`.
        buffer: samples of the shuffle buffer.
    """
    return opener(WebDataset(image_key, label_key), path, buffer)


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Key, extension and place of each file."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep them all
        folder, _, name = member.name.rpartition("/")
        key, _, extension = name.partition(".")
        if member.isfile() and key:
            yield f"{folder}/{key}", extension.lower(), (member.offset_data, member.size)
