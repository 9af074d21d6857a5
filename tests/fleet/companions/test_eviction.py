"""Tests of evictions on a simulated Slurm."""

import errno
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest

from fleet.__main__ import main
from fleet.companions.batch_jobs import paused_submissions
from fleet.companions.batch_jobs.paused_submissions import PausedRuns, delay_options
from fleet.companions.eviction import eviction, job_holds
from fleet.companions.eviction.eviction import ClusterView, EvictionLog, Execution
from fleet.companions.eviction.job_holds import DeferredSignals, unreleased_jobs
from fleet.companions.eviction.slurm_running import SiteCheckpoints, running_jobs
from fleet.errors import UserError
from fleet.storage.paths import RunPaths
from launch import slurm_control
from launch.systems import SYSTEMS
from scheduler.eviction.execution import Eviction
from tests.fakes import Clock
from tests.launch.conftest import made_up
from tests.refusals import refused

__all__ = ["made_up"]
SAVES = "fleet:signal=B:USR2,app_time=2"
JOBS = {
    "1": {"nodes": 2, "comment": SAVES},
    "2": {"nodes": 2},
    "3": {"nodes": 2, "elapsed": "10:00"},
    "4": {"nodes": 4, "user": "you"},
}


@pytest.fixture(autouse=True)
def user(monkeypatch):
    """Act as an ordinary user who takes a snapshot every half minute."""
    monkeypatch.setattr(eviction, "SNAPSHOT_S", (30.0, 30.0))
    monkeypatch.setattr(slurm_control, "is_operator", lambda: False)
    monkeypatch.setattr(slurm_control, "current_user", lambda: "me")


@pytest.fixture
def evict(tmp_path, made_up, monkeypatch, capsys):
    """Return a function that carries out an eviction: success, log lines, messages."""

    def run(
        nodes,
        deadline,
        clock=None,
        user="me",
        urgent=None,
        held_jobs=(),
        interruption=None,
        release_nodes=None,
    ):
        clock = clock or Clock()
        machine = ClusterView(
            None,
            user,
            urgent,
            lambda jobs: running_jobs(jobs, SiteCheckpoints(), None, 0.0),
        )
        first = machine.take_snapshot()
        plan = Eviction(nodes, deadline, min(1.0, deadline / 10), first.signals, first.runs)
        monkeypatch.setattr(eviction, "release_nodes", release_nodes)
        capsys.readouterr()
        signals = interruption or DeferredSignals()
        signals.sleep = clock.sleep
        log = EvictionLog(tmp_path / "record")
        done = Execution(plan, first, machine, log, held_jobs, signals).run(clock)
        messages = capsys.readouterr().out.splitlines()
        notes = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
        return done, [(note["what"], note.get("job", "")) for note in notes], messages

    return run


def test_eviction_signals_saving_jobs_and_requeues_others(made_up, evict):
    made_up.set(JOBS)
    done, notes, _ = evict(4, 10)
    assert done
    assert made_up.acts == [
        "scancel --batch --signal=USR2 1",
        "scontrol requeuehold 3",
        "scontrol release 3",
    ]
    assert notes == [
        ("plan", ""),
        ("save", "1"),
        ("freed", "1"),
        ("hold", "3"),
        ("stop", "3"),
        ("freed", "3"),
        ("free", ""),
        ("end", ""),
        ("release", "3"),
    ]
    assert made_up.state()["jobs"].keys() == {"2", "3", "4"}


def test_disobedient_job_is_stopped_or_cancelled(made_up, evict):
    made_up.set({"1": {"nodes": 2, "comment": SAVES, "obeys": False, "requeues": False}})
    done, notes, _ = evict(2, 10)
    assert done
    assert made_up.acts == [
        "scancel --batch --signal=USR2 1",
        "scontrol requeuehold 1",
        "scancel 1",
    ]
    assert [kind for kind, _ in notes] == [
        "plan",
        "save",
        "deaf",
        "plan",
        "hold",
        "release",
        "stop",
        "freed",
        "free",
        "end",
    ]


YIELDS = {
    "nodes": 3,
    "hosts": "n1,n2,n3",
    "comment": "fleet:signal=B:USR2,app_time=2,yields=/runs/photos",
}


