"""What several networks on one GPU are known to train together, for commands that look ahead of a run."""

from __future__ import annotations

import dataclasses
import math

from fleet.domain.events import SharingLearned
from fleet.runtime.known_rates import hardware
from fleet.spec import Spec
from fleet.storage.event_log import read_run
from fleet.storage.paths import RunPaths
from fleet.storage.rate_cache import cache_path, numbers, read_cache, sharing_key
from scheduler.base import MOST_SLOTS, Cluster, InputError, RateTable
from scheduler.ensemble.rates_file import read_rates
from scheduler.ensemble.sharing import Sharing


def recorded_sharing(spec: Spec) -> tuple[float, ...]:
    """What networks that share a GPU train together: as a file of rates says, as the run has shown, or earlier ones."""
    if spec.schedule.rates is not None:
        try:
            return read_rates(spec.schedule.rates).sharing
        except InputError:  # which the run will say
            return ()
    learned = [event for _, event in read_run(RunPaths(spec.output)) if isinstance(event, SharingLearned)]
    if learned:
        return learned[-1].speedups
    known = numbers(read_cache(cache_path())).get(sharing_key(spec.resources.engine, hardware()), {})
    return Sharing(known).curve


def shared_cluster(spec: Spec, cluster: Cluster) -> Cluster:
    """A cluster of whole GPUs with the slots that the networks of a spec may use, if ranks are started for them."""
    asked = spec.resources.per_device
    most = min(MOST_SLOTS, math.ceil(spec.most_at_once / max(1, cluster.gpus)))  # more would stay empty
    slots = most if asked == "auto" else min(asked, most)
    return cluster if slots <= 1 else Cluster.of(cluster.gpus, cluster.gpus_per_node, slots, fills=asked != "auto")


def with_sharing(spec: Spec, rates: RateTable) -> RateTable:
    """Rates that say what networks train together that share a GPU, as far as it is known of this machine.

    Of what is not known, :func:`scheduler.ensemble.sharing.speedup` has a guess.
    """
    is_shared = spec.resources.per_device != 1 and len(rates.sharing) < 2
    return dataclasses.replace(rates, sharing=recorded_sharing(spec) or (1.0,)) if is_shared else rates
