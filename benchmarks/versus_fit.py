"""Train the networks of `versus.py` with Keras' `model.fit`, on a cached `tf.data` pipeline.

python benchmarks/versus_fit.py FOLDER EPOCHS [crop]     # all of them, one after another
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from fleet.engines.keras.models import build_model
from fleet.spec.model import Architecture

PIXELS, CROP, BATCH, RATE, MOMENTUM, VALIDATION = 64, 224, 64, 0.01, 0.9, 0.1
NETWORKS: dict[str, dict[str, Any]] = {
    f"cnn-{first}-{second}-{dense}": {"filters": [first, second], "dense": [dense]}
    for first, second, dense in (
        (8, 16, 32),
        (8, 16, 128),
        (8, 32, 64),
        (16, 16, 64),
        (16, 32, 32),
        (16, 32, 128),
    )
}


def datasets(
    folder: str, transforms: str = "resize"
) -> tuple[tf.data.Dataset, tf.data.Dataset, int]:
    """Return training and validation batches, and the number of classes; decoded images are cached.

    Args:
        folder: A folder with one folder of JPEG files per class.
        transforms: ``resize`` once, or ``crop`` in every epoch and then resize.
    """
    crops = transforms == "crop"
    names = sorted(path.name for path in Path(folder).iterdir())
    train, validation = [], []
    for label, name in enumerate(names):
        files = sorted(str(path) for path in (Path(folder) / name).iterdir())
        count = round(VALIDATION * len(files))
        train += [(file, label) for file in files[count:]]
        validation += [(file, label) for file in files[:count]]

    def decode(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.decode_jpeg(tf.io.read_file(file), 3)
        return image if crops else resize(image), label

    def resize(image: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.image.resize(image, (PIXELS, PIXELS), antialias=True), tf.uint8)

    def crop_center(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if crops:
            image = resize(tf.image.resize_with_crop_or_pad(image, CROP, CROP))
        return image, label

    def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if crops:
            image = tf.image.random_crop(image, (CROP, CROP, 3))
        image = tf.image.random_flip_left_right(image)
        return resize(image) if crops else image, label

    def scale(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (tf.cast(images, tf.float32) / 255 - 0.5) / 0.25, labels

    def load(samples: list[tuple[str, int]]) -> tf.data.Dataset:
        files, labels = zip(*samples, strict=True)
        return (
            tf.data.Dataset.from_tensor_slices((list(files), list(labels)))
            .map(decode, tf.data.AUTOTUNE)
            .cache()
        )

    training = (
        load(train).shuffle(len(train)).map(augment, tf.data.AUTOTUNE).batch(BATCH).map(scale)
    )
    validating = load(validation).map(crop_center).batch(BATCH).map(scale)
    return training.prefetch(tf.data.AUTOTUNE), validating.prefetch(2), len(names)


def fit(name: str, data: tuple[tf.data.Dataset, tf.data.Dataset, int], epochs: int) -> float:
    """Train one network; return its best accuracy on the validation samples."""
    train, validation, classes = data
    keras.backend.clear_session()
    model = build_model(Architecture("cnn", NETWORKS[name]), (PIXELS, PIXELS, 3), classes, 0)
    model.compile(
        optimizer=keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        metrics=["accuracy"],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(train, epochs=epochs, validation_data=validation, verbose=0)
    return max(history.history["val_accuracy"])


def main() -> None:
    data, epochs = datasets(sys.argv[1], *sys.argv[3:]), int(sys.argv[2])
    for name in NETWORKS:
        print(name, fit(name, data, epochs), flush=True)


if __name__ == "__main__":
    main()