def test_job_that_can_shrink_is_shrunk_first(made_up, evict):
    made_up.set({"1": {"nodes": 2, "comment": SAVES}, "3": YIELDS})
    requests = []

    def release_nodes(run, nodes, within_s):
        requests.append((run, nodes, within_s))
        made_up.change("3", nodes=1)  # as in Slurm's queue
        return ["n2", "n3"]

    done, notes, messages = evict(2, 10, release_nodes=release_nodes)
    assert done
    assert requests == [("/runs/photos", 2, 270.0)]  # half of the remaining time
    assert made_up.acts == ["scontrol update JobId=3 NodeList=n1"]
    assert notes == [("yield", "3"), ("shrunk", "3"), ("free", ""), ("end", "")]
    assert (
        "    0.0 min  job 3: releases nodes: 2 of 3 (of me; n2, n3 released; it keeps n1)"
        in messages
    )


@pytest.mark.long_but_first
@pytest.mark.parametrize("nodes", [3, 2])
def test_job_that_cannot_release_nodes_saves_instead(made_up, evict, nodes):
    made_up.set({"3": YIELDS})

    def release_nodes(run, nodes, within_s):
        raise UserError(f"{run}: no launch is at work there")

    done, notes, messages = evict(nodes, 10, release_nodes=release_nodes)
    assert done
    assert "    0.0 min  job 3 of me: skipped: /runs/photos: no launch is at work there" in messages
    assert made_up.acts == ["scancel --batch --signal=USR2 3"]
    assert [kind for kind, _ in notes].count("refused") == 1


def test_other_jobs_are_evicted_after_release_is_known(made_up, evict):
    made_up.set(
        {
            "1": {"nodes": 2, "comment": SAVES},
            "3": YIELDS,
            "5": {**YIELDS, "nodes": 2, "hosts": "n4,n5"},
        }
    )
    clock, requests = Clock(), []

    def release_nodes(run, nodes, within_s):  # it does not, and reports that at the end of its time
        requests.append((clock.now / 60, within_s / 60))
        clock.now += within_s
        raise UserError(f"{run}: no nodes are free")

    done, _, messages = evict(5, 20, clock, release_nodes=release_nodes)
    assert done
    assert requests == [
        (0.0, 9.5),
        (10.0, 4.5),
    ]  # half of the remaining time, and half a minute until the next snapshot
    saves = [line.split(" (")[0].split() for line in messages if "saves, until minute" in line]
    assert saves
    assert all(float(line[0]) + 2 == float(line[-1]) >= 17 for line in saves)


def test_no_release_is_requested_without_time(made_up, evict):
    made_up.set({"3": YIELDS})
    done, notes, _ = evict(2, 0.1)
    assert done
    assert "yield" not in {kind for kind, _ in notes}


def test_dry_run_lists_jobs_that_would_release_nodes(made_up, capsys):
    made_up.set({"1": {"nodes": 2, "elapsed": "10:00"}, "3": YIELDS})
    assert main(WORDS) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "    0.0 min  job 3 of me: releases nodes: 2 of 3 (its comment says that it can)",
        "    0.0 min  plan: 2 nodes, 0.3 node-hours are lost",
        "    9.0 min  job 1 of me: is stopped: it loses least (requeue and hold for a while, or "
        "cancel if Slurm refuses)",
    ]


def test_nodes_are_kept_free_until_urgent_job_starts(made_up, evict):
    urgent = {"state": "PENDING", "user": "you", "start": "N/A", "partition": "high"}
    made_up.set(
        {"1": {"nodes": 2, "comment": SAVES, "obeys": "PENDING"}, "3": {"nodes": 2}, "9": urgent}
    )
    held_jobs = []

    def begin():
        held_jobs.extend(job for job, has in made_up.state()["jobs"].items() if has.get("held"))
        made_up.change("9", state="RUNNING")

    done, notes, messages = evict(4, 10, Clock(then={780: begin}), urgent="9")
    assert done
    assert held_jobs == ["1", "3"]  # including the one that has requeued itself
    assert messages[-3] == "job 9 is RUNNING after 13.0 min"
    assert {job for kind, job in notes if kind == "release"} == {"1", "3"}
    assert not any(job.get("held") for job in made_up.state()["jobs"].values())


