"""The rate of a network, on samples made up."""

from types import SimpleNamespace

import numpy as np
import pytest

from fleet.engines.base import Sums
from fleet.runtime.training import measuring
from fleet.runtime.training.measuring import made_up, measure_rate
from fleet.spec import Profile
from fleet.storage.state import StepRate
from preprocess.sample import ImageSpec, SampleSpec


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("rows", [0, 5])
def test_made_up_samples_are_of_the_datas_shape_and_type(rows, dtype):
    images, labels = made_up(SampleSpec(ImageSpec((4, 3, 1), dtype), 3), rows)
    assert (images.shape, images.dtype) == ((rows, 4, 3, 1), dtype)
    assert (labels.shape, labels.dtype) == ((rows,), np.int64)
    assert set(labels) <= {0, 1, 2}


@pytest.mark.parametrize(("rank", "rows"), [(0, 4), (1, 3), (2, 3)])
def test_the_last_steps_of_a_few_are_timed_each_rank_with_its_share(monkeypatch, rank, rows):
    now, seen = SimpleNamespace(s=0.0), []
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now.s)

    def step(images, labels, size):
        seen.append((len(images), len(labels), size))
        now.s += 10.0 if len(seen) <= 2 else 0.5  # the first ones trace
        return Sums()

    training = SimpleNamespace(group=SimpleNamespace(rank=rank, size=3), step=step,
                               network=SimpleNamespace(global_batch=lambda gpus: 10))
    sample = SampleSpec(ImageSpec((2, 2, 1), "uint8"), 2)
    assert measure_rate(training, sample, Profile(batches=6, timed=4)) == StepRate(10 / 0.5, 0.0, 4)
    assert seen == [(rows, rows, 10)] * 6
