"""Leases in real folders, with simulated clocks: one launch at a time, whatever stops or dies."""

import dataclasses
import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fleet.errors import LeaseLost, StorageError, UserError
from fleet.storage import lease as lease_module
from fleet.storage.lease import (
    Fence,
    Holder,
    Lease,
    Process,
    Times,
    free_dead,
    newest_generation,
    newest_state,
    parse_lease,
    read_generation,
)
from tests.examples import examples
from tests.refusals import refused
from tests.waiting import wait_until

QUICK = Times(stale=0.6, renew=0.05, patience=0.2, dying=0.1, poll=0.02)

HOLDER = """
import pathlib, subprocess, sys, time
from fleet.batch_systems import lease_of_process
lease = lease_of_process({"FLEET_LEASE": "1"})
lease.take(pathlib.Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


class FakeProcess:
    """The observations of a process, with a clock that tests set."""

    def __init__(self, knows=None, has_ended=False):
        self.knows = knows
        self.has_ended = has_ended
        self.time = 0.0

    def now(self):
        return self.time

    def has_died(self, holder):
        return self.has_ended

    def knows_job(self, holder):
        return self.knows


def make(name="a", around=None, **me):
    return Lease(
        around or FakeProcess(), Holder(name, "node", 1, **me), Times(), say=lambda text: None
    )


def hold(folder, name="a", floor=0, **me):
    """Return a held lease that is not renewed."""
    folder.mkdir(exist_ok=True)
    lease = make(name, **me)
    assert not list(filter(None, lease.steps(folder, floor)))
    return lease


def acquire(lease, folder, until=1e9):
    """Acquire a lease step by step; return the seconds that it took, None after ``until``."""
    for pause in lease.steps(folder):
        lease._process.time += pause
        if lease._process.time > until:
            return None
    return lease._process.time


@pytest.fixture
def folder(tmp_path):
    return tmp_path / ".fleet-lease"


# ---- real processes ----------------------------------------------------------------------------


@pytest.fixture
def holder(folder):
    """Start another process that holds the lease and has a child process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.communicate()
    os.kill(child, signal.SIGKILL)


def real(times=QUICK):
    around = Process()
    return Lease(around, around.me, times, say=lambda text: None)


def test_lease_error_names_the_holder(folder, holder):
    with refused(UserError, f"process {holder.pid} on "):
        real(dataclasses.replace(QUICK, stale=60, patience=0.5)).take(folder)


def test_lease_ends_with_killed_process_despite_children(folder, holder):
    holder.kill()  # without waiting, so it remains a zombie
    with real(dataclasses.replace(QUICK, stale=60)) as lease:
        lease.take(folder)
        assert lease.took_over
        with refused(UserError, f"process {os.getpid()} on "):
            real(dataclasses.replace(QUICK, stale=60)).take(folder)
    # it was released, so nothing is waited for
    with real(dataclasses.replace(QUICK, stale=60, dying=60)) as lease:
        lease.take(folder)
        assert not lease.took_over


def test_lease_of_a_dead_launch_can_be_freed(folder, holder):
    free_dead(folder, 0)
    assert not newest_state(folder).is_free  # its holder lives
    holder.kill()
    holder.wait()
    free_dead(folder, 1)
    assert not newest_state(folder).is_free  # it is older than the launch
    free_dead(folder, 0)
    assert newest_state(folder).is_free
    with real(dataclasses.replace(QUICK, stale=60, dying=60)) as lease:
        lease.take(folder)
        assert not lease.took_over


def test_stopped_holder_loses_lease_and_notices(folder):
    first, second = real(), real()
    first.take(folder)
    first._ended.set()  # as if its process were suspended
    first._thread.join()
    first.check()
    second.take(folder)
    second.check()
    with refused(LeaseLost, folder.parent, f"process {os.getpid()} on "):
        first.check()
    first.release()  # does not affect the other one
    second.check()
    second.release()


def test_lease_is_renewed_while_it_is_held(folder):
    with real() as lease:
        lease.take(folder)
        before = read_generation(folder, 1)
        wait_until(lambda: read_generation(folder, 1) != before)
    assert parse_lease(read_generation(folder, 1)).is_free


def test_lease_waits_for_dying_ranks_of_dead_launch(folder):
    lease = real()
    lease.take(folder)
    lease.__exit__(ValueError, ValueError(), None)
    assert not parse_lease(read_generation(folder, 1)).is_free


