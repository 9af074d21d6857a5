"""What the log of a run says of GPUs that networks share."""

from collections import Counter

from fleet.storage.event_log import events_of, read_events
from fleet.storage.events import GroupChanged, GroupStarted, GroupStopped, Started


def most_on_a_gpu(path):
    """How many networks were on one GPU at once, at most; no group may have two slots of one."""
    start, = events_of(path, Started)
    held, most = {}, 0
    for _, event in read_events(path):
        if isinstance(event, GroupStarted | GroupChanged):
            held[event.network] = [start.cluster.gpu(device) for device in event.devices]
            assert len(set(held[event.network])) == len(event.devices)
        elif isinstance(event, GroupStopped):
            del held[event.network]
        most = max(most, 0, *Counter(gpu for gpus in held.values() for gpu in gpus).values())
    return most
