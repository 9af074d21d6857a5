"""Which networks can be trained as one program, as far as a spec says (``resources.fuse``)."""

from __future__ import annotations

import json
from typing import Any

from fleet.spec.schema import NetworkSpec
from launch.errors import pluralize

# Settings of an optimizer that choose what is computed; all others are numbers of each network.
_OF_OPTIMIZER = ("name", "nesterov", "amsgrad", "centered", "use_ema", "maximize")
_CLIPS = ("clipvalue", "clipnorm", "global_clipnorm")


def why_alone(network: NetworkSpec) -> str:
    """Return why a network cannot be fused with others; empty if it may be.

    Only its engine knows whether its module can.
    """
    train = network.train
    reasons = {
        "train.step computes its loss": train.step is not None,
        "train.batch_transforms depend on its seed": bool(train.batch_transforms),
        "train.batch.size is a range": train.batch.is_elastic,
        "train.compile compiles it alone": train.compile,
        "train.start gives it weights that may be frozen": train.initial_weights is not None,
        f"it needs {pluralize(network.min_gpus, 'GPU')}": network.min_gpus > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def fuse_key(network: NetworkSpec) -> str:
    """Return a text that is equal for networks that may be trained as one program.

    They have equal architecture, batch and data, and the same kind of optimizer. Their learning
    rates, decays, momenta, seeds and schedules may differ.
    """
    train = network.train
    optimizer = train.optimizer
    parts: list[Any] = [
        network.architecture.key,
        network.pipeline,
        network.fold,
        repr(train.batch),
        train.precision,
        train.deterministic,
        repr((train.loss, train.loss_weights, train.metrics)),
        repr((train.label_smoothing, train.class_weights)),
        [getattr(optimizer, name, None) for name in _OF_OPTIMIZER],
        [bool(getattr(optimizer, name)) for name in _CLIPS],
        bool(optimizer.momentum),
    ]
    return json.dumps(parts)
