"""Make the spec of a dry run: a run without data, models or GPUs, in a fraction of the time (pure).

The same networks run under the same policy on as many ranks. Only training is emulated
(:mod:`fleet.engines.emulated`), on generated samples. An epoch has fewer of them, so a dry run with
a large data set is short, too.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.spec import Data, Document, Spec
from fleet.spec.layers import count_for
from preprocess.sample import SampleSpec
from scheduler.base import Cluster, Network, RateTable
from scheduler.ensemble.rates import rates_up_to_gap

_STEPS = 16  # maximum number of steps of the largest batch in an emulated epoch
_SIZE = 8  # pixels per side of a generated sample
_SECONDS = 30.0  # duration of a dry run, unless this machine needs longer for its steps
# Core seconds per step and rank, and per epoch and group.
_STEP_S = 4e-4
_EPOCH_S = 0.05
_LOAD = 0.5  # share of the cores to use
# An unmeasured network: samples/s on one GPU, and the share of each additional GPU that is lost.
_ESTIMATED_RATE = 100.0
_LOST_PER_GPU = 0.03


@dataclass(frozen=True)
class DryRun:
    """A dry run.

    Attributes:
        document: its spec, still without rates.
        rates: training rates of its networks, with epochs.
        scale: seconds that one second of the real run takes.
    """

    document: Document
    rates: RateTable
    scale: float


def make_dry_run(
    spec: Spec,
    rates: RateTable,
    cluster: Cluster,
    makespan_s: float,
    cores: int,
    sample: SampleSpec,
    scale: float | None,
) -> DryRun:
    """Return the dry run of a spec.

    Args:
        spec: the real spec, with ``data.cache`` resolved.
        rates: training rates of its networks on its samples, with epochs.
        cluster: the cluster of the real run.
        makespan_s: the predicted makespan in seconds.
        cores: number of cores of this machine.
        sample: the real samples.
        scale: seconds per second of the real run; None chooses it by the size of the run.
    """
    largest = max(network.largest_batch(cluster.whole_gpus) for network in spec.networks)
    samples = min(rates.samples_per_epoch, _STEPS * largest)
    epoch_ratio = rates.samples_per_epoch / samples
    if scale is None:
        scale = max(_SECONDS, _least_s(spec, rates, samples, cluster.gpus, cores)) / makespan_s
    document = spec.document
    resources = dataclasses.replace(
        document.resources,
        engine="emulated",
        fuse="off",
        time_scale=scale * epoch_ratio,
        gpus_per_node=cluster.gpus_per_node // cluster.slots,
        preprocessors="auto" if spec.policy.own_samples else cluster.gpus // cluster.gpus_per_node,
    )
    return DryRun(
        dataclasses.replace(
            _of_classes(document, spec, sample),
            data=_data(document.data, samples, rates.samples_per_epoch, largest, sample),
            resources=resources,
            checkpoint=dataclasses.replace(document.checkpoint, every=None),
            walltime=None,
            trackers=(),
        ),
        rates,
        scale,
    )


def _of_classes(document: Document, spec: Spec, sample: SampleSpec) -> Document:
    """Return the spec with only what generated samples of unnamed classes support."""
    document = dataclasses.replace(
        document, models=tuple(dataclasses.replace(entry, data=None) for entry in document.models)
    )
    if all(
        sample.for_pipeline(network.pipeline).target.semantics.is_scalar
        and network.train.class_weights is None
        for network in spec.networks
    ):
        return document
    train = document.train
    stopping = dataclasses.replace(train.stopping, monitor=None, direction=None, stop_at=None)
    smoothing = 0.0 if isinstance(train.label_smoothing, Mapping) else train.label_smoothing
    train = dataclasses.replace(
        train,
        stopping=stopping,
        loss=None,
        loss_weights=None,
        metrics=(),
        label_smoothing=smoothing,
        class_weights=None,
    )
    return dataclasses.replace(
        document,
        train=train,
        models=tuple(
            dataclasses.replace(entry, train=_without_targets(entry.train))
            for entry in document.models
        ),
    )


def _without_targets(train: Mapping[str, Any]) -> dict[str, Any]:
    settings = {
        key: value
        for key, value in train.items()
        if key not in ("loss", "loss_weights", "metrics", "class_weights")
        and not (key == "label_smoothing" and isinstance(value, Mapping))
    }
    if isinstance(stopping := settings.get("stopping"), Mapping):
        settings["stopping"] = {
            key: value
            for key, value in stopping.items()
            if key not in ("monitor", "direction", "stop_at")
        }
    return settings


def _least_s(spec: Spec, rates: RateTable, samples: int, gpus: int, cores: int) -> float:
    """Return the seconds that this machine needs for everything that is not emulated."""
    ranks = max(1.0, gpus / len(rates.models))
    work = sum(
        (network.epochs or 1)
        * (_EPOCH_S + ranks * _STEP_S * samples / spec.by_name[network.name].train.batch.bounds[0])
        for network in rates.models
    )
    return work / (_LOAD * cores)


def _data(data: Data, samples: int, real: int, largest: int, sample: SampleSpec) -> Data:
    """Return generated data whose shared memory holds the same share as in the real run."""
    size = _SIZE * _SIZE
    share = data.shared_memory / (real * sample.wire.nbytes)
    min_bytes = (largest + 4 * 64) * size  # a batch, and some chunks ahead
    if data.order == "ring":
        min_bytes = 4 * -(-samples // min(data.shards, samples)) * size
    if data.cache == "memory":
        min_bytes = samples * size
    return Data(
        source="builtin:noise",
        validation=None,
        folds=data.folds,
        transforms=(),
        order=data.order,
        shards=data.shards,
        options={
            "samples": samples,
            "validation": _SIZE,
            "classes": max(sample.classes, 2),
            "size": _SIZE,
        },
        cache="memory" if data.cache == "memory" else "none",
        shared_memory=max(min_bytes, round(share * samples * size)),
    )


# ---- rates -------------------------------------------------------------------------------------


def with_epochs(spec: Spec, rates: RateTable, samples: int) -> RateTable:
    """Return the rates; networks without epochs get their maximum number of epochs.

    Args:
        spec: the spec of the networks.
        rates: their training rates.
        samples: samples per epoch.
    """
    return dataclasses.replace(
        rates,
        samples_per_epoch=samples,
        models=tuple(
            dataclasses.replace(
                network,
                epochs=network.epochs or spec.by_name[network.name].train.stopping.max_epochs,
            )
            for network in rates.models
        ),
    )


def measured_rates(
    spec: Spec,
    keys: Mapping[str, str],
    cached: Mapping[str, Mapping[int, float]],
    gpus_per_node: int,
) -> RateTable | None:
    """Return rates that were measured before, or None if those of a network are missing.

    Args:
        spec: the spec of the networks.
        keys: network -> its key in the cache.
        cached: key -> number of GPUs -> samples/s.
        gpus_per_node: number of GPUs of a node.
    """
    models = []
    for network in spec.networks:
        measured = cached.get(keys[network.name], {})
        if not measured:
            return None
        rates = rates_up_to_gap(measured, min_gpus=min(measured))
        models.append(
            Network(network.name, rates, min_gpus=network.min_gpus, max_gpus=network.max_gpus)
        )
    return RateTable(1, gpus_per_node, tuple(models))


def estimated_rates(spec: Spec, sample: SampleSpec, gpus_per_node: int) -> RateTable:
    """Estimate rates of unmeasured networks by the square root of their number of parameters.

    They tell which networks are slower than others, but not how long training takes.
    """
    counts = {
        network.name: count_for(
            network.architecture.settings, sample.for_pipeline(network.pipeline)
        )
        for network in spec.networks
        if network.architecture.kind == "family"
    }
    typical = statistics.median(counts.values()) if counts else 1.0
    return RateTable(
        1,
        gpus_per_node,
        tuple(
            Network(
                network.name,
                tuple(
                    _ESTIMATED_RATE
                    * (typical / counts.get(network.name, typical)) ** 0.5
                    * count
                    * (1 - _LOST_PER_GPU) ** (count - 1)
                    for count in range(1, 2 * gpus_per_node + 1)
                ),
                min_gpus=network.min_gpus,
                max_gpus=network.max_gpus,
            )
            for network in spec.networks
        ),
    )
