"""Images and sources for tests."""

import io

import h5py
import numpy as np
from PIL import Image

from preprocess.base import RandomAccess, UnreadableSample


def pattern(height, width, channels=3, seed=0):
    """Make an image of random pixels, (height, width, channels) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def smooth(height, width):
    """Make an image of smooth slopes, which JPEG hardly changes, (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width]
    planes = [255 * y / height, 255 * x / width, 255 * (y + x) / (height + width)]
    return np.stack(planes, axis=2).astype(np.uint8)


def encode(image, kind="PNG", **options):
    """Encode an array or a Pillow image as the bytes of a file."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(image, "JPEG" if path.suffix == ".jpg" else "PNG", **options))


def foreign(path, images, labels, **more):
    """Write an HDF5 file as other programs do."""
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, labels
        for name, content in more.items():
            file[name] = content


class Memory(RandomAccess):
    """A source of arrays or encoded images; None marks an unreadable sample."""

    def __init__(self, samples, labels=None, classes=("a", "b")):
        self.samples = samples
        self.labels = np.arange(len(samples)) % 2 if labels is None else np.asarray(labels)
        self.classes = classes

    def read(self, index):
        if self.samples[index] is None:
            raise UnreadableSample(self.name(index), "cannot be read")
        return self.samples[index]

    def name(self, index):
        return f"sample {index}"


class Samples(RandomAccess):
    """Inputs with targets of any kind, masks and weights, as defined by a test."""

    def __init__(self, inputs, **attributes):
        self.inputs = inputs
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.inputs)

    def read(self, index):
        if self.inputs[index] is None:
            raise UnreadableSample(self.name(index), "torn")
        return self.inputs[index]

    def read_target(self, index):
        return self.masks[index]

    def name(self, index):
        return f"sample {index}"


class Draws:
    """A generator that draws given values."""

    def __init__(self, *values):
        self.random = iter(values).__next__


def numbered(height, width, channels=1):
    """An image whose pixels are numbered."""
    return np.arange(height * width * channels, dtype=np.uint8).reshape(height, width, channels)
