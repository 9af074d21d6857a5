"""A plan of evictions carried out on a made-up Slurm."""

import json

import pytest

from fleet.__main__ import main
from fleet.errors import UserError
from fleet.jobs import evicting
from fleet.jobs.evicting import Diary, Machine, carry_out
from fleet.jobs.slurm_running import Site, running_jobs
from launch import slurm_acts
from scheduler.eviction.carrying import Eviction
from tests.launch.conftest import made_up

__all__ = ["made_up"]
SAVES = "fleet:signal=B:USR2,app_time=2"
JOBS = {"1": {"nodes": 2, "comment": SAVES}, "2": {"nodes": 2}, "3": {"nodes": 2, "elapsed": "10:00"},
        "4": {"nodes": 4, "user": "you"}}


@pytest.fixture(autouse=True)
def user(monkeypatch):
    """An ordinary user, who looks every half minute."""
    monkeypatch.setattr(evicting, "LOOK_S", (30.0, 30.0))
    monkeypatch.setattr(slurm_acts, "is_operator", lambda: False)
    monkeypatch.setattr(slurm_acts, "myself", lambda: "me")


class Clock:
    """Time that passes while one sleeps; ``then`` happens at minutes."""

    def __init__(self, then=()):
        self.now, self.then = 0.0, dict(then)

    def sleep(self, seconds):
        self.now += seconds
        for minute in [minute for minute in self.then if self.now >= 60 * minute]:
            self.then.pop(minute)()


@pytest.fixture
def evict(tmp_path):
    """Carry out; whether the nodes are free, what was noted, and what was said."""
    def run(nodes, deadline, clock=None, user="me"):
        clock = clock or Clock()
        machine = Machine(None, user, lambda jobs: running_jobs(jobs, Site(), None, 0.0))
        first = machine.look()
        eviction = Eviction(nodes, deadline, min(1.0, deadline / 10), first.signals)
        said = []
        done = carry_out(eviction, first, machine, Diary(tmp_path / "record", said.append), clock.sleep,
                         lambda: clock.now)
        notes = [json.loads(line) for line in (tmp_path / "record").read_text().splitlines()]
        return done, [(note["what"], note.get("job", "")) for note in notes], said
    return run


def test_one_saves_upon_its_signal_and_one_is_requeued_and_others_jobs_are_left_alone(made_up, evict):
    made_up.set(JOBS)
    done, notes, _ = evict(4, 10)
    assert done
    assert made_up.acts == ["scancel --batch --signal=USR2 1", "scontrol requeue 3"]
    assert notes == [("plan", ""), ("save", "1"), ("freed", "1"), ("stop", "3"), ("freed", "3"), ("end", "")]
    assert made_up.state()["jobs"].keys() == {"2", "3", "4"}


def test_a_job_that_does_not_obey_is_stopped_and_one_that_cannot_be_requeued_is_cancelled(made_up, evict):
    made_up.set({"1": {"nodes": 2, "comment": SAVES, "obeys": False, "requeues": False}})
    done, notes, _ = evict(2, 10)
    assert done
    assert made_up.acts == ["scancel --batch --signal=USR2 1", "scontrol requeue 1", "scancel 1"]
    assert [what for what, _ in notes] == ["plan", "save", "deaf", "plan", "stop", "freed", "end"]


def test_when_a_job_ends_by_itself_none_is_stopped_for_nothing(made_up, evict):
    made_up.set({"2": {"nodes": 2}, "3": {"nodes": 2, "elapsed": "10:00"}})
    done, notes, _ = evict(2, 10, Clock({3: lambda: made_up.change("2")}))
    assert (done, notes) == (True, [("plan", ""), ("ended", "2"), ("end", "")])
    assert made_up.acts == []


@pytest.mark.parametrize(("changes", "why"), [
    ({"user": "you"}, "it is a job of you"), ({"start": "2026-11-22T11:00:00"}, "it has been started anew"),
    ({"state": "COMPLETING"}, "it is COMPLETING by now")])
def test_a_job_is_looked_at_once_more_right_before_it_is_touched(made_up, evict, monkeypatch, changes, why):
    made_up.set({"2": {"nodes": 2}, "3": {"nodes": 2, "elapsed": "10:00"}})
    is_as_it_was = Machine.is_as_it_was

    def change_first(machine, job):
        if job == "3":
            made_up.change("3", **changes)
        return is_as_it_was(machine, job)

    monkeypatch.setattr(Machine, "is_as_it_was", change_first)
    done, notes, said = evict(2, 10, Clock({9.5: lambda: made_up.change("2")}))
    assert done
    assert ("refused", "3") in notes
    assert any(why in line for line in said)
    assert not any(act.endswith(" 3") for act in made_up.acts)


