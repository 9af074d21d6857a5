"""Draw ensembles to simulate, convert them from a table, or change their epochs and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from launch.errors import InputError
from scheduler.base import Network, RateTable, check_range
from scheduler.ensemble.rates_file import network_of
from scheduler.files import RecordReader

Floats = NDArray[np.float64]

# From [FLEET] section 6.1 about its 100 networks.
RATES = (21.0, 176.0)  # samples/s on one GPU
SIZES_MB = (232.0, 1190.0)
SAMPLES_PER_EPOCH = 30_606  # Caltech256
GPUS_PER_NODE = 4

# Blocks per stage of the networks that the paper varies (He et al. 2016; Huang et al. 2017).
BASES = {
    "ResNet-50": (3, 4, 6, 3),
    "ResNet-101": (3, 4, 23, 3),
    "ResNet-152": (3, 8, 36, 3),
    "DenseNet-121": (6, 12, 24, 16),
    "DenseNet-169": (6, 12, 32, 32),
    "DenseNet-201": (6, 12, 48, 32),
}

_SIDES = (56, 28, 14, 7)  # of the feature maps of the four stages, for images of 224 x 224
_GROWTH = 32
_BATCH = 32  # samples per GPU and step
_GB_PER_S_IN_NODE = 20.0  # NVLink 1.0, one direction
_GB_PER_S_BETWEEN = 8.0  # EDR InfiniBand, shared by the GPUs of a node
_WAIT_PER_GPU = (0.003, 0.03)  # for the slowest of a group, as a share of the step


@dataclass(frozen=True)
class DrawnNetwork:
    """A network before its rate and size are mapped to the paper's ranges."""

    name: str
    parameters: float  # of the convolutions
    operations: float  # multiplications of one sample's forward pass


_MAX_NETWORKS = 100_000  # more are a slip of the keyboard


def generate(networks: int = 100, seed: int = 0, heavy_tail: bool = False) -> RateTable:
    """Draw an ensemble like that of [FLEET] section 6.1.

    Half ResNets, half DenseNets; each varies the blocks per stage of a
    published network between half and one and a half times. Multiplications
    and parameters are counted from the blocks and mapped, in their logarithms,
    to the paper's ranges of single-GPU rates and of sizes. On m GPUs a step
    also takes the ring all-reduce of the gradients, slower where the group
    leaves its node, and the wait for the slowest, a share of 0.3 to 3 % for each
    further GPU. Epochs are drawn: normal around 13, or heavy-tailed.

    Args:
        networks: number of networks.
        seed: the seed of all draws, from 0.
        heavy_tail: epochs log-normal with a median of 10 and sigma 0.8.

    Raises:
        InputError: fewer than one network, or very many.
    """
    check_range("the number of networks", networks, 1, _MAX_NETWORKS)
    rng = np.random.default_rng(seed)
    drawn = [_draw(index, rng) for index in range(networks)]
    single = _into_range(-np.log([network.operations for network in drawn]), RATES)
    size = _into_range(np.log([network.parameters for network in drawn]), SIZES_MB)
    gradients_mb = np.array([4e-6 * network.parameters for network in drawn])
    wait = np.exp(rng.uniform(np.log(_WAIT_PER_GPU[0]), np.log(_WAIT_PER_GPU[1]), networks))
    epochs = _epochs(rng, networks, heavy_tail)
    return RateTable(
        SAMPLES_PER_EPOCH,
        GPUS_PER_NODE,
        tuple(
            Network(
                network.name,
                _scaled(float(single[i]), float(gradients_mb[i]), float(wait[i])),
                epochs=int(epochs[i]),
                params_mb=round(float(size[i]), 1),
            )
            for i, network in enumerate(drawn)
        ),
    )