@pytest.mark.long
def test_unstarted_urgent_job_is_given_up_and_holds_released(made_up, evict):
    made_up.set({"3": {"nodes": 2}, "9": {"state": "PENDING", "start": "N/A"}})
    done, _, messages = evict(2, 10, urgent="9")
    assert not done
    assert messages[-2:] == [
        "job 9 has not started; giving up 5 min after the deadline",
        "job 3 is no longer held: Slurm may start it",
    ]


def test_nodes_are_kept_free_for_a_minute_by_default(made_up, evict):
    made_up.set({"3": {"nodes": 2}})
    _, _, messages = evict(2, 0)
    assert (
        "the nodes are no longer kept free, after 1.5 min" in messages
    )  # they were free at the second snapshot, after half a minute


def test_interrupted_eviction_releases_held_jobs(made_up, evict, tmp_path):
    made_up.set({"3": {"nodes": 2}, "9": {"state": "PENDING", "start": "N/A"}})
    with DeferredSignals() as interruption:
        clock = Clock(then={660: lambda: os.kill(os.getpid(), signal.SIGTERM)})
        done, notes, messages = evict(2, 10, clock, urgent="9", interruption=interruption)
    assert not done
    assert "interrupted by SIGTERM" in messages
    assert notes[-1] == ("release", "3")
    assert unreleased_jobs(tmp_path / "record") == []


def test_next_eviction_releases_holds_of_killed_one(made_up, evict, tmp_path):
    record = tmp_path / "record"
    made_up.set({"3": {"nodes": 2}, "7": {"state": "PENDING", "held": True}})
    EvictionLog(record).note("hold", "", job="7")
    assert unreleased_jobs(record) == ["7"]
    evict(2, 10, held_jobs=unreleased_jobs(record))
    assert not made_up.state()["jobs"]["7"]["held"]
    assert unreleased_jobs(record) == []


def test_release_failure_names_the_remedy(made_up, evict, tmp_path, monkeypatch):
    made_up.set({"3": {"nodes": 2}})
    monkeypatch.setattr(job_holds, "_PAUSE_S", 0.0)
    refuses = Clock(
        then={
            600: lambda: made_up.set(
                made_up.state()["jobs"], says={"scontrol": "Access/permission denied"}
            )
        }
    )
    _, _, messages = evict(2, 10, refuses)
    assert messages[-1] == (
        "job 3 could not be released: scontrol failed: Access/permission denied; try: scontrol "
        "release 3"
    )
    assert unreleased_jobs(tmp_path / "record") == ["3"]


def test_job_cancelled_while_held_needs_no_release(made_up, evict, tmp_path):
    made_up.set({"3": {"nodes": 2}})
    _, _, messages = evict(2, 10, Clock(then={600: lambda: made_up.change("3")}))
    assert messages[-1] == "job 3 is no longer held: it is no longer in the queue"
    assert unreleased_jobs(tmp_path / "record") == []


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"user": "you"}, "it belongs to you"),
        ({"start": "2026-11-22T11:00:00"}, "it was restarted"),
        ({"state": "COMPLETING"}, "it is now COMPLETING"),
    ],
)
def test_job_is_checked_again_before_each_action(made_up, evict, monkeypatch, changes, reason):
    made_up.set({"2": {"nodes": 2}, "3": {"nodes": 2, "elapsed": "10:00"}})
    find_obstacle = ClusterView.find_obstacle

    def change_first(machine, job):
        if job == "3":
            made_up.change("3", **changes)
        return find_obstacle(machine, job)

    monkeypatch.setattr(ClusterView, "find_obstacle", change_first)
    done, notes, messages = evict(2, 10, Clock(then={570: lambda: made_up.change("2")}))
    assert done
    assert ("refused", "3") in notes
    assert any(reason in line for line in messages)
    assert not any(act.endswith(" 3") for act in made_up.acts)


def test_eviction_retries_if_slurm_does_not_answer(made_up, evict):
    made_up.set({"3": {"nodes": 2}})
    state = made_up.state()
    silent = Clock(
        then={
            120: lambda: made_up.set(
                state["jobs"], says={"squeue": "Unable to contact slurm controller"}
            ),
            300: lambda: made_up.set(state["jobs"]),
        }
    )
    done, notes, _ = evict(2, 10, silent)
    assert done
    assert notes == [
        ("plan", ""),
        ("silent", ""),
        ("hold", "3"),
        ("stop", "3"),
        ("freed", "3"),
        ("free", ""),
        ("end", ""),
        ("release", "3"),
    ]


