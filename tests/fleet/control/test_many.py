"""The cost of the controller with many networks."""

import sys
from collections import deque
from random import Random
from types import SimpleNamespace

import pytest

from fleet.comm.messages import EpochDone, Joined, Pace, Ready, Stopped
from fleet.comm.roles import assign
from fleet.control.devices import DevicePool
from fleet.control.effects import PolicyAnswered, SendMessage
from fleet.control.measurement import MeasurementTask
from fleet.errors import ExitStatus
from scheduler.base import Options
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES
from tests.fleet.control.driver import ControllerDriver
from tests.fleet.histories import record


class PolicyDriver(ControllerDriver):
    """A controller with a real policy."""

    def ask(self, question):
        policy = POLICIES["baseline"]
        return PolicyAnswered(
            plan(policy, question.rates, question.progress, question.cluster, Options())
        )


def calls_of_an_epoch(networks):
    """Return the number of Python calls per network that trains one epoch."""
    driver = PolicyDriver({}, networks=[f"net-{number}" for number in range(networks)])
    driver.begin()
    calls = 0

    def count(frame, content, argument):
        nonlocal calls
        calls += content == "call"

    groups = deque(driver.events_of("GroupStarted"))
    sys.setprofile(count)
    try:
        while groups:
            group = groups.popleft()
            driver.end_epoch(group.network, final="1 epoch")
            driver.events.clear()
            driver.handle(Stopped(group.network, 0.0), Ready(1 + group.devices[0]))
            groups += (started := driver.events_of("GroupStarted"))
            driver.handle(*(Joined(subject.network) for subject in started))
    finally:
        sys.setprofile(None)
    assert driver.controller.status is ExitStatus.OK
    return calls / networks


def test_end_of_epoch_takes_constant_steps_with_many_networks():
    few, many = calls_of_an_epoch(50), calls_of_an_epoch(500)
    assert many < 1.1 * few


def test_controller_handles_some_messages_before_it_decides():
    names = [f"net-{number}" for number in range(64)]
    driver = ControllerDriver(
        {name: [device] for device, name in enumerate(names)}, networks=names, trainers=64
    ).begin()
    before = len(driver.progress)
    ends = [EpochDone(name, record(1, stream_epoch=0), 0.0, "") for name in names[:9]]
    messages = [driver.decide(end, more_pending=True) for end in ends]
    assert driver.controller.max_undecided == 8
    assert len(driver.progress) == before + 1
    assert [
        sum(isinstance(subject, SendMessage) for subject in effects) for effects in messages
    ] == [0] * 7 + [8, 0]
    # The last one is decided when no more messages are pending.
    assert any(isinstance(effect, SendMessage) for effect in driver.decide(None))


def test_pace_without_a_rate_causes_no_decision(monkeypatch):
    driver = ControllerDriver({"a": [0, 1]}).begin()
    driver.handle(Pace("a", 10, 5.0))  # the first tells that it trains
    monkeypatch.setattr(type(driver.controller), "_decide", None)
    assert driver.handle(Pace("a", 20, 5.0)) == []


@pytest.mark.parametrize("seed", range(20))
def test_device_pool_agrees_with_definitions(seed):
    random, roles = Random(seed), assign((0,) * 9, None, None, own_preprocessing=True)
    devices, vacated = DevicePool(roles, SimpleNamespace(log=print)), set()
    for number in range(200):
        sample = random.sample(sorted(roles.rank_of), random.randint(1, 3))
        change = random.choice(
            ["assign", "release", "start_measuring", "end_measuring", *["mark_ready"] * 3] * 5
            + ["exclude", "remove"]
        )
        if change == "exclude":
            vacated |= devices.alive.intersection(sample)
        if change == "remove":
            vacated -= set(sample)
        arguments = {
            "start_measuring": (tuple(sample), MeasurementTask("net", number)),
            "end_measuring": (random.choice([*devices.measuring.values(), None]),),
            "mark_ready": (Ready(roles.rank_of[sample[0]]),),
        }
        if change != "mark_ready" or sample[0] not in devices.idle:
            getattr(devices, change)(*arguments.get(change, (sample,)))
        assert devices.free == devices.idle - devices.in_groups - vacated
        measuring = {device for together in devices.measuring for device in together}
        assert devices.returning == devices.alive - devices.idle - devices.in_groups - measuring
        assert devices.are_idle(sample) == (
            devices.idle - devices.in_groups >= devices.alive.intersection(sample)
        )
