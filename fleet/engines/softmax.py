"""A small engine: softmax regression in NumPy, float64, exact gradients.

It trains real networks, if plain ones, in microseconds a step. With it the whole runtime is tested:
groups, stream, rounds, checkpoints, failures. It is also an oracle: what it computes can be written
down by hand.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from fleet.comm.base import Group
from fleet.engines.base import WIDTH, Arrays, Setup, Sums
from fleet.errors import CheckpointError, ModelError, SettingError
from fleet.spec import NetworkSpec
from fleet.spec.model import Architecture, load_function
from preprocess.sample import SampleSpec


class NumpyEngine:
    """Builds softmax regressions, ``family: softmax``.

    ``build: module:function`` may give the first weights instead: it is called with ``input_shape``,
    ``classes`` and the network's arguments, and returns an array (features + 1, classes), the last row
    being the biases.
    """

    exchange_name = "mpi"

    def __init__(self, sample: SampleSpec) -> None:
        self._sample = sample

    def build(self, network: NetworkSpec, group: Group) -> SoftmaxRegression:  # noqa: D102 - Engine says it
        features = self._sample.image.size
        shape = (features + 1, self._sample.classes)
        if network.architecture.kind == "import":
            weights = load_function(network.architecture.target)(
                input_shape=self._sample.image.shape, classes=self._sample.classes, **network.architecture.args)
            weights = np.array(weights, np.float64)
            if weights.shape != shape:
                raise ModelError(f"{network.architecture.target} returned weights of shape {weights.shape}, not "
                                 f"{shape}")
        else:
            weights = np.random.default_rng(network.seed).normal(0, 0.01, shape)
        return SoftmaxRegression(network, group, self._sample, weights)


def make(setup: Setup) -> NumpyEngine:
    """The engine of a trainer."""
    return NumpyEngine(setup.sample)


def count_parameters(architecture: Architecture, shape: tuple[int, ...], classes: int, seed: int) -> int:
    """The weights of a regression, whatever function gives the first ones."""
    return (math.prod(shape) + 1) * classes


class SoftmaxRegression:
    """Multinomial logistic regression, trained by gradient descent with momentum.

    Args:
        weights: (features + 1, classes), the first ones; the last row is the biases.
    """

    def __init__(self, network: NetworkSpec, group: Group, sample: SampleSpec, weights: np.ndarray) -> None:
        optimizer = network.train.optimizer
        if optimizer.name != "sgd" or not isinstance(optimizer.learning_rate, float):
            raise SettingError("the numpy engine has only sgd with a constant learning rate", "train", "optimizer")
        self._group, self._sample = group, sample
        self._rate = optimizer.learning_rate * network.learning_rate_scale(group.size)
        self._momentum = optimizer.momentum or 0.0
        self._weights = weights
        self._velocity = np.zeros_like(weights)

    def step(self, images: np.ndarray, labels: np.ndarray, size: int,  # noqa: D102 - Trainable says it
             stop: bool = False) -> Sums:
        gradient, mine = np.zeros_like(self._weights), Sums(stop=stop)
        error: BaseException | None = None
        try:
            gradient, sums = self._gradient(images, labels)
            mine += sums
        except BaseException as caught:  # the other ranks wait for this one's part
            error, mine = caught, Sums(stop=stop, failed=True)
        buffer = np.concatenate([gradient.ravel(), mine.pack()])
        self._group.sum(buffer)
        gradient, sums = buffer[:-WIDTH].reshape(self._weights.shape), Sums.unpack(buffer[-WIDTH:])
        sums.raise_failure(error)
        if sums.count:  # a batch of which no sample could be read changes nothing
            self._velocity = self._momentum * self._velocity - self._rate * (gradient / sums.count)
            self._weights = self._weights + self._velocity
        return sums

    def _gradient(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, Sums]:
        """The gradient of the summed loss, of the weights' shape, and the sums."""
        valid = labels >= 0
        inputs, labels = self._features(images[valid]), labels[valid]
        probabilities, losses, correct = self._predict(inputs, labels)
        probabilities[np.arange(len(labels)), labels] -= 1
        return inputs.T @ probabilities, Sums(float(losses.sum()), float(correct.sum()), len(labels))

    def evaluate(self, images: np.ndarray, labels: np.ndarray) -> Sums:  # noqa: D102
        valid = labels >= 0
        _, losses, correct = self._predict(self._features(images[valid]), labels[valid])
        return Sums(float(losses.sum()), float(correct.sum()), float(valid.sum()))

    def average_statistics(self) -> None:
        """There are none."""

    def learning_rate(self) -> float:  # noqa: D102
        return self._rate

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {"weights": self._weights.copy(), "velocity": self._velocity.copy()}

    def load(self, arrays: Arrays) -> None:  # noqa: D102
        if set(arrays) != {"weights", "velocity"} or arrays["weights"].shape != self._weights.shape:
            shapes = json.dumps({name: list(array.shape) for name, array in arrays.items()})
            raise CheckpointError(f"a checkpoint of another network: {shapes}")
        self._weights = np.array(arrays["weights"])
        self._velocity = np.array(arrays["velocity"])

    def export(self, arrays: Arrays, path: Path) -> None:
        """Nothing but Keras reads ``.keras`` files; the weights are in the checkpoint."""

    def count_parameters(self) -> int:  # noqa: D102 - Examinable says it
        return self._weights.size

    def row_bytes(self) -> int:
        """Of the inputs, and of the logits with their gradient, all float64."""
        features, classes = self._weights.shape
        return 8 * (features + 2 * classes)

    def try_export(self, folder: Path) -> str:
        """There is nothing to try."""
        return ""

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._group = group

    def close(self) -> None:
        """Nothing is held."""

    def _features(self, images: np.ndarray) -> np.ndarray:
        scaled = images if self._sample.affine is None else self._sample.affine.apply(images)
        flat = scaled.reshape(len(images), self._sample.image.size).astype(np.float64)
        return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)

    def _predict(self, inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits = inputs @ self._weights
        logits -= logits.max(axis=1, keepdims=True)
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):  # an infinite loss is a fact, which the trainer reports
            losses = -np.log(probabilities[np.arange(len(labels)), labels])
        return probabilities, losses, probabilities.argmax(axis=1) == labels