def test_has_died_recognizes_reused_process_ids():
    around = Process()
    dead = [
        dataclasses.replace(around.me, started="1"),
        dataclasses.replace(around.me, pid=2**22 + 1),
        dataclasses.replace(around.me, boot="before"),
    ]
    unknown = [
        around.me,
        dataclasses.replace(around.me, namespace="pid:[1]", pid=2**22 + 1),
        dataclasses.replace(around.me, host="elsewhere", boot="other"),
        Holder("a", around.me.host, 2**22 + 1),
        dataclasses.replace(around.me, host="localhost", boot="other"),
    ]
    assert [around.has_died(candidate) for candidate in [*dead, *unknown]] == [True] * 3 + [
        False
    ] * 5


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_lease_works_without_links(folder, monkeypatch, number):
    def refuse(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    hold(folder).check()
    assert not lease_module.create_generation(folder, 1, Holder("b", "node", 2))


def test_lease_works_if_the_reply_to_a_link_is_lost(folder, monkeypatch):
    link = os.link

    def twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    hold(folder).check()


def test_lease_waits_while_a_listing_lags(folder, monkeypatch):
    hold(folder)
    monkeypatch.setattr(lease_module, "newest_generation", lambda folder: 0)
    pauses = list(islice(make("b").steps(folder), 100))
    assert sum(pauses) >= 100 * Times().poll / 4


def test_lease_raises_if_the_folder_is_unwritable(tmp_path):
    (tmp_path / "run").touch()
    with refused(StorageError, tmp_path / "run"):
        real().take(tmp_path / "run" / ".fleet-lease")


@pytest.mark.parametrize(
    "content", ["", "0000", "no lease", f"{0:020d} held\n", f"{0:020d} held\n{{", "\0" * 64]
)
def test_incomplete_generation_is_held_until_stale(folder, content):
    folder.mkdir()
    (folder / "00000001").write_text(content)
    assert acquire(make(), folder) == pytest.approx(60, abs=1)


def test_lease_deletes_old_generations(folder):
    for number in range(1, 21):
        lease = hold(folder, f"launch{number}")
        lease.release()
    assert newest_generation(folder) == 20
    assert len(list(folder.iterdir())) == 8
    assert hold(folder, floor=30).fence.token == 31


def test_lease_of_launch_with_another_floor_is_not_taken(folder, monkeypatch):
    first = hold(folder, floor=2)
    monkeypatch.setattr(lease_module, "newest_generation", lambda folder: 0)  # a listing lags
    assert Times().poll in islice(make("b").steps(folder, 3), 100)
    monkeypatch.undo()
    first.check()
    assert newest_generation(folder) == 1


@pytest.mark.parametrize("content", ["", "0000", f"{0:020d} held\n{{"])
def test_token_rises_over_generations_that_a_crash_has_torn(folder, content):
    hold(folder, floor=6).release()
    assert hold(folder, "b", floor=8).fence.token == 9
    (folder / "00000002").write_text(content)
    third = make("c")
    for pause in third.steps(folder, 8):
        third._process.time += pause
    assert third.fence.token == 10


def test_lease_is_lost_with_its_folder(folder):
    lease = hold(folder)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(LeaseLost):
        lease.check()


def test_fence_can_be_pickled(folder):
    fence = pickle.loads(pickle.dumps(hold(folder).fence))
    fence.check()
    assert fence == Fence(folder, 1, "a")


def test_times_are_read_from_the_environment():
    assert Times.of({}) == Times()
    assert Times.of({"FLEET_LEASE": "5min"}) == Times(stale=300)
    assert Times.of({"FLEET_LEASE": "2s"}).renew < 1
    for wrong in ("soon", "0"):
        with refused(UserError, "FLEET_LEASE"):
            Times.of({"FLEET_LEASE": wrong})


# ---- who may follow ----------------------------------------------------------------------------

JOB = {"system": "slurm", "job": "17"}


@pytest.mark.parametrize(
    ("first", "second", "around", "seconds"),
    [
        ({}, {}, {}, 60),
        ({}, {}, {"has_ended": True}, 3),
        (JOB, {}, {"knows": False}, 60),
        (JOB, {}, {"knows": None}, 60),
        # the same job was requeued
        (JOB, {**JOB, "restarts": 1}, {"knows": True}, 0),
        ({**JOB, "restarts": 1}, {**JOB, "restarts": 2}, {"knows": True}, 0),
        # another launch in the same job, which is known
        (JOB, JOB, {"knows": True}, 60),
    ],
    ids=str,
)
def test_lease_of_a_dead_holder_is_taken_over(folder, first, second, around, seconds):
    first_lease = hold(folder, "first", **first)
    lease = make("second", FakeProcess(**around), **second)
    assert acquire(lease, folder) == pytest.approx(seconds, abs=0.5)
    assert lease.took_over
    with pytest.raises(LeaseLost):
        first_lease.check()


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"system": "slurm", "job": "18", "restarts": 9}, "job 17 of slurm"),
        ({}, "slurm still knows its job"),
    ],
)
def test_lease_of_a_suspended_job_is_kept(folder, second, words):
    lease = hold(folder, **JOB)
    with refused(UserError, words):
        acquire(make("second", FakeProcess(knows=True), **second), folder)
    lease.check()


