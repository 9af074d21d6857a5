"""Run the stream by itself: ranks that prepare images, and ranks that only read them.

stream.py starts it: mpirun -n PREPROCESSORS+READERS python benchmarks/stream_ranks.py JOB, where
JOB is a :class:`Job` in JSON. Prints one :class:`Outcome` in JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from pace import record  # beside this file

from fleet.comm.messages import NO_LIMIT, Exit, Produce, Ready, Tag
from fleet.comm.protocols import World
from fleet.comm.roles import Roles, assign
from fleet.runtime.preprocessor import Preprocessor
from fleet.stream.compose import NodeMemory
from fleet.stream.layout import plan_layout
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.reader import Reader
from fleet.stream.stall import Waiting
from fleet.stream.window import Window
from preprocess.base import RandomAccess, Source
from preprocess.lazy_numba import NUMBA
from preprocess.probe import infer_sample_spec
from preprocess.record_pipeline import AnyPipeline, make_pipeline
from preprocess.records import parse_record_transforms
from preprocess.sample import Affine, named_arrays
from preprocess.sources.image_folder import ImageFolder

MEMORY = "memory"
RECORDS = "records"
_RECORD_EVERY_S = 0.02


@dataclass(frozen=True)
class Job:
    """The job of all ranks.

    Attributes:
        source: A folder of images; or prepared samples: MEMORY for those of one array, RECORDS for
            those of three arrays with as many bytes.
        transforms: Transforms of the images; readers apply a scale at the end.
        dtype: Dtype of the batches in a reader's own memory: uint8 is copied, float32 scaled.
        seconds: Duration after the warm-up.
        window: Size in bytes.
    """

    source: str
    transforms: list
    preprocessors: int
    readers: int
    dtype: str
    batch: int
    seconds: float
    window: int


@dataclass(frozen=True)
class Outcome:
    """The measurements of all ranks.

    Attributes:
        sample_bytes: Bytes of a sample in the window.
        reads: Times at which each reader received each batch, in seconds of the machine's clock.
        work: Records of each preprocessor: (time, its CPU seconds, samples that all have prepared).
    """

    sample_bytes: int
    reads: list[list[float]]
    work: list[list[tuple[float, float, int]]]


class ReadySamples(RandomAccess):
    """Samples that need no preparation; more of them than a processor cache holds."""

    classes = ("any", "other")

    def __init__(self, shape: tuple[int, int, int] = (224, 224, 3), samples: int = 512) -> None:
        self._images = np.random.default_rng(0).integers(0, 256, (samples, *shape), np.uint8)
        self.labels = np.zeros(samples, np.int64)

    def read(self, index: int) -> np.ndarray:
        return self._images[index]

    def name(self, index: int) -> str:
        return f"sample {index}"


class ReadyRecords(ReadySamples):
    """Samples of three arrays that need no preparation: an image, a signal and some numbers."""

    input_names = ("image", "signal", "facts")

    def __init__(self, samples: int = 512) -> None:
        super().__init__((224, 224, 2), samples)
        random = np.random.default_rng(1)
        self._signals = random.random((samples, 6000, 2), np.float32)
        self._facts = random.integers(0, 99, (samples, 272))

    def read(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {
            "image": self._images[index],
            "signal": self._signals[index],
            "facts": self._facts[index],
        }


class StreamController:
    """The part of the coordinator: starts the stream, and ends it once no rank reads."""

    def __init__(self, world: World, roles: Roles) -> None:
        self._world = world
        self._roles = roles
        self._readers = len(roles.trainers)
        self._send(Produce(NO_LIMIT, NO_LIMIT, first=0, turns=roles.preprocessors))

    def step(self) -> bool:
        message = self._world.receive(Tag.COORDINATOR)
        if message is None:
            return False
        if not isinstance(message, Ready):  # preprocessors report their rates
            return True
        self._readers -= 1
        if not self._readers:
            self._send(Exit())
        return True

    def _send(self, message: Produce | Exit) -> None:
        for rank in self._roles.preprocessors:
            self._world.send(rank, Tag.PREPROCESSOR, message)


def main() -> None:
    from fleet.comm.mpi import start_mpi

    job = Job(**json.loads(sys.argv[1]))
    world = start_mpi()
    try:
        outcome = run(world, job)
    except BaseException as error:
        world.abort(error)
    if world.rank == 0:
        print(json.dumps(asdict(outcome)))


def run(world: World, job: Job) -> Outcome:
    roles = assign(world.node_of(), job.preprocessors, None)
    if job.source == MEMORY:
        source: Source = ReadySamples()
    elif job.source == RECORDS:
        source = ReadyRecords()
    else:
        source = ImageFolder(job.source)
    transforms = parse_record_transforms(job.transforms, source)
    pipeline = make_pipeline(
        source,
        transforms,
        0,
        world.broadcast_value(
            infer_sample_spec(source, transforms, 0) if world.rank == 0 else None
        ),
    )
    layout = plan_layout(
        pipeline.sample.input, pipeline.samples, job.window, job.batch, job.readers
    )
    name = f"fleet-benchmark-{world.broadcast_value(os.getpid() if world.rank == 0 else None)}"
    window = Window(layout, name, create=True) if world.rank == 0 else None
    world.allgather(None)
    window = window or Window(layout, name, create=False)
    world.allgather(None)
    if world.rank == 0:
        window.segment.unlink()
    if world.rank in roles.trainers:
        times, work = read(world, roles, window, pipeline, job), None
    else:
        times, work = None, serve(world, roles, window, pipeline)
    outcomes = world.allgather((times, work))
    world.finish()
    return Outcome(
        layout.array.nbytes,
        [reads for reads, _ in outcomes if reads],
        [work for _, work in outcomes if work],
    )


def serve(
    world: World, roles: Roles, window: Window, pipeline: AnyPipeline
) -> list[tuple[float, float, int]]:
    """Run a preprocessor; rank 0 also coordinates."""
    NUMBA.load()  # a run loads the compiled loops after some seconds
    order = StrictOrder(pipeline, window.layout.chunk)
    preprocessor = Preprocessor(world, roles, NodeMemory(window), order, pipeline, None)
    world.allgather(None)  # the readers have joined
    if world.rank == 0:
        world.background_tasks.append(StreamController(world, roles).step)
    world.background_tasks.append(preprocessor.step)
    notes: list[tuple[float, float, int]] = []

    def is_done() -> bool | None:
        now = time.monotonic()
        if not notes or now - notes[-1][0] > _RECORD_EVERY_S:
            notes.append((now, time.process_time(), window.newest() * window.layout.chunk))
        return preprocessor.is_done or None

    world.wait(is_done)
    world.background_tasks.clear()
    return notes


def read(
    world: World, roles: Roles, window: Window, pipeline: AnyPipeline, job: Job
) -> list[float]:
    """Run a trainer that only reads; return the arrival times of its batches."""
    NUMBA.load()
    stream = Reader(
        window,
        roles.trainers.index(world.rank),
        Waiting(world),
        StrictOrder(pipeline, window.layout.chunk),
    )
    group = world.group([world.rank], world.rank)
    stream.join(0)
    world.allgather(None)
    private = {
        name: np.empty(
            (job.batch, *array.shape), array.dtype if job.dtype == "uint8" else job.dtype
        )
        for name, array in pipeline.sample.input.arrays.items()
    }

    def batches() -> Iterator[None]:
        for epoch in itertools.count():
            for batch in stream.batches(Epoch(epoch), 0, job.batch, group):
                for name, inputs in named_arrays(batch.inputs).items():
                    take(inputs, private[name], pipeline.sample.affine)
                yield

    times = record(batches(), job.seconds)
    stream.leave()
    world.send(0, Tag.COORDINATOR, Ready(world.rank))
    return times


def take(images: np.ndarray, private: np.ndarray, affine: Affine | None) -> None:
    """Copy or scale images into private memory, like the first operation of a framework."""
    if private.dtype == images.dtype:
        np.copyto(private[: len(images)], images)
        return
    assert affine is not None
    affine.apply(images, out=private[: len(images)])


if __name__ == "__main__":
    main()
