"""What the tests of streams have in common: made-up samples, memory without a name, a launch of one rank."""

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
from preprocess.sample import ImageSpec
from preprocess.transforms import parse_transforms
from tests.fleet.one_process import Launch
from tests.sources import Numbered

SEED = 3
GREY, COLOR = ImageSpec((4, 4, 1), "uint8"), ImageSpec((32, 32, 3), "uint8")
LAYOUT = Layout(
    ImageSpec((2, 3, 1), "float32"), samples=10, chunk=4, slots=3, lookahead=9, readers=2
)


def pipeline(samples):
    """Samples that are different in every epoch."""
    return Pipeline.from_source(
        Numbered(samples, seed=1), parse_transforms(["tests.sources:noise"]), SEED
    )


def expected(alone, whole, first, last):
    """What rows of an epoch hold, prepared by one rank alone."""
    images, labels = alone.empty(last - first)
    for row in range(first, last):
        index = slice(row - first, row - first + 1)
        alone.load([whole.indices[row]], int(whole.productions[row]), images[index], labels[index])
    return images, labels


_count = itertools.count()


def new_name():
    """Of a segment that no other test has."""
    return f"fleet-test-{os.getpid()}-{next(_count)}"


def window_of(layout, is_relayed=False):
    window = Window(layout, new_name(), create=True, is_relayed=is_relayed)
    window.segment.unlink()
    return window


def set_of(samples, chunk):
    """Room for samples that stay."""
    created = SampleSet(GREY, samples, chunk, new_name(), create=True)
    created.segment.unlink()
    return created


def alone_in_the_world(function):
    """Run something on a launch of one rank."""
    results = []
    Launch(1, seed=0).run(lambda world: results.append(function(world)))
    return results[0]


def own_stream(alone, world, on_bad):
    return LocalBatches(FileStore(alone), StrictOrder(alone, alone.samples), Waiting(world), on_bad)
