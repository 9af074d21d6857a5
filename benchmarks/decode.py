"""Measure images per CPU second: read, decode, crop, flip, scale.

    python benchmarks/decode.py --jpegs cifar10_jpeg.tar [--folder build/jpegs256]

The first run makes JPEG files of 256 x 256 pixels from CIFAR-10. Each way then processes the same
files in the same order, five times. Prints medians by CPU time of the process (all its threads).
TensorFlow runs in its own process with one thread and no GPU; without TensorFlow its rows are
absent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from images import make_jpegs  # beside this file
from PIL import Image

from preprocess import decode as decoders
from preprocess.chain import _Generators
from preprocess.pipeline import Pipeline
from preprocess.sources.image_folder import ImageFolder
from preprocess.transforms import parse_transforms

CROP, SMALL = 224, 64
TRAIN = ["decode", {"random_crop": {"size": [CROP, CROP]}}, {"flip": {"horizontal": True}}]
SCALE = [{"scale": {"mean": 0.5, "std": 0.25}}]
SHRINK = ["decode", {"resize": {"size": [SMALL, SMALL]}}]

Way = Callable[[int], object]  # processes the image of an index


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jpegs", help="tar file of CIFAR-10 as JPEG files, train/<class>/<number>.jpg"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/jpegs256"), help="folder of the images"
    )
    parser.add_argument("--images", type=int, default=1000, help="number of images that are timed")
    parser.add_argument("--repeats", type=int, default=5)
    # The inner process.
    parser.add_argument("--tensorflow", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tensorflow:
        print(json.dumps(measure_tensorflow(args.folder, args.images, args.repeats)))
        return
    if args.jpegs is None and not args.folder.exists():
        parser.error("--jpegs is required in the first run, which makes the images from it")
    if args.jpegs is not None:
        make_jpegs(args.jpegs, args.folder)
    rates = measure(ways(ImageFolder(args.folder)), args.images, args.repeats)
    rates |= tensorflow_apart(args.folder, args.images, args.repeats)
    show(rates)
    print(f"\nseeding the generator of a sample: {generator_cost():.2f} us")


def ways(source: ImageFolder) -> dict[str, Way]:
    """Return the compared ways that run in this process."""
    ways_by_name: dict[str, Way] = {}
    for name, is_installed in (("simplejpeg", decoders.simplejpeg is not None), ("Pillow", True)):
        if not is_installed:
            continue
        ways_by_name |= {
            f"decode: {name}": decode_only(source, name),
            f"train, uint8: preprocess with {name}": with_decoder(name, source, TRAIN),
            f"train, float32: preprocess with {name}": with_decoder(name, source, TRAIN + SCALE),
            f"resize to {SMALL}: preprocess with {name}": with_decoder(name, source, SHRINK),
        }
    rng = np.random.default_rng(0)

    def plain(index: int) -> np.ndarray:
        image = Image.open(source.name(index)).convert("RGB")
        top, offset = rng.integers(0, 256 - CROP + 1, 2)
        image = image.crop((offset, top, offset + CROP, top + CROP))
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    return ways_by_name | {
        "train, uint8: plain Pillow": plain,
        "train, float32: plain Pillow": lambda index: (plain(index).astype(np.float32) / 255 - 0.5)
        / 0.25,
        f"resize to {SMALL}: plain Pillow, no draft mode": lambda index: np.asarray(
            Image.open(source.name(index))
            .convert("RGB")
            .resize((SMALL, SMALL), Image.Resampling.BILINEAR)
        ),
    }


def decode_only(source: ImageFolder, name: str) -> Way:
    simplejpeg = decoders.simplejpeg if name == "simplejpeg" else None

    def way(index: int) -> None:
        decoders.simplejpeg = simplejpeg
        decoders.decode(source.read(index))

    return way


def with_decoder(name: str, source: ImageFolder, transforms: list) -> Way:
    """Return a pipeline with this decoder, followed by what trainers do."""
    simplejpeg = decoders.simplejpeg if name == "simplejpeg" else None
    pipeline = Pipeline.from_source(source, parse_transforms(transforms), seed=0)
    images, labels = pipeline.empty(1)

    def way(index: int) -> None:
        decoders.simplejpeg = simplejpeg
        if pipeline.load([index], 0, images, labels):
            raise RuntimeError("cannot decode a benchmark image")
        if pipeline.sample.affine is not None:
            pipeline.sample.affine.apply(images)

    return way


def measure(ways: dict[str, Way], images: int, repeats: int) -> dict[str, float]:
    """Return the median images per CPU second of each way; the ways take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            way(0)
            began = time.process_time()
            for index in range(images):
                way(index)
            seconds[name].append(time.process_time() - began)
    return {name: images / statistics.median(times) for name, times in seconds.items()}


def measure_tensorflow(folder: Path, images: int, repeats: int) -> dict[str, float]:
    """Do the same work with tf.data and one thread."""
    import tensorflow as tf

    def read(path: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)

    def train(path: tf.Tensor) -> tf.Tensor:
        return tf.image.random_flip_left_right(tf.image.random_crop(read(path), (CROP, CROP, 3)))

    def train_scaled(path: tf.Tensor) -> tf.Tensor:
        return (tf.cast(train(path), tf.float32) / 255 - 0.5) / 0.25

    def shrink(path: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, ratio=4)
        return tf.cast(tf.image.resize(image, (SMALL, SMALL), antialias=True), tf.uint8)

    source = ImageFolder(folder)
    paths = [source.name(index) for index in range(images)]
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    functions = {
        "decode: tf.io.decode_jpeg": read,
        "train, uint8: tf.data": train,
        "train, float32: tf.data": train_scaled,
        f"resize to {SMALL}: tf.data, ratio=4": shrink,
    }
    data = {
        name: tf.data.Dataset.from_tensor_slices(paths).map(function).with_options(options)
        for name, function in functions.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in data}
    for _ in range(repeats + 1):
        for name, dataset in data.items():
            began = time.process_time()
            for _ in dataset:
                pass
            seconds[name].append(time.process_time() - began)
    # The first repetition warms up.
    return {name: images / statistics.median(times[1:]) for name, times in seconds.items()}


def tensorflow_apart(folder: Path, images: int, repeats: int) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--tensorflow",
        "--folder",
        str(folder),
        "--images",
        str(images),
        "--repeats",
        str(repeats),
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        print(
            f"no TensorFlow rows: {(process.stderr.strip().splitlines() or ['?'])[-1]}",
            file=sys.stderr,
        )
        return {}
    return json.loads(process.stdout.splitlines()[-1])


def generator_cost(times: int = 20000) -> float:
    """Return the microseconds that seeding the generator of one sample takes."""
    generators = _Generators(seed=0)
    began = time.process_time()
    for index in range(times):
        generators.at(3, index)
    return (time.process_time() - began) / times * 1e6


def show(rates: dict[str, float]) -> None:
    print(f"{'work':<18}{'way':<34}{'images/s/core':>14}")
    for name in sorted(rates, key=lambda name: (name.split(": ")[0], -rates[name])):
        work, way = name.split(": ", 1)
        print(f"{work:<18}{way:<34}{rates[name]:>14.0f}")


if __name__ == "__main__":
    main()
