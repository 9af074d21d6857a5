"""The rules of losses and accuracy, with NumPy in place of a tensor library."""

import numpy as np
import pytest

from fleet.engines.tensor_ops import TensorOps
from fleet.errors import SettingError
from preprocess.target import TargetSpec, class_target

OPS = TensorOps(
    as_float=lambda array: np.asarray(array, np.float32),
    as_int=lambda array: np.asarray(array, np.int64),
    one_hot=lambda classes, count: np.eye(count)[classes],
    argmax=lambda outputs: outputs.argmax(-1),
    softmax=lambda outputs: np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True),
    maximum=np.maximum,
    mean=np.mean,
    sum=np.sum,
    sigmoid=lambda outputs: 1 / (1 + np.exp(-outputs)),
    zeros_like=np.zeros_like,
    take=np.take,
    select=np.where,
)
MASK = TargetSpec("mask", 2, size=(1, 2))
VOID = np.array([[[1, MASK.void]]], np.uint8)  # of two pixels one is counted


def test_with_class_weights_ignores_excluded_pixels():
    losses = OPS.with_class_weights(
        lambda outputs, labels: np.float32(labels + 3), MASK, np.array([1.0, 0.5])
    )
    assert losses(np.zeros((1, 1, 2, 2)), VOID).tolist() == [2.0]  # (1 + 3) * 0.5


def test_with_class_weights_refuses_losses_of_masks():
    losses = OPS.with_class_weights(lambda outputs, labels: np.ones(1), MASK, np.ones(2))
    with pytest.raises(SettingError, match="one number per mask"):
        losses(np.zeros((1, 1, 2, 2)), VOID)


@pytest.mark.parametrize(
    ("target", "outputs", "targets", "expected"),
    [
        (class_target(2), [[0, 1], [1, 0]], [1, 1], [1, 0]),
        (TargetSpec("multilabel", 2), [[1, 1], [1, -1]], [[1, 0], [1, 0]], [0.5, 1]),
        (TargetSpec("value", 1), [[3.0]], [[3.0]], [0]),
        (MASK, [[[[0, 1], [0, 1]]]], VOID, [1]),
    ],
    ids=["class", "multilabel", "value", "mask"],
)
def test_correct_is_the_share_of_a_sample(target, outputs, targets, expected):
    shares = OPS.correct(np.array(outputs), np.array(targets), target)
    assert shares.tolist() == expected


def test_per_sample_takes_the_mean_of_further_axes():
    target = class_target(2)
    assert OPS.per_sample(np.array([[1, 3], [2, 2]]), "own", target).tolist() == [2, 2]
    with pytest.raises(SettingError, match="own returns one number for a whole batch"):
        OPS.per_sample(np.array(1.0), "own", target)
