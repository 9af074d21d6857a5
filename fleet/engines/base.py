"""The seam between a training loop and what computes: build, step, evaluate, state.

An engine builds *trainables*. A trainable is one network on one rank of its training group; all ranks
of the group call the same methods in the same order, and the engine exchanges gradients inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fleet.comm.base import Group
from fleet.errors import FleetError
from fleet.spec import NetworkSpec, Resources
from preprocess.sample import SampleSpec
from scheduler.base import RateTable

# What a checkpoint holds of a network: arrays by name.
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class StepResult:
    """Sums over the valid samples of one global batch.

    Attributes:
        stop: whether any rank of the group asked to stop after this step.
    """

    loss: float
    correct: float
    count: float
    stop: bool = False

    def added_to(self, sums: tuple[float, float, float]) -> tuple[float, float, float]:
        """Loss, correct and count of more samples."""
        return sums[0] + self.loss, sums[1] + self.correct, sums[2] + self.count


@dataclass(frozen=True)
class Setup:
    """What an engine may build on, on one trainer rank.

    Attributes:
        inputs: what networks are fed with: shape, dtype, classes.
        resources: of the spec.
        rates: of the networks, where they are known.
        index: the place of this trainer among those of its node, which is that of its GPU.
        trainers: on this node; without GPUs they share its cores.
    """

    inputs: SampleSpec
    resources: Resources
    rates: RateTable | None = None
    index: int = 0
    trainers: int = 1


class PeerFailed(FleetError):
    """Another rank of the group failed in this step; its own reason comes from it."""


class Trainable(Protocol):
    """One network on one rank of its group."""

    def step(self, images: np.ndarray, labels: np.ndarray, size: int, stop: bool = False) -> StepResult:
        """Train on one global batch, of which this rank has some rows, perhaps none.

        The loss is the mean over the samples of the global batch that could be read (label >= 0).

        Args:
            images: (rows, height, width, channels), as on the wire.
            labels: (rows,) int64.
            size: rows of the global batch, over all ranks.
            stop: whether this rank asks the group to stop after this step; it travels with the gradients, so
                that all ranks stop after the same one.

        Returns:
            The sums over the whole batch, the same on every rank.

        Raises:
            Exception: whatever the network raises; :class:`PeerFailed` on the ranks where it did not.
        """

    def evaluate(self, images: np.ndarray, labels: np.ndarray) -> StepResult:
        """Sums over these samples, of this rank alone, without training."""

    def average_statistics(self) -> None:
        """Give all ranks the mean of what each gathered by itself (batch normalisation's statistics)."""

    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all that training needs to go on: weights, optimizer, random state."""

    def load(self, arrays: Arrays) -> None:
        """Take a state up again.

        Raises:
            CheckpointError: it belongs to another network.
        """

    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network with the weights of a state, for use without FLEET.

        The last thing that is done with a trainable: it may take up that state.
        """

    def regroup(self, group: Group) -> None:
        """Go on in another group of any size; collective over it, the network stays as it is on this rank.

        Only for networks whose batch and learning rate do not follow the number of ranks.
        """

    def close(self) -> None:
        """Give back what a group holds (Horovod)."""


class Engine(Protocol):
    """Builds trainables; one engine a trainer rank."""

    exchange_name: str

    def build(self, network: NetworkSpec, group: Group) -> Trainable:
        """Build a network for a group; its weights follow from the network's seed.

        Raises:
            Exception: whatever the model function raises.
        """
