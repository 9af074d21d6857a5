"""Run TensorSocket over a PyTorch `DataLoader`, in its own environment.

    python benchmarks/stream_tensorsocket.py serve|consume FOLDER uint8|float32 BATCH SECONDS

The environment needs torch, tensorsocket, simplejpeg and Pillow. stream.py starts this script in
each role; `rivals.py` synchronizes them. TensorSocket pickles the memory of CPU tensors into every
message, once per consumer. So its hooks `pack_fn` and `unpack_fn` send tensors as PyTorch sends
them between processes: by the name of their shared memory.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import simplejpeg
import tensorsocket
import torch
from pace import record  # beside this file

CROP = 224
EPOCH_SAMPLES = 10**6  # long epochs, because TensorSocket pauses half a second between them


class Images(torch.utils.data.Dataset):
    """JPEG files that are read, decoded, cropped, flipped and scaled."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._paths = sorted(map(str, Path(folder).glob("*/*.jpg")))
        classes = sorted({Path(path).parent.name for path in self._paths})
        self._labels = [classes.index(Path(path).parent.name) for path in self._paths]
        self._dtype = dtype

    def __len__(self) -> int:
        return EPOCH_SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        index = random.randrange(len(self._paths))
        with open(self._paths[index], "rb", buffering=0) as file:
            image = simplejpeg.decode_jpeg(file.read())
        top, x = (
            random.randrange(image.shape[0] - CROP + 1),
            random.randrange(image.shape[1] - CROP + 1),
        )
        image = image[top : top + CROP, x : x + CROP]
        if random.random() < 0.5:
            image = image[:, ::-1]
        if self._dtype == "float32":
            image = image.astype(np.float32)
            image *= 1 / (255 * 0.25)
            image -= 0.5 / 0.25
        return np.ascontiguousarray(image), self._labels[index]


def pack(tensors: tuple) -> tuple:
    return tuple(bytes(ForkingPickler.dumps(tensor)) for tensor in tensors)


class Unpack:
    """Maps packed tensors; keeps recent mappings, because the same memory comes again."""

    def __init__(self) -> None:
        self._mapped: deque = deque(maxlen=64)

    def __call__(self, packed: tuple) -> tuple:
        tensors = tuple(map(ForkingPickler.loads, packed))
        self._mapped.append([tensor.untyped_storage() for tensor in tensors])
        return tensors


def serve(folder: str, dtype: str, batch: int) -> None:
    loader = torch.utils.data.DataLoader(
        Images(folder, dtype), batch, num_workers=len(os.sched_getaffinity(0)), drop_last=True
    )
    producer = tensorsocket.TensorProducer(loader, pack_fn=pack, producer_batch_size=4)
    threading.Thread(target=lambda: [None for _ in producer], daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def consume(batch: int, seconds: float) -> None:
    private: list[torch.Tensor] = []

    def batches() -> Iterator[torch.Tensor]:
        for images, _ in tensorsocket.TensorConsumer(batch_size=batch, unpack_fn=Unpack()):
            if not private:
                private.append(torch.empty_like(images))
            yield private[0].copy_(images)

    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(record(batches(), seconds)), flush=True)
    os._exit(0)


def main(role: str, folder: str, dtype: str, batch: str, seconds: str) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.set_num_threads(1)
    if role == "serve":
        serve(folder, dtype, int(batch))
    else:
        consume(int(batch), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
