"""Epochs of finished samples that the trainers of a node share.

What a sample looks like in an epoch depends on the seed, the epoch and the sample alone. So what one trainer has
finished serves all that come to the same epoch, side by side or later, as long as there is room.
"""

from __future__ import annotations

import numpy as np

from fleet.comm.segment import Segment, aligned, fence
from preprocess.sample import ImageSpec

Finished = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs, targets, which of them are there


class NodeEpochs:
    """Room for some epochs.

    A trainer says which epoch it is at before it touches one, under a lock. An epoch makes room for another only where
    no trainer is at it, the latest first: networks that begin later come to the early ones.

    Args:
        image: what the input of a finished sample is.
        target: the type in which targets travel.
        samples: of an epoch.
        epochs: that have room.
        trainers: of the node.
    """

    def __init__(self, image: ImageSpec, target: np.dtype, samples: int, epochs: int, trainers: int, name: str,
                 create: bool) -> None:
        sizes = (8 * trainers, 8 * epochs, samples * epochs, target.itemsize * samples * epochs,
                 image.nbytes * samples * epochs)
        starts = np.cumsum([0, *map(aligned, sizes)]).tolist()
        self.segment = Segment(name, starts[-1], create)
        memory = self.segment.memory
        # The number of an epoch, and 1 more: 0 is none.
        self._at = np.frombuffer(memory, np.int64, trainers)
        self._holds = np.frombuffer(memory, np.int64, epochs, starts[1])
        self._are_there = np.frombuffer(memory, np.bool_, samples * epochs, starts[2]).reshape(epochs, samples)
        self._targets = np.frombuffer(memory, target, samples * epochs, starts[3]).reshape(epochs, samples)
        self._images = np.frombuffer(memory, image.dtype, samples * epochs * image.size, starts[4]
                                     ).reshape(epochs, samples, *image.shape)

    def take(self, trainer: int, production: int) -> Finished | None:
        """An epoch, which stays until this trainer takes another; None where there is no room for it."""
        if self._at[trainer] != production + 1:
            with self.segment.locked():
                self._at[trainer] = production + 1
                if production + 1 not in self._holds and (room := self._room()) is not None:
                    self._are_there[room] = False
                    fence()
                    self._holds[room] = production + 1
        found = np.flatnonzero(self._holds == production + 1)
        return (self._images[found[0]], self._targets[found[0]], self._are_there[found[0]]) if len(found) else None

    def _room(self) -> int | None:
        latest = np.where(self._holds == 0, np.iinfo(np.int64).max, self._holds)  # those that hold none first
        latest[np.isin(self._holds, self._at) & (self._holds > 0)] = -1
        place = int(latest.argmax())
        return place if latest[place] > 0 else None
