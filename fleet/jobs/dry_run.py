"""A rehearsal: a spec's run without its data, its models and its GPUs, in a fraction of its time (pure).

The same networks under the same policy on as many ranks; only training is emulated (:mod:`fleet.engines.emulated`), on
samples that are made up. An epoch has fewer of them, so that a large data set is rehearsed in little time as well.
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

_STEPS = 16  # of the largest batch in an emulated epoch, at most
_SIZE = 8  # pixels of a side of the samples that are made up
_SECONDS = 30.0  # that a rehearsal takes, unless its steps are too many for this machine
# of a core: what a step costs each rank, and an epoch's end a group
_STEP_S = 4e-4
_EPOCH_S = 0.05
_LOAD = 0.5  # share of the cores that this may take
# A network that nobody has measured: on one GPU, and how much of every further GPU is lost.
_ESTIMATED_RATE = 100.0
_LOST_PER_GPU = 0.03


@dataclass(frozen=True)
class DryRun:
    """What is to be run.

    Attributes:
        document: the spec of the rehearsal; its rates are still to be named.
        rates: of its networks, with epochs.
        scale: seconds that a second of the real run takes.
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
    scale: float | None = None,
) -> DryRun:
    """Make the spec of a rehearsal.

    Args:
        spec: of the real run, with what was chosen for ``data.cache``.
        rates: of its networks on its samples, with epochs.
        cluster: that it will have.
        makespan_s: that is predicted.
        cores: of this machine.
        sample: the real samples.
        scale: seconds that a second of the real run is to take; None leaves it to the size of the run.
    """
    largest = max(network.largest_batch(cluster.whole_gpus) for network in spec.networks)
    samples = min(rates.samples_per_epoch, _STEPS * largest)
    fewer = rates.samples_per_epoch / samples
    if scale is None:
        scale = max(_SECONDS, _least_s(spec, rates, samples, cluster.gpus, cores)) / makespan_s
    document = spec.document
    resources = dataclasses.replace(
        document.resources,
        engine="emulated",
        time_scale=scale * fewer,
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
    """The same without what only the real samples bear: those of a rehearsal are alike, of classes without names."""
    document = dataclasses.replace(
        document, models=tuple(dataclasses.replace(entry, data=None) for entry in document.models)
    )
    if all(
        sample.for_pipeline(network.pipeline).target.kind == "class"
        and network.train.class_weights is None
        for network in spec.networks
    ):
        return document
    train = document.train
    converge = dataclasses.replace(train.stopping, monitor=None, direction=None, stop_at=None)
    train = dataclasses.replace(train, stopping=converge, loss=None, metrics=(), class_weights=None)
    return dataclasses.replace(
        document,
        train=train,
        models=tuple(
            dataclasses.replace(entry, train=_without_targets(entry.train))
            for entry in document.models
        ),
    )


def _without_targets(train: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in train.items()
        if key not in ("loss", "metrics", "class_weights")
    }
    if isinstance(converge := kept.get("stopping"), Mapping):
        kept["stopping"] = {
            key: value
            for key, value in converge.items()
            if key not in ("monitor", "direction", "stop_at")
        }
    return kept


def _least_s(spec: Spec, rates: RateTable, samples: int, gpus: int, cores: int) -> float:
    """Seconds that this machine needs for what is not emulated, if each network had its share of the GPUs."""
    ranks = max(1.0, gpus / len(rates.models))
    work = sum(
        (network.epochs or 1)
        * (_EPOCH_S + ranks * _STEP_S * samples / spec.by_name[network.name].train.batch.bounds[0])
        for network in rates.models
    )
    return work / (_LOAD * cores)


def _data(data: Data, samples: int, real: int, largest: int, sample: SampleSpec) -> Data:
    """Samples that are made up, in a window that holds as large a part of them."""
    size = _SIZE * _SIZE
    share = data.shared_memory / (real * sample.wire.nbytes)
    least = (largest + 4 * 64) * size  # a batch, and some chunks ahead
    if data.order == "ring":
        least = 4 * -(-samples // min(data.shards, samples)) * size
    if data.cache == "memory":
        least = samples * size
    return Data(
        source="builtin:noise",
        validation=None,
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
        shared_memory=max(least, round(share * samples * size)),
    )


# ---- rates -------------------------------------------------------------------------------------


def with_epochs(spec: Spec, rates: RateTable, samples: int) -> RateTable:
    """The rates of a spec's networks, with the most epochs that each may train where the rates do not say how many."""
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
    known: Mapping[str, Mapping[int, float]],
    gpus_per_node: int,
) -> RateTable | None:
    """Rates that were measured before; None where a network's were not.

    Args:
        keys: of the networks, as in the cache.
        known: key -> GPUs -> samples/s.
    """
    models = []
    for network in spec.networks:
        measured = known.get(keys[network.name], {})
        if not measured:
            return None
        rates = rates_up_to_gap(
            measured, min_gpus=min(measured)
        )  # a group is never smaller than its network allows
        models.append(
            Network(network.name, rates, min_gpus=network.min_gpus, max_gpus=network.max_gpus)
        )
    return RateTable(1, gpus_per_node, tuple(models))


def estimated_rates(spec: Spec, sample: SampleSpec, gpus_per_node: int) -> RateTable:
    """Rates that nobody has measured: by the square root of the parameters, where those can be counted.

    They say which networks would be slower than others, not how long anything takes.
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
                _scaled(
                    _ESTIMATED_RATE * (typical / counts.get(network.name, typical)) ** 0.5,
                    2 * gpus_per_node,
                ),
                min_gpus=network.min_gpus,
                max_gpus=network.max_gpus,
            )
            for network in spec.networks
        ),
    )


def _scaled(single: float, gpus: int) -> tuple[float, ...]:
    return tuple(
        single * count * (1 - _LOST_PER_GPU) ** (count - 1) for count in range(1, gpus + 1)
    )
