"""Run `tf.data` pipelines: independent ones, or one behind the `tf.data` service.

    python benchmarks/stream_tfdata.py alone|serve|consume FOLDER uint8|float32 BATCH SECONDS
        [NUMBER]

stream.py starts this script in each role; `rivals.py` synchronizes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from pace import record  # beside this file

CROP = 224
PORT = 5055  # inside a network namespace, see rivals.py
SERVICE = tf.data.experimental.service


def pipeline(folder: str, dtype: str, batch: int) -> tf.data.Dataset:
    """Read, decode, crop, flip, scale; tf.data chooses the parallelism."""
    paths = sorted(map(str, Path(folder).glob("*/*.jpg")))
    classes = sorted({Path(path).parent.name for path in paths})
    labels = [classes.index(Path(path).parent.name) for path in paths]

    def prepare(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, (CROP, CROP, 3)))
        if dtype == "float32":
            image = (tf.cast(image, tf.float32) / 255 - 0.5) / 0.25
        return image, label

    data = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    return (
        data.map(prepare, tf.data.AUTOTUNE)
        .batch(batch, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def serve() -> None:
    """Run the service: a dispatcher and a worker."""
    dispatcher = SERVICE.DispatchServer(SERVICE.DispatcherConfig(port=PORT))
    worker = SERVICE.WorkerServer(SERVICE.WorkerConfig(dispatcher_address=f"localhost:{PORT}"))
    print("ready", flush=True)
    worker.join()
    dispatcher.join()


def consume(data: tf.data.Dataset, seconds: float) -> None:
    """Wait for a line on standard input, then read."""
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(record(data, seconds)), flush=True)


def shared(data: tf.data.Dataset, consumer: str) -> tf.data.Dataset:
    """Serve the same batches to all consumers; the service caches them for the slowest one."""
    return data.apply(
        SERVICE.distribute(
            SERVICE.ShardingPolicy.OFF,
            f"grpc://localhost:{PORT}",
            job_name="shared",
            cross_trainer_cache=SERVICE.CrossTrainerCache(trainer_id=consumer),
        )
    )


def main(role: str, *arguments: Any) -> None:
    if role == "serve":
        serve()
        return
    folder, dtype, batch, seconds, *service = arguments
    data = pipeline(folder, dtype, int(batch))
    consume(shared(data, *service) if service else data, float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
