"""Measure the augmentation of stored samples: samples/s on one core.

    python benchmarks/finishing.py [--json] [--rounds 5]

Uint8 images in batches of 64, on one core. All ways take turns; the best round of each counts.

- `32x32 float32`: crop 28, flip, scale to float32.
- `224 uint8`: of 256 x 256, crop 224, flip. `224 float32`: the same, scaled to float32.
- `random_resized_crop 224`: of 256 x 256.

`per_sample` processes one sample after another. It is the reference: both ways must give the same
bits. Rivals are `tf.data` with one thread (if TensorFlow is installed), `Pillow` in a plain loop,
and `memcpy` of the bytes that are written.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image

from fleet.commands.output import print_json
from fleet.terminal import print_table
from preprocess.base import RandomAccess
from preprocess.lazy_numba import NUMBA
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.transforms import parse_transforms

BATCH, ENOUGH_S = 64, 0.15
FLIP, SCALE = {"flip": {"horizontal": True}}, {"scale": {"mean": 0.5, "std": 0.25}}
WORK = {  # name: side of an image, side of the output, transforms
    "32x32 float32": (32, 28, [{"random_crop": {"size": [28, 28]}}, FLIP, SCALE]),
    "224 uint8": (256, 224, [{"random_crop": {"size": [224, 224]}}, FLIP]),
    "224 float32": (256, 224, [{"random_crop": {"size": [224, 224]}}, FLIP, SCALE]),
    "random_resized_crop 224": (256, 224, [{"random_resized_crop": {"size": [224, 224]}}]),
}
TARGETS = {  # (work, rival): the minimum speedup
    ("32x32 float32", ""): 13.0,
    ("224 uint8", "memcpy"): 1 / 2,
    ("224 float32", "memcpy"): 1 / 3,
    ("random_resized_crop 224", "Pillow"): 2.0,
}

Way = Callable[[], Any]  # prepares one batch


class Images(RandomAccess):
    """Smooth images, like photographs."""

    def __init__(self, side: int) -> None:
        rng = np.random.default_rng(0)
        small = rng.integers(0, 256, (BATCH, 16, 16, 3), np.uint8)
        self.images = np.stack(
            [np.asarray(Image.fromarray(image).resize((side, side))) for image in small]
        )
        self.labels, self.classes = np.zeros(BATCH, np.int64), ("one", "other")

    def read(self, index: int) -> np.ndarray:
        return self.images[index]

    def name(self, index: int) -> str:
        return str(index)


def fleet_way(pipeline: Pipeline, kernels: object) -> Callable[[], np.ndarray]:
    """Return a way that prepares batches of successive epochs; sample by sample without kernels."""
    indices, epoch = np.arange(BATCH), 0
    stored, batch = pipeline.empty_stored(BATCH), pipeline.empty(BATCH)
    pipeline.load_stored(indices, *stored)
    affine = pipeline.sample.affine
    scaled = np.empty(batch[0].shape, np.float32)

    def way() -> np.ndarray:
        nonlocal epoch
        epoch, NUMBA.kernels = epoch + 1, kernels
        pipeline.augment_stored(*stored, indices, epoch, *batch)
        return batch[0] if affine is None else affine.apply(batch[0], scaled)

    return way


def memcpy(target_batch: np.ndarray) -> Way:
    source, target = np.ones_like(target_batch), np.ones_like(target_batch)
    return lambda: np.copyto(target, source)


def pillow(images: np.ndarray, work: str, crop: int) -> Way:
    """Return a plain loop with the cheapest possible random draws."""
    rng, side = np.random.default_rng(0), images.shape[1]
    pictures = [Image.fromarray(image) for image in images]

    def augment(picture: Image.Image) -> np.ndarray:
        if work.startswith("random_resized"):
            size = (
                side
                * np.sqrt(rng.uniform(0.08, 1))
                * np.exp(np.array([0.5, -0.5]) * rng.uniform(-0.29, 0.29))
            )
            width, height = np.clip(size.round(), 1, side)
            x, top = rng.integers(0, side - width + 1), rng.integers(0, side - height + 1)
            return np.asarray(
                picture.resize(
                    (crop, crop), Image.Resampling.BILINEAR, (x, top, x + width, top + height)
                )
            )
        x, top = rng.integers(0, side - crop + 1, 2)
        picture = picture.crop((x, top, x + crop, top + crop))
        if rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(picture)

    def way() -> np.ndarray:
        batch = np.stack([augment(picture) for picture in pictures])
        return (batch.astype(np.float32) / 255 - 0.5) / 0.25 if work.endswith("float32") else batch

    return way


def tf_data(images: np.ndarray, work: str, crop: int) -> Way | None:
    """Return the same work with tf.data and one thread, or None without TensorFlow."""
    try:
        import tensorflow as tf
    except ImportError:
        return None
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def augment(image: tf.Tensor) -> tf.Tensor:
        if work.startswith("random_resized"):
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                tf.shape(image),
                tf.zeros((1, 0, 4)),
                min_object_covered=0.0,
                area_range=(0.08, 1.0),
                aspect_ratio_range=(3 / 4, 4 / 3),
                use_image_if_no_bounding_boxes=True,
            )
            decoded = tf.image.resize(tf.slice(image, begin, size), (crop, crop), antialias=True)
            return tf.cast(decoded, tf.uint8)
        decoded = tf.image.random_flip_left_right(tf.image.random_crop(image, (crop, crop, 3)))
        if work.endswith("float32"):
            return (tf.cast(decoded, tf.float32) / 255 - 0.5) / 0.25
        return decoded

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    data = iter(
        tf.data.Dataset.from_tensor_slices(images)
        .repeat()
        .map(augment)
        .batch(BATCH)
        .with_options(options)
    )
    return lambda: next(data)


def measure(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Return samples/s of each way: the best of some rounds in turns."""
    best = dict.fromkeys(ways, 0.0)
    for turn in range(rounds + 1):  # the first one warms up
        for name, way in ways.items():
            batches, began = 0, time.perf_counter()
            seconds = 0.0
            while seconds < ENOUGH_S or batches < 2:
                way()
                batches += 1
                seconds = time.perf_counter() - began
            if turn:
                best[name] = max(best[name], BATCH * batches / seconds)
    return best


