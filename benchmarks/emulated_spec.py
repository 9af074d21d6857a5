"""Write specs of emulated networks, for benchmarks of everything except training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.api import write_spec
from fleet.storage.files import write_json
from scheduler.base import Network, RateTable
from scheduler.ensemble.rates_file import write_rates


def write_emulated(
    folder: Path,
    samples: int,
    batch: int,
    networks: int,
    epochs: int,
    epoch_s: float,
    trainers: int = 8,
    policy: str = "adaptive",
    **resources: Any,
) -> Path:
    """Write a spec of networks on one device each, and their rates, into the folder of the run.

    Args:
        folder: Receives the spec, the rates and the run.
        samples: Samples per epoch.
        batch: Global batch size.
        networks: Number of networks.
        epochs: Epochs of each network.
        epoch_s: Duration of an epoch, in seconds.
        trainers: Number of GPUs for which the rates are written.
        policy: Name of the policy.
        **resources: More keys of `resources`.

    Returns:
        The path of the spec.
    """
    names = [f"n-{number:0{len(str(networks - 1))}}" for number in range(networks)]
    rates = RateTable(
        samples, trainers, tuple(Network(name, (samples / epoch_s,)) for name in names)
    )
    write_json(folder / "rates.json", write_rates(rates))
    write_spec(
        {
            "name": "emulated",
            "output": str(folder / "run"),
            "data": {
                "source": "builtin:noise",
                "options": {"samples": samples},
                "validation": None,
                "transforms": [],
                "cache": "memory",
            },
            "models": [
                {
                    "family": "softmax",
                    "name": "n",
                    "gpus": 1,
                    "grid": {
                        "train.optimizer.learning_rate": [
                            (1 + n) / networks for n in range(networks)
                        ]
                    },
                }
            ],
            "train": {
                "batch": {"size": batch},
                "stopping": {"monitor": "loss", "max_epochs": epochs},
            },
            "schedule": {"policy": policy, "rates": str(folder / "rates.json")},
            "resources": {"engine": "emulated", **resources},
        },
        folder / "spec.yaml",
    )
    return folder / "spec.yaml"
