"""A custom policy: each network on its fewest GPUs, the slowest first.

So the slowest network does not begin last.
"""

from fleet.scheduler.base import Member, Round
from fleet.scheduler.ensemble.costs import Costs
from fleet.scheduler.ensemble.policies import Policy


def slowest_first(rates, progress, cluster, options):
    running = [member for member in progress.running if member.name not in progress.finished]
    started = progress.finished | {member.name for member in running}
    free = list(
        cluster.without([device for member in running for device in member.devices]).devices
    )
    for network in sorted(rates.models, key=lambda network: network.rates[0]):
        if network.name not in started and network.min_gpus <= len(free):
            running.append(Member(network.name, tuple(free[: network.min_gpus])))
            del free[: network.min_gpus]
    return Round(tuple(running))


POLICY = Policy("slowest first", slowest_first, reads=frozenset(), costs=Costs())
