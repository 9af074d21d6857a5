"""PyTorch: the engine that trains plain modules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from fleet.comm.base import Group
from fleet.engines.base import Setup
from fleet.engines.torch.ahead import AheadNetwork
from fleet.engines.torch.device import take_device
from fleet.engines.torch.exchange import Exchange, MpiExchange, NoExchange, TorchExchange, exchange_name
from fleet.engines.torch.export import note_of
from fleet.engines.torch.flat import Flat
from fleet.engines.torch.losses import make_losses
from fleet.engines.torch.metrics import make_metrics
from fleet.engines.torch.models import build_module
from fleet.engines.torch.network import Measures, TorchNetwork
from fleet.engines.torch.optimizer import Updates
from fleet.engines.torch.start import freeze
from fleet.spec import NetworkSpec

log = logging.getLogger("fleet.engines.torch.engine")


class TorchEngine:
    """Builds modules on this rank's device.

    Args:
        setup: of this rank.

    Raises:
        UserError: the exchange that is asked for is none of this engine.
    """

    def __init__(self, setup: Setup) -> None:
        self._sample, self._transforms, self._folder = setup.sample, setup.transforms, setup.folder
        self._device = take_device(setup.index, setup.trainers, setup.deterministic, setup.slot)
        self.exchange_name = exchange_name(setup.resources.exchange, self._device)
        self._exchange_of: Callable[[Group], Exchange] = partial(_exchange, self.exchange_name, self._device,
                                                                 setup.folder)
        log.info("PyTorch %s on %s with %d threads, gradients by %s", torch.__version__, self._device,
                 torch.get_num_threads(), self.exchange_name)

    def build(self, network: NetworkSpec, group: Group) -> TorchNetwork:
        """See :meth:`fleet.engines.base.Engine.build`."""
        train, sample = network.train, self._sample.of(network.feed, network.fold)
        module, dtype = build_module(network.architecture, sample.image, sample.target, network.seed,
                                     sample.affine is not None)
        if train.begins is not None:
            freeze(module, train.begins.freeze)
        measures = Measures(make_losses(train, sample.target, self._device), make_metrics(train, sample.target))
        flat = Flat(module.to(self._device), measures.metrics.width)
        scale = 1.0 if train.batch.is_elastic else network.learning_rate_scale(group.size)
        updates = Updates(train.optimizer, scale, train.batch.accumulate, flat)
        note = partial(note_of, network, sample, dtype, self._transforms.get(network.feed, ()), self._folder)
        kind = AheadNetwork if self._device.type == "cuda" else TorchNetwork
        return kind(module, flat, updates, sample, dtype, measures, self._exchange_of, group, network.seed,
                    train.precision == "mixed_bfloat16", note)


def _exchange(name: str, device: torch.device, folder: Path, group: Group) -> Exchange:
    if group.size == 1:
        return NoExchange(group)
    return MpiExchange(group) if name == "mpi" else TorchExchange(group, device, folder)


def make(setup: Setup) -> TorchEngine:
    """The engine of a trainer."""
    return TorchEngine(setup)