def test_unfreed_nodes_are_given_up_after_deadline(made_up, evict, monkeypatch):
    made_up.set({"3": {"nodes": 2}})
    monkeypatch.setattr(
        slurm_control, "requeue_or_cancel", lambda job: "requeued"
    )  # but it goes on
    done, notes, messages = evict(2, 10)
    assert not done
    assert [kind for kind, _ in notes].count("stop") == 4  # it is stopped again every two minutes
    assert "0 of 2 nodes are free; giving up 5 min after the deadline" in messages


def test_unwritable_record_ends_eviction_before_any_action(made_up, tmp_path):
    with refused(UserError, "no/record", os.strerror(errno.ENOENT), "--record"):
        EvictionLog(tmp_path / "no/record").note("begin", "")


# ---- jobs that could take the nodes ----

URGENT = {"state": "PENDING", "start": "N/A", "partition": "high"}
OF_HARVEST = {"state": "PENDING", "start": "N/A", "comment": SAVES}


def begin_when_free(made_up, job, nodes, hosts):
    """Start waiting jobs on free nodes unless they are held, as Slurm does."""

    def begin():
        jobs = made_up.state()["jobs"]
        used_nodes = {name for entry in jobs.values() for name in entry.get("hosts", "").split(",")}
        if (
            jobs[job].get("state") == "PENDING"
            and not jobs[job].get("held")
            and not used_nodes & set(hosts.split(","))
        ):
            made_up.change(
                job,
                state="RUNNING",
                start="2026-11-22T12:00:00",
                nodes=nodes,
                hosts=hosts,
                comment=SAVES,
            )

    return begin


def test_waiting_harvest_jobs_are_held_until_urgent_job_starts(made_up, evict):
    made_up.set(
        {
            "1": {"nodes": 2, "comment": SAVES, "hosts": "n1,n2"},
            "7": OF_HARVEST,
            "8": {**OF_HARVEST, "held": True},
            "9": URGENT,
        }
    )
    clock = Clock(
        then={
            60: begin_when_free(made_up, "7", 1, "n1"),
            180: lambda: made_up.change("9", state="RUNNING", hosts="n1,n2"),
        }
    )
    done, notes, messages = evict(2, 10, clock, urgent="9")
    assert done
    assert notes[0] == ("hold", "7")  # jobs that their user holds stay held
    assert notes[-1] == ("release", "7")
    assert made_up.acts == [
        "scontrol hold 7",
        "scancel --batch --signal=USR2 1",
        "scontrol release 7",
    ]
    assert "2 nodes are free after 0.5 min" in messages


def test_own_jobs_wait_for_urgent_job_but_not_those_of_others(made_up, evict):
    plain = {"state": "PENDING", "start": "N/A"}
    made_up.set(
        {
            "1": {"nodes": 2, "comment": SAVES},
            "7": plain,
            "8": {**plain, "user": "you"},
            "9": URGENT,
        }
    )
    evict(
        2,
        10,
        Clock(then={180: lambda: made_up.change("9", state="RUNNING")}),
        urgent="9",
    )
    assert [act for act in made_up.acts if "hold" in act] == ["scontrol hold 7"]


def test_without_urgent_job_only_jobs_of_fleet_are_held(made_up, evict):
    made_up.set(
        {
            "1": {"nodes": 2, "comment": SAVES},
            "7": OF_HARVEST,
            "8": {"state": "PENDING", "start": "N/A"},
        }
    )
    evict(2, 0)
    assert [act for act in made_up.acts if "hold 7" in act or "hold 8" in act] == [
        "scontrol hold 7"
    ]


@pytest.mark.long
def test_log_names_owner_of_taken_node_and_waiting_time(made_up, evict):
    made_up.set(
        {
            "1": {"nodes": 2, "comment": SAVES, "hosts": "n1,n2"},
            "9": {**URGENT, "user": "you", "reason": "Resources"},
        }
    )
    take = {"state": "RUNNING", "user": "they", "start": "2026-11-22T12:00:00", "hosts": "n2"}
    done, notes, messages = evict(
        2, 10, Clock(then={60: lambda: made_up.change("5", **take)}), urgent="9"
    )
    assert not done
    assert "    1.0 min  job 5 of they took n2, freed by job 1" in messages
    assert (
        "    2.5 min  job 9 has not started yet (Slurm says Resources; job 5 of they has n2)"
        in messages
    )
    assert messages[-1] == (
        "job 9 has not started (Slurm says Resources; job 5 of they has n2); giving up 5 min after "
        "the deadline"
    )
    assert 10 <= [kind for kind, _ in notes].count("waits") <= 15