def test_a_slurm_that_is_silent_for_a_while_is_asked_again(made_up, evict):
    made_up.set({"3": {"nodes": 2}})
    state = made_up.state()
    silent = Clock({2: lambda: made_up.set(state["jobs"], says={"squeue": "Unable to contact slurm controller"}),
                    5: lambda: made_up.set(state["jobs"])})
    done, notes, _ = evict(2, 10, silent)
    assert done
    assert notes == [("plan", ""), ("silent", ""), ("stop", "3"), ("freed", "3"), ("end", "")]


def test_nodes_that_are_not_freed_are_given_up_some_minutes_after_the_deadline(made_up, evict, monkeypatch):
    made_up.set({"3": {"nodes": 2}})
    monkeypatch.setattr(slurm_acts, "put_back", lambda job: "requeued")  # but it goes on
    done, notes, said = evict(2, 10)
    assert not done
    assert [what for what, _ in notes].count("stop") == 4  # it is stopped again every two minutes
    assert said[-1] == "0 of 2 nodes are free; it is given up 5 min after the deadline"


def test_a_record_that_cannot_be_written_ends_it_before_anything_is_done(made_up, tmp_path):
    with pytest.raises(UserError, match="no/record: No such file or directory; --record names another file"):
        Diary(tmp_path / "no/record", print).note("begin", "")


# ---- the command ----

WORDS = ["evict", "--slurm", "--nodes", "4", "--deadline", "10", "--carry-out"]


def test_a_dry_run_says_what_would_be_done_to_whose_jobs_and_does_nothing(made_up, capsys):
    made_up.set(JOBS)
    assert main(WORDS) == 0
    assert capsys.readouterr().out == (
        "3 running jobs of me may be asked to make room\n"
        "    0.0 min  plan: 4 nodes, 0.3 node-hours are lost\n"
        "    0.0 min  job 1 of me: saves, until minute 2.0 (signal B:USR2)\n"
        "    9.0 min  job 3 of me: is stopped: it loses least (requeue, or cancel where Slurm refuses that)\n"
        "Nothing was done: --yes carries this out.\n")
    assert made_up.acts == []


def test_with_yes_it_is_done_and_noted(made_up, tmp_path, monkeypatch, capsys):
    made_up.set(JOBS)
    monkeypatch.setattr(evicting, "LOOK_S", (0.0, 0.01))
    words = ["evict", "--slurm", "--nodes", "4", "--deadline", "0", "--carry-out", "--yes"]
    assert main([*words, "--record", str(tmp_path / "record")]) == 0
    assert made_up.acts == ["scontrol requeue 2", "scontrol requeue 3"] or len(made_up.acts) == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 nodes are free after 0.")
    assert json.loads((tmp_path / "record").read_text().splitlines()[0])["whose"] == "me"


def test_an_operator_may_ask_all(made_up, monkeypatch, capsys):
    made_up.set(JOBS)
    monkeypatch.setattr(slurm_acts, "is_operator", lambda: True)
    assert main([*WORDS[:3], "10", *WORDS[4:]]) == 0
    assert "4 running jobs of all users" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "message"), [
    (["--slurm", "--nodes", "8", "--deadline", "10", "--carry-out"],
     "squeue, running jobs of me: 8 nodes cannot be freed: 3 jobs in all, on 6"),
    (["--jobs", "x.csv", "--nodes", "8", "--deadline", "10", "--carry-out"],
     "--carry-out goes with --slurm and --nodes: it acts on jobs that run now"),
    (["--slurm", "--nodes", "8", "--deadline", "10", "--yes"], "--yes goes with --carry-out"),
    (["--slurm", "--nodes", "8", "--deadline", "10", "--margin", "1min"], "--margin goes with --carry-out"),
    (["--slurm", "--nodes", "8", "--deadline", "10", "--carry-out", "--json"],
     "--carry-out goes with neither --plot nor --json; its record is a file of JSON lines"),
    (["--slurm", "--nodes", "8", "--deadline", "-1", "--carry-out"],
     "--deadline is -1 min; it must be a number from 0 to 40320"),
])
def test_what_cannot_be_carried_out_is_refused(made_up, capsys, words, message):
    made_up.set(JOBS)
    assert main(["evict", *words]) == 2
    assert capsys.readouterr().err == f"fleet evict: {message}\n"
