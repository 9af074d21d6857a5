"""A custom source: arrays in a folder, images.npy and labels.npy.

python my_source.py squares        makes such a folder with example images
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np

from fleet.preprocess.base import RandomAccess


class Arrays(RandomAccess):
    """Samples in arrays. Every rank receives a copy of this object, so it keeps only paths."""

    def __init__(self, folder, classes):
        self.folder, self.classes = folder, classes
        self.labels = np.load(folder / "labels.npy").astype(np.int64)

    def read(self, index):
        return np.array(_images(self.folder)[index])  # (height, width, channels), uint8

    def name(self, index):
        return f"{self.folder}/images.npy[{index}]"


@cache
def _images(folder):
    return np.load(folder / "images.npy", mmap_mode="r")


def arrays(path, classes):
    """Open a source; `data.options` of a spec are its further arguments."""
    return Arrays(Path(path), tuple(classes))


def main(folder):
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    images = rng.integers(0, 180, (400, 8, 8, 1)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):  # a brighter quarter tells the class
        image[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 60
    Path(folder).mkdir(parents=True, exist_ok=True)
    np.save(Path(folder) / "images.npy", images)
    np.save(Path(folder) / "labels.npy", labels)


if __name__ == "__main__":
    main(sys.argv[1])