def rows(rounds: int) -> Iterable[dict[str, object]]:
    if not NUMBA.load():
        raise SystemExit(
            "benchmarks/finishing.py requires numba: pip install 'fleet-ensemble[fast]'"
        )
    kernels = NUMBA.kernels
    for work, (side, crop, transforms) in WORK.items():
        source = Images(side)
        parsed = parse_transforms(transforms)
        pipeline = Pipeline(source, parsed, 0, infer_sample_spec(source, parsed, 0, keep=True))
        ways: dict[str, Way] = {
            "": fleet_way(pipeline, kernels),
            "per_sample": fleet_way(pipeline, None),
        }
        batch, reference = ways[""](), ways["per_sample"]()
        assert np.array_equal(batch, reference), f"{work}: batch and per-sample results differ"
        rival_way = tf_data(source.images, work, crop)
        if rival_way is not None:
            ways["tf.data"] = rival_way
        ways["Pillow"] = pillow(source.images, work, crop)
        if not work.startswith("random_resized"):
            ways["memcpy"] = memcpy(np.asarray(batch))
        results = {name: round(rate) for name, rate in measure(ways, rounds).items()}
        for rival in list(results)[2:]:
            yield {
                "work": work,
                "samples_per_s": results[""],
                "per_sample": results["per_sample"],
                "rival": rival,
                "rival_samples_per_s": results[rival],
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    results = list(rows(arguments.rounds))
    if arguments.json:
        print_json(results)
        return
    print_table(
        ("", "samples/s", "per sample", "rival", "its samples/s"),
        [
            tuple(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values())
            for row in results
        ],
    )


if __name__ == "__main__":
    main()
