"""Shared GPUs in the event log of a run."""

from collections import Counter

from fleet.domain.events import (
    GroupChanged,
    GroupStarted,
    GroupStopped,
    LaunchStarted,
    NetworkRetried,
)
from fleet.storage.event_log import events_of, read_events


def max_networks_per_gpu(path):
    """Return the largest number of networks on one GPU at a time.

    Check that no group has two slots of one GPU.
    """
    (start,) = events_of(path, LaunchStarted)
    gpus_of, maximum = {}, 0
    for _, event in read_events(path):
        if isinstance(event, GroupStarted | GroupChanged):
            gpus_of[event.network] = [start.cluster.gpu(device) for device in event.devices]
            assert len(set(gpus_of[event.network])) == len(event.devices)
        elif isinstance(event, GroupStopped | NetworkRetried):
            gpus_of.pop(event.network, None)
        counts = Counter(gpu for gpus in gpus_of.values() for gpu in gpus)
        maximum = max(maximum, 0, *counts.values())
    return maximum


def networks_beside(path, network):
    """Return the networks that shared a GPU with a network, one set for each of its starts."""
    (start,) = events_of(path, LaunchStarted)
    gpus_of, neighbors = {}, []
    for _, event in read_events(path):
        if isinstance(event, GroupStarted | GroupChanged):
            gpus_of[event.network] = {start.cluster.gpu(device) for device in event.devices}
            if isinstance(event, GroupStarted) and event.network == network:
                neighbors.append(set())
        elif isinstance(event, GroupStopped | NetworkRetried):
            gpus_of.pop(event.network, None)
        if network in gpus_of:
            neighbors[-1].update(
                name
                for name, gpus in gpus_of.items()
                if name != network and gpus & gpus_of[network]
            )
    return neighbors
