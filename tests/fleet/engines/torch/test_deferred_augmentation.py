"""Deferred augmentation in PyTorch gives the numbers of the host, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from preprocess.deferred_augmentation import finished
from preprocess.sample import ArraySpec
from tests.fleet.engines.async_steps import begin, take_step
from tests.fleet.engines.deferred_samples import DTYPES, random_deferred_samples
from tests.fleet.engines.torch.test_network import MODULES, built

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"),
    [((9, 12, 3), (8, 8)), ((5, 4, 1), (7, 6)), ((6, 6, 2), (6, 6)), ((5, 5, 3), (4, 6))],
)
def test_augment_deferred_matches_numpy(dtype, shape, to):
    import torch

    from fleet.engines.torch.deferred_augmentation import augment_deferred

    rows, sample = random_deferred_samples(dtype, shape, to, count=40)
    expected = finished(rows, sample)
    assert expected.any()
    augmented = augment_deferred(torch.from_numpy(rows), sample).numpy()
    assert (augmented.dtype, augmented.tobytes()) == (expected.dtype, expected.tobytes())
    single = [augment_deferred(torch.from_numpy(row[None]), sample).numpy() for row in rows]
    assert np.concatenate(single).tobytes() == expected.tobytes()


@pytest.mark.parametrize("train", [{}, {"precision": "mixed_bfloat16"}], ids=["plain", "bfloat16"])
def test_augment_deferred_matches_host_bit_for_bit(train):
    rows, sample = random_deferred_samples()
    labels = np.arange(12) % 3
    labels[[2, 7]] = -1  # unreadable samples
    results = []
    for images, input_sample in (
        (rows, sample),
        (finished(rows, sample), replace(sample, deferred_input=None)),
    ):
        network = built(sample=input_sample, **train)
        totals = [take_step(network, images, labels, 12)]
        totals += begin(network, images, labels, [4, 8])().sums
        evaluation, outputs = network.predict(images, labels)
        results.append(
            (
                totals,
                evaluation,
                network.evaluate(images, labels),
                outputs.tobytes(),
                {name: array.tobytes() for name, array in network.state().items()},
            )
        )
    assert results[0] == results[1]


def test_try_export_uses_images(tmp_path):
    _, sample = random_deferred_samples(shape=(9, 12, 1), to=(8, 8))
    sample = replace(sample, affine=None, deferred_input=ArraySpec((9, 12, 1), "uint8"))
    network = built({"build": f"{MODULES}:dense"}, sample)
    network.try_export(tmp_path)
    assert (tmp_path / "best.safetensors").exists()