def _draw(index: int, rng: Generator) -> DrawnNetwork:
    bases = [base for base in BASES if base.startswith("ResNet" if index % 2 else "DenseNet")]
    base = bases[rng.integers(len(bases))]
    blocks = [
        int(rng.integers(max(1, blocks // 2), blocks + blocks // 2 + 1)) for blocks in BASES[base]
    ]
    count = _resnet if base.startswith("ResNet") else _densenet
    parameters, operations = count(blocks)
    return DrawnNetwork(f"{base}-{index}", parameters, operations)


def _resnet(blocks: list[int]) -> tuple[float, float]:
    """Return parameters and multiplications of bottleneck blocks: 1x1 down, 3x3, 1x1 up."""
    parameters = [blocks[stage] * 17 * (64 * 2**stage) ** 2 for stage in range(4)]
    return sum(parameters), sum(p * side**2 for p, side in zip(parameters, _SIDES, strict=True))


def _densenet(blocks: list[int]) -> tuple[float, float]:
    """Return parameters and multiplications of dense layers: 1x1, then 3x3."""
    channels = 2 * _GROWTH
    total = 0.0
    operations = 0.0
    for layers, side in zip(blocks, _SIDES, strict=True):
        parameters = 0.0
        for _ in range(layers):
            parameters += 4 * _GROWTH * channels + 36 * _GROWTH**2
            channels += _GROWTH
        total += parameters
        operations += parameters * side**2
        channels //= 2
    return total, operations


def _into_range(logs: Any, bounds: tuple[float, float]) -> Floats:
    """Map logarithms linearly so that the extremes are the logarithms of the bounds."""
    logs = np.asarray(logs, dtype=np.float64)
    low, high = np.log(bounds)
    spread = float(np.ptp(logs))
    if spread == 0:
        return np.full(len(logs), float(np.exp((low + high) / 2)))
    return np.exp(low + (logs - logs.min()) / spread * (high - low))


def _scaled(single: float, gradients_mb: float, wait: float) -> tuple[float, ...]:
    """Return rates on one GPU to two nodes."""
    step = _BATCH / single
    rates = []
    for gpus in range(1, 2 * GPUS_PER_NODE + 1):
        speed = _GB_PER_S_IN_NODE if gpus <= GPUS_PER_NODE else _GB_PER_S_BETWEEN
        exchange = 2 * (gpus - 1) / gpus * gradients_mb / 1000 / speed
        rates.append(round(gpus * _BATCH / (step * (1 + wait * (gpus - 1)) + exchange), 3))
    return tuple(rates)


def _epochs(rng: Generator, networks: int, heavy_tail: bool) -> NDArray[np.int64]:
    if heavy_tail:
        drawn = np.exp(rng.normal(np.log(10.0), 0.8, networks))
        return np.maximum(1, np.round(drawn)).astype(np.int64)
    return np.maximum(6, np.round(rng.normal(13.0, 4.5, networks))).astype(np.int64)


def convert(value: Any, source: str = "ensemble") -> RateTable:
    """Make a rate table from the JSON of an older format.

        {"images_per_epoch", "gpus_per_node", "dnns": [{"id", "r", "epochs", "params_mb"}]}

    Raises:
        InputError: all mistakes in one line.
    """
    read = RecordReader()
    top = read.record(value, "", ("images_per_epoch", "dnns"), optional=("gpus_per_node", "note"))
    networks = []
    for index, item in enumerate(read.items(top, "dnns", "dnns")):
        at = f"dnns[{index}]"
        record = read.record(item, at, ("r",), optional=("id", "base", "epochs", "params_mb"))
        networks.append(network_of(read, f"m{record.get('id', index)}", record, "r", at))
    if "dnns" in top and not networks:
        read.add_mistake("dnns", "empty, but an ensemble needs at least one network")
    read.check_unique_names("dnns", networks)
    if "gpus_per_node" in top:
        gpus = read.count(top, "gpus_per_node", "gpus_per_node")
    else:
        gpus = GPUS_PER_NODE
    table = RateTable(
        read.count(top, "images_per_epoch", "images_per_epoch"), gpus, tuple(networks)
    )
    read.raise_mistakes(source)
    return table


def redraw_epochs(table: RateTable, seed: int, heavy_tail: bool = False) -> RateTable:
    """Return the networks with new epochs: drawn from those of the table, or heavy-tailed.

    Raises:
        InputError: a network has no epochs to draw from.
    """
    rng = np.random.default_rng(seed)
    count = len(table.models)
    if heavy_tail:
        drawn = _epochs(rng, count, heavy_tail=True)
    else:
        epochs_of = [network.epochs for network in table.models]
        if None in epochs_of:
            raise InputError(
                f"{table.models[epochs_of.index(None)].name} has no epochs; "
                "to draw epochs, each network must have them"
            )
        drawn = rng.choice(np.array(epochs_of, dtype=np.int64), count)
    return replace(
        table,
        models=tuple(
            replace(network, epochs=int(epochs))
            for network, epochs in zip(table.models, drawn, strict=True)
        ),
    )


def with_errors(table: RateTable, error: float, seed: int) -> RateTable:
    """Return the rates as a profile might have measured them, each with a normal error.

    Args:
        table: the true rates.
        error: standard deviation, as a share of the rate; errors beyond half of it are cut.
        seed: the seed of the errors.
    """
    rng = np.random.default_rng(seed)

    def wrong(rates: Sequence[float]) -> tuple[float, ...]:
        return tuple(rate * max(0.5, 1 + error * float(rng.standard_normal())) for rate in rates)

    return replace(
        table,
        models=tuple(
            replace(
                network,
                rates=wrong(network.rates),
                spread_rates=wrong(network.spread_rates),
            )
            for network in table.models
        ),
    )
