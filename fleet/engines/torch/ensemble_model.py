"""Average the predictions of several exported networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fleet.engines.torch.devices import find_accelerator
from fleet.engines.torch.export import load, write
from fleet.engines.torch.flat_parameters import samples_to_device, to_arrays
from fleet.engines.torch.losses import OPS
from fleet.engines.torch.models import Samples
from preprocess.record_target import RecordTarget

_BATCH = 256


class EnsembleModule:
    """The weighted mean of the predictions of several exported networks.

    Args:
        files: the exports.
        weights: weight of each network; they sum to 1.
        kind: kind of the targets (:mod:`preprocess.target`); or several targets.
    """

    def __init__(
        self, files: Sequence[Path], weights: Sequence[float], kind: str | RecordTarget
    ) -> None:
        loaded = [load(file) for file in files]
        self._device = find_accelerator("auto")[0] or torch.device("cpu")
        self._networks = nn.ModuleList([network for network, _ in loaded]).to(self._device).eval()
        self._notes = [note for _, note in loaded]
        self._weights = weights
        self._kind = kind

    def predict(self, inputs: np.ndarray) -> np.ndarray:  # noqa: D102 - see ExportedEnsemble
        means = []
        with torch.no_grad():  # a module may still enable gradients itself
            for first in range(0, len(inputs), _BATCH):
                batch = np.ascontiguousarray(inputs[first : first + _BATCH])
                means.append(self._mean(samples_to_device(batch, self._device)))
        return np.concatenate(means)

    def _mean(self, samples: Samples) -> np.ndarray:
        weighted = [
            self._predictions(network(samples)) * weight
            for network, weight in zip(self._networks, self._weights, strict=True)
        ]
        mean: np.ndarray = torch.stack(weighted).sum(0).cpu().numpy()
        return mean

    def _predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions of outputs, (n, ...); of several targets, side by side."""
        if isinstance(self._kind, str):
            return OPS.probabilities(outputs, self._kind)
        parts = self._kind.split_outputs(outputs, torch.reshape)
        targets = self._kind.parts
        columns = [
            OPS.probabilities(part, targets[name].kind).flatten(1) for name, part in parts.items()
        ]
        return torch.cat(columns, 1)

    def save(self, path: Path) -> None:
        """Write the weights of all networks, prefixed by their numbers, and their notes."""
        state = {
            f"{index}.{name}": array
            for index, network in enumerate(self._networks)
            for name, array in to_arrays(network.module.state_dict()).items()
        }
        notes = [
            {**note, "weight": weight}
            for note, weight in zip(self._notes, self._weights, strict=True)
        ]
        write(state, {"mean_of": json.loads(json.dumps(notes))}, path)
