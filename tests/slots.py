"""What the log of a run says of GPUs that networks share."""

from collections import Counter

from fleet.domain.events import (
    GroupChanged,
    GroupStarted,
    GroupStopped,
    LaunchStarted,
    NetworkRetried,
)
from fleet.storage.event_log import events_of, read_events


def most_on_a_gpu(path):
    """How many networks were on one GPU at once, at most; no group may have two slots of one."""
    (start,) = events_of(path, LaunchStarted)
    held, most = {}, 0
    for _, event in read_events(path):
        if isinstance(event, GroupStarted | GroupChanged):
            held[event.network] = [start.cluster.gpu(device) for device in event.devices]
            assert len(set(held[event.network])) == len(event.devices)
        elif isinstance(event, GroupStopped | NetworkRetried):
            held.pop(event.network, None)
        most = max(most, 0, *Counter(gpu for gpus in held.values() for gpu in gpus).values())
    return most


def networks_beside(path, network):
    """The networks that were on a GPU with one, for each time that it began."""
    (start,) = events_of(path, LaunchStarted)
    held, found = {}, []
    for _, event in read_events(path):
        if isinstance(event, GroupStarted | GroupChanged):
            held[event.network] = {start.cluster.gpu(device) for device in event.devices}
            if isinstance(event, GroupStarted) and event.network == network:
                found.append(set())
        elif isinstance(event, GroupStopped | NetworkRetried):
            held.pop(event.network, None)
        if network in held:
            found[-1].update(
                name for name, gpus in held.items() if name != network and gpus & held[network]
            )
    return found
