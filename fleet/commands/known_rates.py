"""Look up known training rates of a spec's networks, alone and sharing a GPU, without a run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from fleet.checks.dry_run import measured_rates
from fleet.domain.events import SharingLearned
from fleet.domain.overheads import Overheads
from fleet.runtime.known_rates import find_rates_file, hardware, read_rates_of
from fleet.spec import Spec
from fleet.storage.event_log import read_run_state
from fleet.storage.identity import Machine, hash_all_sources, speed_identity
from fleet.storage.paths import RunPaths
from fleet.storage.rate_cache import (
    beside_steps_key,
    cache_path,
    rates_of,
    read_cache,
    sharing_key,
    sharing_of,
)
from launch.binding import process_cores
from launch.errors import InputError
from preprocess.sample import SampleSpec
from scheduler.base import MAX_SLOTS, Cluster, RateTable
from scheduler.ensemble.rates_file import read_rates
from scheduler.ensemble.sharing import Sharing
from scheduler.ensemble.spans import by_gpus


def known_rates_of(
    spec: Spec, spec_path: str, rates_path: str | None, sample: SampleSpec, cluster: Cluster
) -> tuple[RateTable, str] | None:
    """Return rates from a file or from earlier runs, and their origin; None if there are none.

    Args:
        spec: the spec.
        spec_path: the spec file, as the user named it.
        rates_path: a rates file that the user named.
        sample: the shape and target of the samples.
        cluster: the GPUs of the run.
    """
    file = find_rates_file(spec, rates_path)
    if file is not None:
        return read_rates_of(spec, file), file
    rates = measured_rates(spec, *cached(spec, spec_path, sample, cluster), cluster.gpus_per_node)
    if rates is None:
        return None
    return (rates, "measured before")


def known_beside_steps(spec: Spec) -> Overheads | None:
    """Return the overheads of the newest launch on this kind of machine, or None."""
    cached_overheads = read_cache(cache_path()).get(
        beside_steps_key(spec.resources.engine, hardware(spec.resources.device)), {}
    )
    if len(cached_overheads) == len(dataclasses.fields(Overheads)):
        return Overheads(*(cached_overheads[shape].rate for shape in sorted(cached_overheads)))
    return None


def cached(
    spec: Spec, spec_path: str, sample: SampleSpec, cluster: Cluster
) -> tuple[dict[str, str], dict[str, dict[int, float]]]:
    """Return the key of each network in the cache of rates, and the contents of the cache."""
    machine = Machine(
        hardware(spec.resources.device), (cluster.gpus_per_node + 1) / len(process_cores().usable)
    )
    codes = hash_all_sources(spec, Path(spec_path).absolute().parent)
    keys = {
        network.name: speed_identity(network, spec.resources, sample, machine, codes)
        for network in spec.networks
    }
    known_rates = rates_of(read_cache(cache_path()))
    return keys, {key: by_gpus(rates) for key, rates in known_rates.items()}


def recorded_sharing(spec: Spec) -> tuple[float, ...]:
    """Return speed-ups of networks that share a GPU, from the rates file, the run or the cache."""
    if spec.schedule.rates is not None:
        try:
            return read_rates(spec.schedule.rates).sharing
        except InputError:  # the run reports it
            return ()
    measured = read_run_state(RunPaths(spec.output), (SharingLearned,)).sharing
    if len(measured) > 1:
        return measured
    cached_curve = sharing_of(
        read_cache(cache_path()),
        sharing_key(spec.resources.engine, hardware(spec.resources.device)),
    )
    return Sharing(cached_curve).curve


def shared_cluster(spec: Spec, cluster: Cluster) -> Cluster:
    """Return a cluster of whole GPUs with the slots that the networks of a spec may use."""
    requested = spec.resources.networks_per_gpu
    # More slots than this would stay empty.
    max_slots = min(MAX_SLOTS, math.ceil(spec.max_networks / max(1, cluster.gpus)))
    slots = max_slots if requested == "auto" else min(requested, max_slots)
    if slots <= 1:
        return cluster
    return Cluster.of(cluster.gpus, cluster.gpus_per_node, slots, fills=requested != "auto")


def with_sharing(spec: Spec, rates: RateTable) -> RateTable:
    """Return rates with the known speed-ups of networks that share a GPU of this machine.

    :func:`scheduler.ensemble.sharing.speedup` guesses unknown ones.
    """
    is_shared = spec.resources.networks_per_gpu != 1 and len(rates.sharing) < 2
    if is_shared:
        return dataclasses.replace(rates, sharing=recorded_sharing(spec) or (1.0,))
    return rates
