"""Leases of networks, seen by a launch that works alone."""

import threading
import time

import pytest

from fleet.errors import UserError
from fleet.storage.lease import Holder, Lease, Times
from fleet.storage.network_leases import find_held_lease, read_holders, reclaim_networks
from fleet.storage.paths import RunPaths
from tests.fleet.storage.test_lease import FakeProcess, hold
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    return RunPaths(tmp_path / "run")


@pytest.fixture
def alone():
    """Return the lease of a launch that works alone, and gives up soon."""
    process = FakeProcess()
    process.now = time.monotonic
    return Lease(process, Holder("alone", "node", 1), Times(stale=60, poll=0.001, patience=0.01))


@pytest.fixture
def release_network(run):
    """Hold a network as another launch does; return a function that releases it."""
    run.network_leases.mkdir(parents=True)
    lease = hold(run.network_lease("a"), "other")
    ended = threading.Event()

    def renew():
        while not ended.wait(0.001):
            lease.renew()

    def release():
        ended.set()
        thread.join()
        lease.release()

    thread = threading.Thread(target=renew)
    thread.start()
    yield release
    ended.set()


def test_reclaim_networks_is_refused_while_one_is_held(run, alone, release_network):
    with refused(UserError, "process 1 on node"):
        reclaim_networks(run, alone)
    release_network()
    assert not reclaim_networks(run, alone)


def test_find_held_lease_and_read_holders_see_a_held_network(run, release_network):
    assert list(read_holders(run)) == ["a"]
    release_network()
    assert read_holders(run) == {}
    assert find_held_lease(run) is None
