"""A network that moves from one group to another."""

import numpy as np
import pytest

from fleet.comm.protocols import Group
from fleet.domain.network import TrainingState
from fleet.engines.softmax import NumpyEngine
from fleet.runtime.training.agreement import TrainingFailed
from fleet.runtime.training.network import Training
from fleet.spec import parse
from fleet.stream.batch import Batch, split_rows
from fleet.stream.order import Epoch
from preprocess.sample import ArraySpec, SampleSpec
from tests.fleet.histories import SAMPLE, spec
from tests.fleet.one_process import Launch


def training_in(group):
    network = spec({"family": "softmax"}).networks[0]
    training = Training(network, reads_stream_from=0)
    training.group, training.trainable = group, NumpyEngine(SAMPLE).build(network, group)
    return training


def weights(training):
    return training.trainable.state()["weights"].tolist()


def test_change_group_gives_new_ranks_masters_network():
    results, grown = {}, TrainingState({}, "i", stream_epoch=3, position=8)

    def rank_main(world):
        training = training_in(world.group([world.rank], world.rank))
        if world.rank == 1:  # has trained, and stays as the master of all
            training.step(np.ones((2, 4, 4, 1), np.uint8), np.array([0, 2]), 2)
        state = training.change_group(
            world.group([1, 0, 2], 10), 1, grown if world.rank == 1 else None
        )
        results[world.rank] = (state, weights(training), training.group.size)

    assert Launch(3, 0).run(rank_main)
    assert results[0] == results[1] == results[2]
    assert results[1][0] == grown


def test_change_group_raises_build_failures_on_all_ranks():
    failed = {}

    def rank_main(world):
        training = training_in(world.group([world.rank], world.rank))
        failure = ValueError("unknown layer") if world.rank == 2 else None
        with pytest.raises(TrainingFailed, match="unknown layer") as caught:
            training.change_group(world.group(range(3), 10), 2, TrainingState({}, "i"), failure)
        failed[world.rank] = caught.value.reason

    assert Launch(3, 0).run(rank_main)
    assert len(failed) == 3


def test_step_failure_on_one_rank_fails_all():
    failed = {}

    def rank_main(world):
        training = training_in(world.group(range(3), 10))
        rows = np.ones((2, 4, 4, 1), np.uint8) if world.rank else np.ones((2, 9, 9, 1), np.uint8)
        with pytest.raises(TrainingFailed) as caught:
            training.step(rows, np.array([0, 1]), 6)
        failed[world.rank] = caught.value.reason

    assert Launch(3, 0).run(rank_main)
    assert len(set(failed.values())) == 1
    assert "mismatch" in failed[1]


def test_schedule_failure_on_one_rank_fails_all():
    failed = {}

    def end():
        raise ValueError("the schedule has ended")

    def rank_main(world):
        training = training_in(world.group(range(3), 10))
        if world.rank == 1:
            training.trainable.learning_rate = end
        with pytest.raises(TrainingFailed) as caught:
            training.learning_rate()
        failed[world.rank] = caught.value.reason

    assert Launch(3, 0).run(rank_main)
    assert set(failed) == {0, 1, 2}
    assert len(set(failed.values())) == 1
    assert "the schedule has ended" in failed[0]


# ---- batch transforms ----------------------------------------------------------------------------


def test_ranks_train_on_their_rows_of_a_transformed_batch():
    class GroupOf(Group):
        def __init__(self, rank, size):
            self.rank = rank
            self.size = size
            self.ranks = tuple(range(size))

    sample = SampleSpec(ArraySpec((2,), "float32"), 3)
    network = parse(
        {"models": [{"family": "softmax"}], "train": {"batch_transforms": ["mixup"]}}
    ).networks[0]
    random = np.random.default_rng(0)
    rows = sample.input.random_inputs(random, 12), sample.target.random_targets(random, 12)

    def read(group):
        """Yield two batches, the second one smaller, as the readers of a stream do."""
        for first, last in ((0, 7), (7, 12)):
            size = last - first
            share = slice(*split_rows(first, last, group.rank, group.size))
            yield Batch(*(part[share] for part in rows), size, last, last == 12, Epoch(0))

    def batches(rank, size):
        training = Training(network, 0, sample.target, sample)
        training.group = GroupOf(rank, size)
        return list(training.transform_batches(read, epoch=4, size=7))

    alone = batches(0, 1)
    assert not np.array_equal(alone[0].inputs, rows[0][:7])
    for number, batch in enumerate(alone):
        parts = [batches(rank, 3)[number] for rank in range(3)]
        assert np.array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)
        assert np.array_equal(np.concatenate([part.targets for part in parts]), batch.targets)