def test_lease_waits_while_the_newest_generation_is_unlisted(folder, monkeypatch):
    hold(folder).release()
    hold(folder, "b")
    monkeypatch.setattr(lease_module, "newest_generation", lambda folder: 1)
    steps = make("c").steps(folder)
    assert [pause for pause, _ in zip(steps, range(20), strict=False)].count(Times().poll) > 4


def test_lease_waits_for_a_launch_that_is_ending(folder):
    first, second = hold(folder), make("b")
    for pause in second.steps(folder):
        second._process.time += pause
        if second._process.time < 4:
            first.renew()
        else:
            first.release()
    assert second._process.time < 5
    assert not second.took_over


# ---- several launches, in any order ------------------------------------------------------------


class Machine:
    """The observations of a simulated launch: its own clock, deaths on its host, all jobs."""

    def __init__(self, world, offset, speed):
        self._world = world
        self._offset = offset
        self._speed = speed

    def now(self):
        return self._offset + self._speed * self._world.time

    def has_died(self, holder):
        return holder.launch in self._world.dead_here

    def knows_job(self, holder):
        return holder.launch not in self._world.ended_jobs if self._world.answers else None


class Leases(RuleBasedStateMachine):
    """Launches that acquire, renew, write, are suspended, and die between any accesses to files.

    A launch that does nothing is suspended. It may act on an old check when it continues: its write
    then has an older generation, and fencing discards it (see test_fencing.py).
    """

    launches = Bundle("launches")

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")  # no waits for the disk
        self.folder = Path(self._folder.name)
        self.time = 0.0
        self.answers = True
        self.count = 0
        self.dead_here = set()
        self.ended_jobs = set()
        self.written = []
        self.leases = []

    def teardown(self):
        self._folder.cleanup()

    @rule(
        target=launches,
        floor=st.sampled_from([0, 2, 9]),
        offset=st.sampled_from([0.0, -1e6, 1e9]),
        speed=st.sampled_from([0.5, 1.0, 2.0]),
        job=st.sampled_from(["", "7", "8"]),
        restarts=st.integers(0, 2),
    )
    def start(self, floor, offset, speed, job, restarts):
        self.count += 1
        me = Holder(
            f"launch{self.count}",
            "node",
            self.count,
            system=job and "slurm",
            job=job,
            restarts=restarts,
        )
        lease = Lease(Machine(self, offset, speed), me, Times(), say=lambda text: None)
        self.leases.append(lease)
        return [lease, lease.steps(self.folder, floor)]

    @rule(launch=launches, looks=st.integers(1, 6))
    def go_on(self, launch, looks):
        """Make some steps of acquiring the lease; renew it if it is held."""
        lease, steps = launch
        if not any(candidate is lease for candidate in self.leases):
            return  # it was refused, or has lost its lease, and has ended
        for _ in range(looks):
            try:
                if steps is None:
                    lease.renew()
                else:
                    next(steps)
            except StopIteration:
                launch[1] = steps = None
            except (UserError, LeaseLost):
                self.leases = [candidate for candidate in self.leases if candidate is not lease]
                return

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 70.0, 1e5]))
    def let_time_pass(self, seconds):
        self.time += seconds

    @rule(launch=consumes(launches), is_seen=st.booleans())
    def die(self, launch, is_seen):
        self.leases = [candidate for candidate in self.leases if candidate is not launch[0]]
        self.ended_jobs.add(launch[0].me.launch)
        if is_seen:
            self.dead_here.add(launch[0].me.launch)

    @rule(launch=consumes(launches))
    def end(self, launch):
        self.leases = [candidate for candidate in self.leases if candidate is not launch[0]]
        launch[0].release()

    @rule(answers=st.booleans())
    def change_the_batch_system(self, answers):
        self.answers = answers

    @rule(launch=launches)
    def lose_the_job(self, launch):
        """Let the batch system declare the node of a job dead, although it may be alive."""
        self.ended_jobs.add(launch[0].me.launch)

    @invariant()
    def never_two_may_write(self):
        may = [lease for lease in self.leases if lease.fence.generation and _passes(lease.fence)]
        assert len(may) <= 1
        self.written += [lease.fence.token for lease in may]
        assert self.written == sorted(self.written)  # the last write is the newest launch's


def _passes(fence):
    try:
        fence.check()
    except LeaseLost:
        return False
    return True


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)


def test_lease_is_acquired_though_its_folder_was_stale(folder, monkeypatch):
    listdir = os.listdir
    errors = [OSError(errno.ESTALE, "Stale file handle")] * 2

    def listed(path):
        if errors:
            raise errors.pop()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert hold(folder).fence.generation == 1