def test_nodes_taken_before_all_are_free_are_not_counted(made_up, evict):
    made_up.set(
        {
            "1": {"comment": SAVES, "hosts": "n1"},
            "2": {"comment": SAVES.replace("2", "3", 1), "hosts": "n2"},
        }
    )
    take = {"state": "RUNNING", "user": "they", "start": "2026-11-22T12:00:00", "hosts": "n1"}
    _, _, messages = evict(2, 10, Clock(then={60: lambda: made_up.change("5", **take)}))
    assert any(
        line.startswith("2 nodes were freed after") and line.endswith("but job 5 of they has n1")
        for line in messages
    )


def test_harvest_job_that_took_nodes_is_evicted_in_turn(made_up, evict):
    made_up.set({"1": {"nodes": 2, "comment": SAVES, "hosts": "n1,n2"}, "9": URGENT})
    slips_in = {"state": "RUNNING", "start": "2026-11-22T12:00:00", "hosts": "n1", "comment": SAVES}
    clock = Clock(
        then={
            60: lambda: made_up.change("5", **slips_in),
            240: lambda: made_up.change("9", state="RUNNING"),
        }
    )
    done, notes, messages = evict(2, 10, clock, urgent="9")
    assert done
    assert [note for note in notes if note[1] == "5"] == [
        ("taken", "5"),
        ("save", "5"),
        ("freed", "5"),
    ]
    assert [line for line in messages if "are free" in line] == [
        "2 nodes are free after 0.5 min",
        "2 nodes are free after 1.5 min",
    ]


def test_requeued_job_keeps_nodes_until_processes_end(made_up, evict):
    made_up.set({"1": {"comment": SAVES, "hosts": "n1", "obeys": False}, "9": URGENT})
    clock = Clock(
        then={
            30: lambda: made_up.change("1", state="COMPLETING", start="N/A"),
            90: lambda: made_up.change("1", state="PENDING", hosts=""),
            180: lambda: made_up.change("9", state="RUNNING", hosts="n1"),
        }
    )
    done, notes, messages = evict(1, 10, clock, urgent="9")
    assert done
    assert "taken" not in {kind for kind, _ in notes}
    assert "1 nodes are free after 1.5 min" in messages


def test_job_on_other_nodes_is_not_counted(made_up, evict):
    made_up.set({"2": {"nodes": 2, "hosts": "n1,n2"}})
    comes = {"state": "RUNNING", "start": "2026-11-22T12:00:00", "nodes": 2, "hosts": "n3,n4"}
    _, notes, _ = evict(
        2,
        10,
        Clock(then={60: lambda: made_up.change("5", **comes), 180: lambda: made_up.change("5")}),
    )
    assert ("stop", "2") in notes
    assert "5" not in {job for _, job in notes}


def test_submissions_are_delayed_during_eviction(made_up, evict, tmp_path, monkeypatch):
    monkeypatch.setattr(
        paused_submissions.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=os.getuid())
    )
    paths = RunPaths(tmp_path / "run")
    paths.jobs.mkdir(parents=True)
    made_up.set({"1": {"nodes": 2, "comment": SAVES, "script": str(paths.harvest_script(1))}})
    requests = []
    evict(2, 0, Clock(then={30: lambda: requests.append(delay_options(SYSTEMS["slurm"], [paths]))}))
    assert requests == [[f"--begin=now+{int(paused_submissions.LASTS_S)}"]]
    assert delay_options(SYSTEMS["slurm"], [paths]) == []


def test_delay_file_of_killed_eviction_expires(tmp_path):
    paths = RunPaths(tmp_path)
    paths.jobs.mkdir()
    paths.eviction_marker.touch()
    assert 0 < paused_submissions.pause_s(paths) <= paused_submissions.LASTS_S
    old = time.time() - paused_submissions.LASTS_S - 1
    os.utime(paths.eviction_marker, (old, old))
    assert paused_submissions.pause_s(paths) == 0


