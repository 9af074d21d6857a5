"""Carry out a plan in several snapshots of the machine, and plan again if it deviates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.eviction.execution import Eviction, dry_run
from scheduler.eviction.plan import RunningJob, plan_evictions

QUICK, SLOW = RunningJob("quick", 2, 9000, app_time=2), RunningJob("slow", 2, 9000, app_time=4)
CHEAP, DEAR = RunningJob("cheap", 2, 100), RunningJob("dear", 2, 50_000)


def look(eviction, minute, *jobs, ending=()):
    """The pending actions; some jobs may still hold their nodes after they became unresponsive."""
    nodes_held = {job.id: job.nodes for job in (*jobs, *ending)}
    return [
        (step.kind, step.job)
        for step in eviction.next_steps(minute, jobs, nodes_held)
        if step.kind != "plan"
    ]


def test_eviction_saves_in_turn_and_stops_losers_last():
    eviction = Eviction(6, 10, margin_min=1, saves_on_request={"quick", "slow"})
    assert look(eviction, 0, QUICK, SLOW, CHEAP, DEAR) == [("save", "quick")]
    assert look(eviction, 1, QUICK, SLOW, CHEAP, DEAR) == []
    assert look(eviction, 2, SLOW, CHEAP, DEAR) == [("freed", "quick"), ("save", "slow")]
    assert look(eviction, 6, CHEAP, DEAR) == [("freed", "slow")]
    assert look(eviction, 8.9, CHEAP, DEAR) == []
    assert look(eviction, 9, CHEAP, DEAR) == [("stop", "cheap")]
    assert look(eviction, 9.5, DEAR, ending=[CHEAP]) == []
    assert look(eviction, 9.8, DEAR) == [("freed", "cheap")]
    assert eviction.is_done


def test_eviction_stops_no_job_in_vain():
    eviction = Eviction(2, 10, margin_min=1)
    assert look(eviction, 0, CHEAP, DEAR) == []
    assert look(eviction, 5, CHEAP) == [("ended", "dear")]
    assert eviction.is_done


def test_eviction_counts_jobs_that_end_by_themselves():
    eviction = Eviction(4, 10, margin_min=1, saves_on_request={"slow"})
    assert look(eviction, 0, SLOW, CHEAP, DEAR) == [("save", "slow")]
    assert look(eviction, 1, SLOW, CHEAP) == [("ended", "dear"), ("enough", "")]
    assert look(eviction, 9, CHEAP, ending=[SLOW]) == [("deaf", "slow"), ("stop", "cheap")]


def test_eviction_stops_a_job_that_did_not_save_in_time():
    eviction = Eviction(2, 10, margin_min=1, saves_on_request={"quick"})
    assert look(eviction, 0, QUICK, DEAR) == [("save", "quick")]
    # Stopping it is still cheaper at the end.
    assert look(eviction, 2, QUICK, DEAR) == [("deaf", "quick")]
    assert look(eviction, 9, QUICK, DEAR) == [("stop", "quick")]


def test_eviction_may_save_another_job_instead():
    eviction = Eviction(2, 10, margin_min=1, saves_on_request={"quick", "slow"})
    assert look(eviction, 0, QUICK, SLOW) == [("save", "quick")]
    assert look(eviction, 2, QUICK, SLOW) == [("deaf", "quick"), ("save", "slow")]


def test_eviction_stops_a_job_after_it_saved():
    eviction = Eviction(2, 10, margin_min=1)
    assert look(eviction, 0, QUICK, DEAR) == [("save", "quick")]
    assert look(eviction, 2, QUICK, DEAR) == [("stop", "quick")]


def test_eviction_stops_a_remaining_job_again():
    eviction = Eviction(2, 0, margin_min=0)
    assert look(eviction, 0, CHEAP) == [("stop", "cheap")]
    assert look(eviction, 1, CHEAP) == []
    assert look(eviction, 2, CHEAP) == [("stop", "cheap")]


def test_eviction_replans_a_failed_action():
    eviction = Eviction(2, 0, margin_min=0)
    assert look(eviction, 0, CHEAP, DEAR) == [("stop", "cheap")]
    eviction.cancel_action("cheap")  # no longer a candidate, for example because its user changed
    assert look(eviction, 0.1, DEAR, ending=[CHEAP]) == [("stop", "dear")]


def test_eviction_reports_a_shortage_once_and_stops_none():
    eviction = Eviction(4, 10, margin_min=1, saves_on_request={"slow"})
    assert look(eviction, 0, SLOW, CHEAP) == [("save", "slow")]
    assert look(eviction, 1, SLOW, ending=[CHEAP]) == [("short", "")]
    assert look(eviction, 9, ending=[SLOW, CHEAP]) == [("deaf", "slow")]


def test_more_nodes_than_all_have_are_refused_at_first():
    with pytest.raises(InputError, match="3 nodes cannot be freed: 1 job in all, on 2"):
        look(Eviction(3, 10, margin_min=1), 0, CHEAP)


times = st.one_of(st.none(), st.integers(1, 40).map(lambda tenths: tenths / 10))
machines = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), times), min_size=1, max_size=6)


@given(machines, st.data())
def test_eviction_frees_nodes_in_time_if_all_obey(machine, data):
    jobs = [
        RunningJob(str(number), nodes, loss, time)
        for number, (nodes, loss, time) in enumerate(machine)
    ]
    nodes = data.draw(st.integers(0, sum(job.nodes for job in jobs)))
    deadline = data.draw(st.integers(0, 10))
    eviction = Eviction(nodes, deadline, margin_min=0, saves_on_request={job.id for job in jobs})
    steps = dry_run(jobs, eviction)
    assert all(minute <= deadline + 1e-6 for minute, _ in steps)
    killed = sum(
        job.loss for job in jobs if ("stop", job.id) in {(step.kind, step.job) for _, step in steps}
    )
    assert eviction.freed >= nodes
    assert killed == plan_evictions(jobs, nodes, deadline, deadline or 1)[-1].loss


def test_eviction_replans_when_a_job_saves_early():
    eviction = Eviction(4, 6, margin_min=1, saves_on_request={"quick", "slow"})
    # Cheap would be stopped: 2 + 4 > 5 min.
    assert look(eviction, 0, QUICK, SLOW, CHEAP) == [("save", "quick")]
    assert eviction.actions == {"cheap": "kill"}
    assert look(eviction, 0.5, SLOW, CHEAP) == [("freed", "quick"), ("save", "slow")]
    assert look(eviction, 4.5, CHEAP) == [("freed", "slow")]
    assert eviction.is_done


def test_eviction_evicts_a_job_that_took_free_nodes():
    eviction = Eviction(2, 10, margin_min=1, saves_on_request={"quick"})
    assert look(eviction, 0, QUICK) == [("save", "quick")]
    assert look(eviction, 2) == [("freed", "quick")]
    eviction.add_job("slow", 2, saves_on_request=True)
    assert not eviction.is_done
    assert look(eviction, 3, SLOW) == [("save", "slow")]
    assert look(eviction, 5) == [("freed", "slow")]
    assert eviction.is_done
