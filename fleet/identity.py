"""What makes two networks the same to a checkpoint and to a cache of rates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from pydantic import TypeAdapter

from fleet.engine import InputSpec
from fleet.spec import NetworkSpec, Train


def identity(network: NetworkSpec, inputs: InputSpec) -> str:
    """A fingerprint of all that shapes a network's training, but for when it ends.

    A checkpoint is taken up only by a network of the same identity: another optimizer or another
    architecture under the same name is refused. `converge` may change: to train longer is a wish
    that users have.
    """
    train = TypeAdapter(Train).dump_python(network.train, mode="json")
    train.pop("converge")
    return _hash({"architecture": network.architecture.key, "seed": network.seed, "train": train,
                  "inputs": dataclasses.asdict(inputs)})


def speed_identity(network: NetworkSpec, inputs: InputSpec, hardware: str) -> str:
    """A fingerprint of all that decides how fast a network trains."""
    return _hash({"architecture": network.architecture.key, "batch": network.train.batch.size,
                  "when_scaled": network.train.batch.when_scaled, "precision": network.train.precision,
                  "xla": network.train.xla, "optimizer": network.train.optimizer.name,
                  "inputs": dataclasses.asdict(inputs), "hardware": hardware})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