def test_operator_writes_only_to_folders_of_the_user(tmp_path, monkeypatch):
    paths, other_folder = RunPaths(tmp_path / "run"), tmp_path / "others"
    other_folder.mkdir()
    paths.root.mkdir()
    paths.jobs.symlink_to(other_folder)
    room = PausedRuns()
    monkeypatch.setattr(
        paused_submissions.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=os.getuid())
    )
    room.add_jobs([(str(paths.job_script), "me")])
    room.touch()
    assert list(other_folder.iterdir()) == []
    paths.jobs.unlink()
    paths.jobs.mkdir()
    monkeypatch.setattr(
        paused_submissions.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=os.getuid() + 1)
    )
    room.add_jobs([(str(paths.job_script), "you")])
    room.touch()
    assert list(paths.jobs.iterdir()) == []


# ---- the command ----

WORDS = ["evict", "--slurm", "--nodes", "4", "--deadline", "10", "--carry-out"]


def test_eviction_dry_run_lists_steps_and_does_nothing(made_up, capsys):
    made_up.set(JOBS)
    assert main(WORDS) == 0
    assert capsys.readouterr().out == (
        "3 running jobs of me may be stopped\n"
        "    0.0 min  plan: 4 nodes, 0.3 node-hours are lost\n"
        "    0.0 min  job 1 of me: saves, until minute 2.0 (signal B:USR2)\n"
        "    9.0 min  job 3 of me: is stopped: it loses least (requeue and hold for a while, or "
        "cancel if Slurm refuses)\n"
        "Nothing was done; add --yes to carry this out.\n"
    )
    assert made_up.acts == []


def test_yes_carries_out_and_logs(made_up, tmp_path, monkeypatch, capsys):
    made_up.set(JOBS)
    monkeypatch.setattr(eviction, "SNAPSHOT_S", (0.0, 0.01))
    monkeypatch.setattr(eviction, "KEEP_S", 0.0)
    words = ["evict", "--slurm", "--nodes", "4", "--deadline", "0", "--carry-out", "--yes"]
    assert main([*words, "--record", str(tmp_path / "record")]) == 0
    assert sorted(act.split()[1] for act in made_up.acts) == [
        "release",
        "release",
        "requeuehold",
        "requeuehold",
    ]
    assert "\n4 nodes are free after 0." in capsys.readouterr().out
    assert json.loads((tmp_path / "record").read_text().splitlines()[0])["whose"] == "me"


def test_operator_may_evict_jobs_of_all_users(made_up, monkeypatch, capsys):
    made_up.set(JOBS)
    monkeypatch.setattr(slurm_control, "is_operator", lambda: True)
    assert main([*WORDS[:3], "10", *WORDS[4:]]) == 0
    assert "4 running jobs of all users" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--slurm", "--nodes", "8", "--deadline", "10", "--carry-out"],
            "squeue, running jobs of me: 8 nodes cannot be freed: 3 jobs in all, on 6",
        ),
        (
            ["--jobs", "x.csv", "--nodes", "8", "--deadline", "10", "--carry-out"],
            "--carry-out needs --slurm and --nodes: it acts on jobs that run now",
        ),
        (["--slurm", "--nodes", "8", "--deadline", "10", "--yes"], "--yes needs --carry-out"),
        (
            ["--slurm", "--nodes", "8", "--deadline", "10", "--margin", "1min"],
            "--margin needs --carry-out",
        ),
        (
            ["--slurm", "--nodes", "8", "--deadline", "10", "--for", "9"],
            "--for needs --carry-out",
        ),
        (
            ["--slurm", "--nodes", "4", "--deadline", "10", "--carry-out", "--for", "2"],
            "--for 2: no waiting job has this id",
        ),
        (
            ["--slurm", "--nodes", "4", "--deadline", "10", "--carry-out", "--for", "99"],
            "--for 99: no waiting job has this id",
        ),
        (
            ["--slurm", "--nodes", "8", "--deadline", "10", "--carry-out", "--yes", "--json"],
            "use --json without --yes; --record is a file of JSON lines",
        ),
        (
            ["--slurm", "--nodes", "8", "--deadline", "-1", "--carry-out"],
            "--deadline is -1 min; it must be a number from 0 to 40320",
        ),
    ],
)
def test_carry_out_refuses_invalid_arguments(made_up, capsys, words, message):
    made_up.set(JOBS)
    assert main(["evict", *words]) == 2
    assert capsys.readouterr().err == f"fleet evict: {message}\n"
