"""The state of a run by the events of one launch or several."""

from contextlib import suppress
from dataclasses import replace

import pytest

from fleet.domain import events as ev
from fleet.domain.network import EvaluationResult, NetworkStatus, Outcome
from fleet.domain.run import FINISHED_UNLOGGED, RunSearch, RunState, has_full_history
from fleet.storage.event_log import EventLog, RunTail
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record
from tests.fleet.logs import START


def apply_events(statuses, events):
    """Apply events, one a second; return the statuses that they change."""
    run = RunState()
    run.restore(statuses)
    for number, event in enumerate(events):
        run.apply(float(number), event)
    return {
        name: status
        for name, status in run.statuses.items()
        if status != statuses.get(name, NetworkStatus())
    }


def epochs(status):
    return [subject.epoch for subject in status.history]


STORY = (
    START,
    ev.NetworkLeased("a", 1, 0, 0),
    ev.EpochEnded("a", record(1)),
    ev.EpochEnded("a", record(2)),
    ev.NetworkLeased("b", 2, 0, 0),
    ev.EpochEnded("b", record(1)),
    ev.NetworkFailed("b", "loss is NaN"),
    ev.EpochEnded("a", record(3)),
    ev.NetworkFinished("a", "3 epochs", 3),
    ev.NetworkTested("a", EvaluationResult(0.5, 0.9, 10), 1.0),
    # by a launch that checked whether it had finished
    ev.NetworkLeased("a", 3, 3, 0),
)


def test_run_state_follows_the_newest_event():
    actual = apply_events({}, STORY)
    assert (epochs(actual["a"]), actual["a"].outcome) == ([1, 2, 3], Outcome("3 epochs"))
    assert actual["a"].tested == EvaluationResult(0.5, 0.9, 10)
    assert (epochs(actual["b"]), actual["b"].outcome) == (
        [1],
        Outcome("loss is NaN", is_failure=True),
    )
    # it is tried again
    assert apply_events(actual, [ev.GroupStarted("b", (0,), 0, 1)])["b"].outcome is None
    assert apply_events(actual, [ev.NetworkLeased("b", 4, 1, 5)]) == {}


def test_run_state_has_the_newest_time_left_until_the_end():
    run = RunState()
    run.apply(0.0, START)
    for t_s, high_s in ((5.0, 9.0), (7.0, 6.0)):
        run.apply(t_s, ev.TimeLeftEstimated(4.0, high_s, 2))
    assert run.launch.time_left == (7.0, ev.TimeLeftEstimated(4.0, 6.0, 2))
    assert not run.launch.has_ended
    run.apply(12.0, ev.LaunchEnded(0))
    assert run.launch.has_ended


def test_run_state_drops_epochs_that_were_not_saved():
    actual = apply_events({}, STORY[:4])
    assert epochs(apply_events(actual, [ev.NetworkLeased("a", 5, 1, 0, took_over=True)])["a"]) == [
        1
    ]
    assert epochs(apply_events(actual, [ev.NetworkRolledBack("a", "torn", 0, 0)])["a"]) == []
    pruned = apply_events(actual, [ev.NetworkVerdict("a", 2, "stop", ("asha",))])
    assert apply_events(pruned, [ev.NetworkRolledBack("a", "torn", 0, 0)])["a"].is_pruned
    assert (
        apply_events(pruned, [ev.NetworkRolledBack("a", "--fresh-network", 0, 0, afresh=True)])["a"]
        == NetworkStatus()
    )
    assert epochs(apply_events(actual, [ev.EpochEnded("a", record(2, loss=0.5))])["a"]) == [1, 2]


def test_run_state_has_networks_found_finished():
    actual = apply_events(
        {"a": NetworkStatus(outcome=Outcome("3 epochs"))}, [replace(START, finished=("a", "c"))]
    )
    assert actual == {"c": NetworkStatus(outcome=FINISHED_UNLOGGED)}


def test_run_state_counts_logged_epochs_of_all_launches():
    run, history = RunState(), tuple(map(record, (1, 2, 3)))
    assert run.find_unlogged("a", history) == history
    for number, log in enumerate("xy", start=1):
        run.apply(0.0, START, log)
        run.apply(1.0, ev.EpochEnded("a", record(number)), log)
    run.apply(2.0, ev.GroupFailed("a", epochs=0, position=0), "y")
    assert run.find_unlogged("a", history) == history[2:]
    assert run.find_unlogged("b", history) == history
    assert run.find_unlogged("a", [replace(history[0], stream_epoch=9)]) == (
        replace(history[0], stream_epoch=9),
    )


@pytest.mark.parametrize("verdict", ["stop", "pause"])
def test_verdict_of_launch_that_does_not_know_the_end_is_ignored(verdict):
    finished = NetworkStatus((record(1), record(2)), Outcome("2 epochs"))
    late = ev.NetworkVerdict("a", 1, verdict, ("asha",))
    assert apply_events({"a": finished}, [late]) == {}


