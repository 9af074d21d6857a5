"""Train with Horovod, one step per call and several: the weights must be equal bit for bit.

At the end one rank fails in the middle of a call, and all ranks must notice. test_keras.py runs
this.
"""

import sys

import numpy as np
import pytest

from fleet.comm.mpi import start_mpi
from fleet.engines.base import EngineContext, PeerFailed, StepTotals
from fleet.engines.steps import StepBatches
from fleet.spec import Resources, parse
from fleet.stream.batch import split_rows
from preprocess.sample import Affine, ArraySpec, SampleSpec

SAMPLE = SampleSpec(ArraySpec((8, 8, 1), "uint8"), 3, Affine(0.5, 0.5))
ARGS = {"plain": {"norm": "none"}, "normalised": {"dropout": 0.2}}


def batches(rng, group):
    """Yield (images, labels, rows of the global batch) of this rank.

    Some samples are unreadable, and the last batch is smaller.
    """
    size = int(rng.integers(group.size, 9))
    for position in range(9):
        rows = size if position < 8 else int(rng.integers(1, size + 1))
        labels = rng.integers(0, 3, rows)
        images = (rng.integers(0, 100, (rows, 8, 8, 1)) + 70 * labels[:, None, None, None]).astype(
            np.uint8
        )
        labels[rng.random(rows) < 0.2] = -1
        if position in (2, 5):  # of rank 0, or of all
            labels[: split_rows(0, rows, 0, group.size)[1] if position == 2 else rows] = -1
        own_rows = slice(*split_rows(0, rows, group.rank, group.size))
        yield images[own_rows], labels[own_rows], rows


def train(engine, network, group, batches, cuts):
    """Return the sums of each batch and the final state; ``cuts`` divide the batches into calls."""
    built, waits = engine.build(network, group), []
    request = StepTotals(stop=group.is_master, steps=4 if group.is_master else 0)
    sums = []
    for part in np.split(np.arange(len(batches)), cuts):
        images, labels, sizes = zip(*(batches[index] for index in part), strict=True)
        waits.append(
            built.begin_steps(
                StepBatches(
                    (np.concatenate(images), np.concatenate(labels)),
                    sizes,
                    [len(entry) for entry in labels],
                    request,
                )
            )
        )
        if len(waits) > 1:
            sums += waits.pop(0)().sums
    sums += waits.pop()().sums
    state = built.state()
    built.close()
    return sums, state


def fail_together(engine, group):
    """Train on three batches; on the last rank, the second one has a label unknown to the loss."""
    [network] = parse(
        {
            "models": [{"family": "cnn", "args": {"filters": [4], "dense": [8]}}],
            "train": {"loss": "tests.fleet.engines.keras.test_network:failing"},
        }
    ).networks
    built, fails = engine.build(network, group), group.rank == group.size - 1
    images, labels = np.zeros((3, 8, 8, 1), np.uint8), np.array([0, 2 if fails else 1, 0])
    with pytest.raises(Exception, match="assertion failed" if fails else "another rank") as caught:
        built.begin_steps(StepBatches((images, labels), 3 * [group.size], 3 * [1]))()
    assert isinstance(caught.value, PeerFailed) != fails
    built.close()


def main():
    from fleet.engines.keras.engine import KerasEngine

    world = start_mpi()
    group, rng = world.group(range(world.size), 1), np.random.default_rng(int(sys.argv[2]))
    engine = KerasEngine(
        EngineContext(SAMPLE, Resources(exchange="horovod"), index=world.rank, trainers=world.size)
    )
    for name, args in ARGS.items():
        [network] = parse(
            {
                "models": [
                    {"family": "cnn", "name": name, "args": {"filters": [4], "dense": [8], **args}}
                ],
                "train": {"optimizer": {"name": "adam", "learning_rate": 0.01}},
            }
        ).networks
        provided = list(batches(rng, group))
        sums, state = train(engine, network, group, provided, range(1, 9))
        for cuts in ([], np.sort(rng.choice(np.arange(1, 9), 3, replace=False))):
            other_sums, other_state = train(engine, network, group, provided, cuts)
            assert other_sums == sums
            assert all(np.array_equal(value, other_state[key]) for key, value in state.items())
        assert all(step.stop and step.steps == 4 for step in sums)
        assert sums[5].count == 0
        assert any(step.count for step in sums)
    fail_together(engine, group)
    print("equal weights", flush=True)
    world.finish()


main()
