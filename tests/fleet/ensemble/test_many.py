"""That to coordinate an epoch's end takes no longer where there are many networks."""

import sys
from collections import deque

from fleet.comm.messages import Joined, Ready, Stopped
from fleet.ensemble.setup import Decision
from fleet.errors import ExitStatus
from scheduler.base import Options
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from tests.fleet.ensemble.told import Told


class Planned(Told):
    """An ensemble whose policy is a real one."""

    def ask(self, rates, progress, cluster, least):
        return Decision(plan(POLICIES["baseline"], rates, progress, cluster, Options()))


def calls_of_an_epoch(networks):
    """How many functions of Python are called for each network of one epoch that trains."""
    told = Planned({}, networks=[f"net-{number}" for number in range(networks)])
    told.begin()
    calls = 0

    def count(frame, what, argument):
        nonlocal calls
        calls += what == "call"

    groups = deque(told.of("GroupStarted"))
    sys.setprofile(count)
    try:
        while groups:
            group = groups.popleft()
            told.end_epoch(group.network, final="1 epoch")
            told.events.clear()
            told.hear(Stopped(group.network, 0.0), Ready(1 + group.devices[0]))
            groups += (begun := told.of("GroupStarted"))
            told.hear(*(Joined(one.network) for one in begun))
    finally:
        sys.setprofile(None)
    assert told.ensemble.status is ExitStatus.OK
    return calls / networks


def test_to_end_an_epoch_takes_no_more_steps_where_there_are_many_networks():
    few, many = calls_of_an_epoch(50), calls_of_an_epoch(500)
    assert many < 1.1 * few