@pytest.mark.parametrize(
    ("logged", "late", "expected"),
    [
        ((2, 3), record(1), [(1, 0), (2, 1), (3, 2)]),
        ((1, 3), record(2), [(1, 0), (2, 1), (3, 2)]),
        ((1, 2), record(3), [(1, 0), (2, 1), (3, 2)]),
        ((1, 2, 3), record(2), [(1, 0), (2, 1), (3, 2)]),
        ((1, 2, 3), record(2, stream_epoch=7), [(1, 0), (2, 7)]),
    ],
)
def test_epoch_that_a_later_launch_logs_takes_its_place(logged, late, expected):
    run = RunState()
    for epoch in logged:
        run.apply(1.0, ev.EpochEnded("a", record(epoch)))
    run.apply(2.0, START, "log")
    run.apply(3.0, ev.EpochEnded("a", late), "log")
    history = run.status_of("a").history
    assert [(logged.epoch, logged.stream_epoch) for logged in history] == expected


def test_run_search_of_a_new_searcher_has_no_old_calls():
    run = RunState()
    for event in (
        ev.SearcherStarted("net", {"seed": 1}),
        ev.EarlierRunRead("net", "runs/a", 1),
        ev.SearcherCalled("net", "ask", 0, answer={"width": 8}),
        ev.SearcherCalled("net", "tell", 0, value=0.5),
        ev.SearcherStarted("net", {"seed": 1, "max_trials": 9}, "max_trials"),
    ):
        run.apply(0.0, event)
    search = run.search("net")
    assert [call.call for call in search.calls] == ["ask", "tell"]
    assert (search.settings, list(search.earlier)) == ({"seed": 1, "max_trials": 9}, ["runs/a"])
    run.apply(0.0, ev.SearcherStarted("net", {"seed": 2}, "seed", is_another=True))
    assert (search.calls, search.earlier, search.read, len(search.asks)) == ([], {}, {"runs/a"}, 1)
    assert run.search("other") == RunSearch()


def test_has_full_history_notices_missing_epochs():
    assert has_full_history(NetworkStatus((record(1), record(2))))
    assert not has_full_history(apply_events({}, [ev.EpochEnded("a", record(2))])["a"])


@pytest.mark.parametrize("cut", range(len(STORY) + 1))
def test_run_state_can_be_restored_at_any_event(cut):
    first = apply_events({}, STORY[:cut])
    assert first | apply_events(first, STORY[cut:]) == apply_events({}, STORY)


def write(paths, date, *events):
    """Write the log of a launch with an event per second."""
    times = iter([0.0, *map(float, range(len(events) + 1))])
    log = EventLog(paths.events, clock=lambda: next(times))
    for event in (replace(START, date=date), *events):
        log.add(event)
    log.close()


def test_logs_keep_what_was_read_if_one_is_unreadable(tmp_path):
    first, second = RunPaths(tmp_path, "1"), RunPaths(tmp_path, "2")
    write(first, 1000.0)
    write(second, 1004.0)
    tail, messages = RunTail(first), []
    second.events.rename(tmp_path / "away")
    second.events.mkdir()  # what is no file cannot be read
    for _ in range(2):
        with suppress(OSError):
            messages += [dated.log for dated in tail.poll()]
    second.events.rmdir()
    (tmp_path / "away").rename(second.events)
    assert messages + [dated.log for dated in tail.poll()] == [first.events, second.events]


def test_logs_are_read_as_they_grow_in_whole_lines(tmp_path):
    first, second = RunPaths(tmp_path, "1"), RunPaths(tmp_path, "2")
    write(first, 1000.0, ev.EpochEnded("a", record(1)))
    reference, late = RunTail(first), RunTail(first, from_end=True)
    assert [subject.at for subject in reference.poll()] == [1000.0, 1001.0]
    assert (reference.poll(), late.poll()) == ([], [])
    with open(first.events, "a") as file:
        file.write('{"t_s": 7.0, "event": "final", "network": "a", ')
        file.flush()
        assert (reference.poll(), late.poll()) == ([], [])
        file.write('"reason": "1 epoch", "epochs": 1}\nnonsense\n')
    write(second, 1004.0, ev.EpochEnded("b", record(1)))
    expected = [
        (1007.0, ev.NetworkFinished("a", "1 epoch", 1)),
        (1004.0, replace(START, date=1004.0)),
        (1005.0, ev.EpochEnded("b", record(1))),
    ]
    assert [subject[:2] for subject in reference.poll()] == expected
    assert [subject[:2] for subject in late.poll()] == expected


def test_changes_tell_which_networks_are_new_to_a_reader():
    run = RunState()
    run.apply(0.0, START)
    run.apply(1.0, ev.EpochEnded("a", record(1)))
    version = run.changes.version
    run.apply(2.0, ev.GroupStarted("a", (0,), 0, 1))  # changes no status
    run.apply(3.0, ev.EpochEnded("b", record(1)))
    assert run.changes.since(version) == {"b"}
    assert run.changes.version_of("a") == version
    assert run.changes.since(run.changes.version) == set()


def test_number_of_parameters_counts_as_a_change_once():
    run = RunState()
    run.set_parameters("a", 7)
    version = run.changes.version
    run.set_parameters("a", 7)
    assert run.changes.version == version
    assert run.parameters == {"a": 7}
