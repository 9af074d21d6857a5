"""Batches that a rank prepares itself."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.single_rank import SingleRankGroup
from fleet.stream.augment import AugmentedEpochs
from fleet.stream.batch import split_rows
from fleet.stream.local_batches import LocalBatches
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.stall import Waiting
from fleet.stream.store import FileStore
from preprocess.base import UnreadableSample
from preprocess.pipeline import Pipeline
from preprocess.probe import infer_sample_spec
from preprocess.transforms import parse_transforms
from tests.examples import examples
from tests.fleet.one_process import Launch
from tests.fleet.stream.streams import SEED, alone_in_the_world, expected, own_stream, pipeline
from tests.sources import Numbered, partly_bad


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.integers(0, 3), st.integers(0, 29)
)
def test_local_batches_equal_those_of_the_stream(samples, batch, size, epoch, start):
    alone, start = pipeline(samples), min(start, samples - 1)
    rows = []

    def rank_main(world):
        order = StrictOrder(alone, samples)
        stream = LocalBatches(FileStore(pipeline(samples)), order, Waiting(world), pytest.fail)
        group = world.group(range(size), 1)
        for prepared in stream.batches(Epoch(epoch), start, batch, group, ()):
            first, last = split_rows(
                prepared.position - prepared.size, prepared.position, world.rank, size
            )
            np.testing.assert_array_equal(
                prepared.inputs, expected(alone, order.plan_epoch(Epoch(epoch)), first, last)[0]
            )
            rows.extend(range(first, last))

    assert Launch(size, seed=0).run(rank_main)
    assert sorted(rows) == list(range(start, samples))


def test_local_batches_stop_their_thread_when_abandoned():
    import threading

    def abandon(world):
        for _ in own_stream(pipeline(30), world, pytest.fail).batches(
            Epoch(0), 0, 1, SingleRankGroup()
        ):
            break

    alone_in_the_world(abandon)
    assert not any("own-stream" in thread.name for thread in threading.enumerate())


def test_local_batches_raise_errors_where_used():
    class Broken(Numbered):
        def read(self, index):
            raise RuntimeError("the source has a bug")

    broken = Pipeline(Broken(30, seed=1), [], SEED, pipeline(30).sample)

    def use(world):
        with pytest.raises(RuntimeError, match="the source has a bug"):
            list(own_stream(broken, world, pytest.fail).batches(Epoch(0), 0, 4, SingleRankGroup()))

    alone_in_the_world(use)


def test_local_batches_report_and_mark_unreadable_samples():
    source, validation = partly_bad("30")
    messages = []

    def use(world):
        stream = own_stream(Pipeline.from_source(source, [], SEED), world, messages.append)
        return [
            label
            for batch in stream.batches(Epoch(0), 0, 7, SingleRankGroup())
            for label in batch.targets
        ]

    assert alone_in_the_world(use).count(-1) == 1
    (bad,) = messages
    assert isinstance(bad, UnreadableSample)
    assert str(bad) == "sample 5: torn file"


class CountingPipeline(Pipeline):
    """Counts how often each sample of each epoch is augmented."""

    def augment_stored(self, inputs, targets, indices, epoch, *arguments, **options):
        self.counts = getattr(self, "counts", Counter())
        self.counts.update((epoch, index) for index in indices.tolist())
        return super().augment_stored(inputs, targets, indices, epoch, *arguments, **options)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sets(st.integers(0, 9), min_size=1)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 4),
)
def test_local_batches_share_augmented_epochs(requests, capacity):
    alone = pipeline(10)
    transforms = parse_transforms(["tests.sources:noise"])
    counting = CountingPipeline(
        alone.source, transforms, SEED, infer_sample_spec(alone.source, transforms, SEED, keep=True)
    )
    stored, stored_targets = counting.empty_stored(10)
    counting.load_stored(range(10), stored, stored_targets)
    images, targets = counting.empty(10)
    cache = AugmentedEpochs(counting, limit=capacity * (images.nbytes + targets.nbytes + 10))
    for epoch, chosen in requests:
        indices = np.array(sorted(chosen))
        images, targets = counting.empty(len(indices))
        assert not cache.finish(
            lambda rows: (stored[rows], stored_targets[rows]), indices, epoch, images, targets
        )
        expected_images, expected_targets = alone.empty(len(indices))
        alone.load(indices, epoch, expected_images, expected_targets)
        np.testing.assert_array_equal(images, expected_images)
        np.testing.assert_array_equal(targets, expected_targets)
    cached = list(dict.fromkeys(epoch for epoch, _ in requests))[:capacity]
    for (epoch, index), count in counting.counts.items():
        if epoch in cached:
            assert count == 1
        else:
            assert count == sum(
                epoch == requested and index in chosen for requested, chosen in requests
            )
