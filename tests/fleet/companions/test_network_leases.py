"""Leases of networks: several launches share a run, or one has all networks."""

import pytest

from fleet.companions.shared_run.network_leases import NetworkLeases
from fleet.domain.network import TrainingState
from fleet.errors import LeaseLost, StorageError
from fleet.storage.checkpoint import find_newest, write_state
from fleet.storage.network_leases import read_holders
from fleet.storage.paths import RunPaths
from tests.fleet.histories import history
from tests.fleet.storage.test_lease import FakeProcess, hold, make
from tests.refusals import refused
from tests.waiting import wait_until


@pytest.fixture
def run(tmp_path):
    return RunPaths(tmp_path / "run")


def launch(run, name, around=None, **me):
    return NetworkLeases(run, make(name, around, **me))


def acquire(leases, names, max_held=9):
    """Request networks, poll once, and return the acquired ones."""
    leases.request(names, max_held)
    leases.poll()
    return leases.pop_acquired()


def wait(leases, seconds):
    """Poll every second; return the acquired networks, and whether they were taken over."""
    for _ in range(seconds):
        leases._lease._process.time += 1
        leases.poll()
    return [(name, leases.lease_of(name).took_over) for name in leases.pop_acquired()]


def test_network_lease_passes_to_other_launch_on_release(run):
    first, second = launch(run, "first"), launch(run, "second")
    assert acquire(first, "ab", max_held=1) == ["a"]
    assert acquire(second, "abc") == ["b", "c"]
    first.release("a")
    assert acquire(second, "abc") == ["a"]
    assert second.lease_of("a").fence.generation == 2
    first.check()


def test_network_lease_of_killed_launch_is_taken_over(run):
    acquire(launch(run, "first", system="slurm", job="17"), "ab")
    ended, same, new_job = (
        launch(run, name, FakeProcess(knows=is_known), system="slurm", job=job, restarts=restarts)
        for name, job, restarts, is_known in (
            ("ended", "18", 0, False),
            ("same", "17", 1, True),
            ("other", "19", 0, True),
        )
    )
    assert acquire(new_job, "a") == acquire(ended, "a") == []
    assert wait(new_job, 200) == []  # the batch system still knows the holder's job
    assert acquire(same, "b") == ["b"]  # the same job, requeued
    assert wait(ended, 58) == []
    assert wait(ended, 4) == [("a", True)]


def test_unresponsive_launch_releases_no_network(run):
    first = launch(run, "first", system="slurm", job="17")
    second = launch(run, "second", FakeProcess(knows=False), system="slurm", job="18")
    acquire(first, "a")
    first.close(may_write=True)
    assert acquire(second, "a") == []
    assert wait(second, 62) == [("a", True)]


def test_network_lease_of_a_living_launch_is_kept(run):
    first, second = launch(run, "first"), launch(run, "second")
    acquire(first, "a")
    acquire(second, "a")
    for _ in range(100):
        first.renew()
        assert wait(second, 1) == []


def test_network_lease_fences_out_stopped_launch(run):
    first, second = launch(run, "first"), launch(run, "second")
    acquire(first, "a")
    fence = first.lease_of("a").fence
    write_state(run.last("a"), TrainingState({}, "net", history(0.5)), fence=fence)
    acquire(second, "a")
    assert wait(second, 70) == [("a", True)]
    with refused(LeaseLost, "network a", "process 1 on node"):
        write_state(run.last("a"), TrainingState({}, "net", history(0.5, 0.6)), fence=fence)
    with pytest.raises(LeaseLost):
        first.check()
    first.renew()  # notices the loss, and does not affect the other one
    first.close()
    second.check()
    write_state(
        run.last("a"), TrainingState({}, "net", history(0.5, 0.7)), fence=second.lease_of("a").fence
    )
    assert find_newest(run, "a").state.generation == 2


def test_network_leases_wait_while_the_run_is_held(run):
    folder = run.lease
    folder.mkdir(parents=True)
    alone = hold(folder, "alone")
    first = launch(run, "first")
    assert acquire(first, "ab") == []
    assert not run.network_lease("a").exists() or not read_holders(run)
    alone.release()
    assert acquire(first, "ab") == ["a", "b"]


def test_network_lease_is_released_if_the_run_is_held(run):
    run.lease.mkdir(parents=True)
    run.network_lease("a").mkdir(parents=True)
    first = launch(run, "first")

    def steps(lease):
        yield from lease.steps(run.network_lease("a"))
        hold(run.lease, "alone")

    lease = first._lease.sibling("network a")
    first._attempts["a"] = lease, steps(lease)
    assert acquire(first, "a") == []
    assert not read_holders(run)


def test_network_leases_fence_out_a_dead_holder_of_the_run(run):
    run.lease.mkdir(parents=True)
    hold(run.lease, "dead")
    first = launch(run, "first", FakeProcess(knows=None))
    assert acquire(first, "a") == []
    assert wait(first, 70) == [("a", False)]


def test_generations_rise_across_single_and_shared_launches(run):
    first = launch(run, "first")
    acquire(first, "a")
    first.release("a")
    run.lease.mkdir(parents=True)
    hold(run.lease, "alone", floor=6).release()
    assert acquire(launch(run, "second"), "a") == ["a"]
    assert read_holders(run)


def test_network_leases_raise_if_the_folder_is_unwritable(run):
    run.root.mkdir()
    run.network_leases.touch()
    leases = launch(run, "first")
    leases.start()
    leases.request("a", 1)
    wait_until(lambda: leases._error is not None)
    with refused(StorageError, run.network_leases):
        leases.check()
    leases.close()
