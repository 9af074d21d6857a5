"""Slots of processes that train equal networks as one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.base import Cluster, Member, Network, Options, Progress, RateTable, Round
from scheduler.ensemble.fusing import process_of
from scheduler.ensemble.planning import plan
from scheduler.ensemble.policies import POLICIES

FUSED = 4


def cluster(gpus=1, processes=1):
    slots = processes * FUSED
    return Cluster(tuple(range(gpus * slots)), gpus * slots, slots, fills=True, fused=FUSED)


def table(names, gpus=1):
    return RateTable(1, gpus, tuple(Network(name, (100.0,)) for name in names))


def planned(kinds, running=(), finished=(), gpus=1, processes=1, policy="adaptive"):
    """Return process -> the networks that a plan gives it; kinds are the first letters."""
    names = [name for name, _ in kinds]
    progress = Progress(running=tuple(running), finished=frozenset(finished), fuse_keys=dict(kinds))
    devices = cluster(gpus, processes)
    answer = plan(POLICIES[policy], table(names, gpus), progress, devices, Options())
    result = {}
    for member in answer.members:
        (device,) = member.devices
        result.setdefault(process_of(devices, device), []).append(member.name)
    return result


def kinds_of(text):
    """Return pairs of a name and a kind: one per letter, `.` for a network of no kind."""
    return [
        (f"{letter}{index}", "" if letter == "." else letter) for index, letter in enumerate(text)
    ]


def test_equal_networks_fill_a_process():
    assert planned(kinds_of("aaaaaa")) == {(0, 0): ["a0", "a1", "a2", "a3"]}


def test_process_trains_one_kind():
    assert planned(kinds_of("ababab")) == {(0, 0): ["a0", "a2", "a4"]}


def test_each_kind_gets_a_gpu():
    assert planned(kinds_of("ababab"), gpus=2) == {
        (0, 0): ["a0", "a2", "a4"],
        (1, 0): ["b1", "b3", "b5"],
    }


def test_networks_without_a_kind_have_processes_of_their_own():
    result = planned(kinds_of("...."), processes=2)
    assert sorted(map(len, result.values())) == [1, 1]


def test_running_network_keeps_its_slot():
    running = [Member("b1", (2,))]
    result = planned(kinds_of("abab"), running)
    assert result == {(0, 0): ["b1", "b3"]}


@given(
    text=st.text("ab.", min_size=1, max_size=12),
    gpus=st.integers(1, 3),
    processes=st.integers(1, 2),
    policy=st.sampled_from(["adaptive", "baseline", "global", "local"]),
)
def test_no_process_has_two_kinds(text, gpus, processes, policy):
    kinds = kinds_of(text)
    result = planned(kinds, gpus=gpus, processes=processes, policy=policy)
    assert result
    if len(text) <= gpus:
        return
    for names in result.values():
        trained = {dict(kinds)[name] or name for name in names}
        assert len(trained) == 1
        assert len(names) <= FUSED


@given(text=st.text("ab.", min_size=3, max_size=10), gpus=st.integers(1, 2))
def test_every_network_is_trained(text, gpus):
    kinds = kinds_of(text)
    finished = set()
    running = ()
    for _ in range(3 * len(text)):
        progress = Progress(
            running=tuple(running), finished=frozenset(finished), fuse_keys=dict(kinds)
        )
        names = [name for name, _ in kinds]
        answer = plan(POLICIES["adaptive"], table(names, gpus), progress, cluster(gpus), Options())
        busy = [device for member in answer.members for device in member.devices]
        assert len(set(busy)) == len(busy)
        if not answer.members:
            break
        finished.add(answer.members[0].name)
        running = answer.members[1:]
    assert finished == {name for name, _ in kinds}


def test_shared_slots_without_fusing_are_planned_as_before():
    devices = replace(cluster(), fused=1)
    answer = plan(POLICIES["adaptive"], table("abcdef"), Progress(), devices, Options())
    assert isinstance(answer, Round)
    assert len(answer.members) == FUSED


@pytest.mark.parametrize(("device", "process"), [(0, 0), (3, 0), (4, 1), (7, 1)])
def test_slots_of_a_process_are_consecutive(device, process):
    assert process_of(cluster(processes=2), device) == (0, process)
