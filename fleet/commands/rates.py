"""The best rates of a spec's networks that are known without a run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.monitor.beside_steps import BesideSteps
from launch.binding import my_cores
from scheduler.base import Cluster, RateTable

if TYPE_CHECKING:
    from fleet.spec import Spec
    from preprocess.sample import SampleSpec


def known_rates_of(spec: Spec, place: str, given: str | None, sample: SampleSpec, cluster: Cluster
                   ) -> tuple[RateTable, str] | None:
    """Rates of a file, or of earlier runs, and where they come from; None if there are none.

    Args:
        place: the file of the spec, as the user named it.
        given: a file of rates that the user named.
    """
    from fleet.jobs.rehearsal import known_rates
    from fleet.runtime.known_rates import rates_file, read_rates_of

    file = rates_file(spec, given)
    if file is not None:
        return read_rates_of(spec, file), file
    found = known_rates(spec, *cached(spec, place, sample, cluster), cluster.gpus_per_node)
    return None if found is None else (found, "measured before")


def known_beside_steps(spec: Spec) -> BesideSteps | None:
    """What the newest launch on such a machine took beside steps; None where there was none."""
    from fleet.runtime.known_rates import hardware
    from fleet.storage.rate_cache import beside_steps_key, cache_path, read_cache

    known = read_cache(cache_path()).get(beside_steps_key(spec.resources.engine, hardware()), {})
    is_whole = len(known) == len(fields(BesideSteps))
    return BesideSteps(*(known[number].rate for number in sorted(known))) if is_whole else None


def cached(spec: Spec, place: str, sample: SampleSpec, cluster: Cluster
           ) -> tuple[dict[str, str], dict[str, dict[int, float]]]:
    """The key of each network in the cache of rates, and what is in there."""
    from fleet.runtime.known_rates import hardware
    from fleet.storage.identity import Machine, codes_of_all, speed_identity
    from fleet.storage.rate_cache import cache_path, numbers, read_cache

    machine = Machine(hardware(), (cluster.gpus_per_node + 1) / len(my_cores().mine))
    codes = codes_of_all(spec, Path(place).absolute().parent)
    keys = {network.name: speed_identity(network, spec.resources, sample, machine, codes) for network in spec.networks}
    return keys, numbers(read_cache(cache_path()))
