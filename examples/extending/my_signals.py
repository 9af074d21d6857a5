"""A custom source with values for targets: waves and their frequencies.

A spec names it with `source: my_signals:waves` and `options: {count: 300}`.
"""

import numpy as np

from fleet.preprocess.base import RandomAccess
from fleet.preprocess.target import TargetSpec


class Waves(RandomAccess):
    """Signals of one channel, generated on demand; only the numbers below are sent to ranks."""

    target = TargetSpec("value", 1, ("swings",))

    def __init__(self, count):
        self.targets = np.random.default_rng(0).uniform(1, 9, (count, 1)).astype(np.float32)
        # fast swings count half
        self.weights = np.where(self.targets[:, 0] > 8, 0.5, 1).astype(np.float32)

    def __len__(self):
        return len(self.targets)

    def read(self, index):
        noise = np.random.default_rng(index).normal(0, 0.1, (64, 1))
        return (
            np.sin(np.linspace(0, 2 * np.pi, 64)[:, None] * self.targets[index]) + noise
        ).astype(np.float32)

    def name(self, index):
        return f"wave {index}"


def waves(path, count):
    """Open the source; it reads no path."""
    return Waves(count)
