"""Helpers for tests of streams: samples, unnamed shared memory, a launch of one rank."""

import itertools
import os

from fleet.stream.layout import Layout
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import StrictOrder
from fleet.stream.sample_set import SampleSet
from fleet.stream.stall import Waiting
from fleet.stream.store import FileStore
from fleet.stream.window import Window
from preprocess.pipeline import Pipeline
from preprocess.sample import ArraySpec
from preprocess.transforms import parse_transforms
from tests.fleet.one_process import Launch
from tests.sources import Numbered

SEED = 3
GREY, COLOR = ArraySpec((4, 4, 1), "uint8"), ArraySpec((32, 32, 3), "uint8")
LAYOUT = Layout(
    ArraySpec((2, 3, 1), "float32"), samples=10, chunk=4, slots=3, lookahead=9, readers=2
)


def pipeline(samples):
    """Return a pipeline whose samples differ in every epoch."""
    return Pipeline.from_source(
        Numbered(samples, seed=1), parse_transforms(["tests.sources:noise"]), SEED
    )


def expected(alone, plan, first, last):
    """Return rows of an epoch as one rank alone prepares them."""
    images, labels = alone.empty(last - first)
    for row in range(first, last):
        index = slice(row - first, row - first + 1)
        alone.load([plan.indices[row]], int(plan.productions[row]), images[index], labels[index])
    return images, labels


_count = itertools.count()


def new_name():
    """Return a unique name for a segment."""
    return f"fleet-test-{os.getpid()}-{next(_count)}"


def window_of(layout, is_relayed=False):
    window = Window(layout, new_name(), create=True, is_relayed=is_relayed)
    window.segment.unlink()
    return window


def set_of(samples, chunk):
    """Return an empty sample set."""
    sample_set = SampleSet(GREY, samples, chunk, new_name(), create=True)
    sample_set.segment.unlink()
    return sample_set


def alone_in_the_world(function):
    """Call ``function(world)`` in a launch of one rank, and return its result."""
    results = []
    Launch(1, seed=0).run(lambda world: results.append(function(world)))
    return results[0]


def own_stream(alone, world, on_bad):
    return LocalBatches(FileStore(alone), StrictOrder(alone, alone.samples), Waiting(world), on_bad)
