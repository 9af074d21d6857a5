"""What is left to the device, for modules of PyTorch: the numbers of the host, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from preprocess.deferred_augmentation import finished
from preprocess.sample import ImageSpec
from tests.fleet.engines.deferred_samples import DTYPES, random_deferred_samples
from tests.fleet.engines.torch.test_network import MODULES, built

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"),
    [((9, 12, 3), (8, 8)), ((5, 4, 1), (7, 6)), ((6, 6, 2), (6, 6)), ((5, 5, 3), (4, 6))],
)
def test_tensors_are_moved_as_numpy_moves_arrays(dtype, shape, to):
    import torch

    from fleet.engines.torch.deferred_augmentation import augment_deferred as as_tensors

    rows, sample = random_deferred_samples(dtype, shape, to, count=40)
    expected = finished(rows, sample)
    assert expected.any()
    moved = as_tensors(torch.from_numpy(rows), sample).numpy()
    assert (moved.dtype, moved.tobytes()) == (expected.dtype, expected.tobytes())
    one_by_one = [as_tensors(torch.from_numpy(row[None]), sample).numpy() for row in rows]
    assert np.concatenate(one_by_one).tobytes() == expected.tobytes()


@pytest.mark.parametrize("train", [{}, {"precision": "mixed_bfloat16"}], ids=["plain", "bfloat16"])
def test_augment_deferred_matches_host_bit_for_bit(train):
    rows, sample = random_deferred_samples()
    labels = np.arange(12) % 3
    labels[[2, 7]] = -1  # could not be read
    moved = []
    for images, fed in (
        (rows, sample),
        (finished(rows, sample), replace(sample, deferred_input=None)),
    ):
        network = built(sample=fed, **train)
        sums = [network.step(images, labels, 12), *network.stride(images, labels, [4, 8])]
        judged, outputs = network.predict(images, labels)
        moved.append(
            (
                sums,
                judged,
                network.evaluate(images, labels),
                outputs.tobytes(),
                {name: array.tobytes() for name, array in network.state().items()},
            )
        )
    assert moved[0] == moved[1]


def test_an_export_is_tried_on_images(tmp_path):
    _, sample = random_deferred_samples(shape=(9, 12, 1), to=(8, 8))
    sample = replace(sample, affine=None, deferred_input=ImageSpec((9, 12, 1), "uint8"))
    network = built({"build": f"{MODULES}:dense"}, sample)
    network.try_export(tmp_path)
    assert (tmp_path / "best.safetensors").exists()
