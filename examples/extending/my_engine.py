"""A custom engine: logistic regression for each class, by gradient descent in NumPy."""

import numpy as np

from fleet.engines.base import WIDTH, StepTotals
from fleet.errors import CheckpointError
from fleet.spec.engines import EngineInfo


class LogisticEngine:
    exchange_name = "mpi"  # how gradients travel, for the log

    def __init__(self, setup):
        self.sample = setup.sample

    def build(self, network, group):
        return Logistic(network, group, self.sample)


class Logistic:
    """One network on one rank of its group."""

    def __init__(self, network, group, sample):
        self.group, self.sample = group, sample
        self.rate = network.train.optimizer.learning_rate * network.learning_rate_scale(group.size)
        self.weights = np.zeros((sample.input.size + 1, sample.classes))

    def step(self, inputs, labels, size, stop=False):
        gradient, sums, error = np.zeros_like(self.weights), StepTotals(stop=stop), None
        try:
            gradient, own_totals = self._judge(inputs, labels)
            sums += own_totals
        except Exception as caught:  # the other ranks wait for this one's part
            error, sums = caught, StepTotals(failed=True)
        buffer = np.concatenate([gradient.ravel(), sums.pack()])
        self.group.sum(buffer)  # over all ranks of the group, in one reduction
        sums = StepTotals.unpack(buffer[-WIDTH:])
        sums.raise_failure(error)
        self.weights -= self.rate * buffer[:-WIDTH].reshape(self.weights.shape) / max(sums.count, 1)
        return sums

    def evaluate(self, inputs, labels):
        return self._judge(inputs, labels)[1]

    def _judge(self, inputs, labels):
        """Return the gradient of the summed loss, and the totals, of the readable samples."""
        inputs, labels = inputs[labels >= 0], labels[labels >= 0]
        if self.sample.affine is not None:  # a scale that the stream leaves to the engine
            inputs = self.sample.affine.apply(inputs)
        pixels = np.c_[inputs.reshape(len(inputs), self.sample.input.size), np.ones(len(inputs))]
        expected, scores = np.eye(self.sample.classes)[labels], pixels @ self.weights
        loss = np.logaddexp(0, np.where(expected, -scores, scores)).sum()
        gradient = pixels.T @ (1 / (1 + np.exp(-scores)) - expected)
        return gradient, StepTotals(
            float(loss), float((scores.argmax(axis=1) == labels).sum()), len(labels)
        )

    def state(self):
        return {"weights": self.weights.copy()}

    def load(self, arrays):
        if set(arrays) != {"weights"} or arrays["weights"].shape != self.weights.shape:
            raise CheckpointError(f"a checkpoint of another network: {sorted(arrays)}")
        self.weights = np.array(arrays["weights"])

    def learning_rate(self):
        return self.rate

    def regroup(self, group):
        self.group = group

    def average_statistics(self):
        """Do nothing: there are no statistics beside the weights."""

    def export(self, arrays, path):
        """Do nothing: the engine's entry does not support export."""

    def close(self):
        """Do nothing: no resources are open."""


ENGINE = EngineInfo(
    "logistic",
    make="my_engine:LogisticEngine",
    families=frozenset({"softmax"}),
    checkpoint_bytes=lambda parameters, slots: 8 * parameters,
)
