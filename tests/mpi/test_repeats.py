"""Repeats in real launches: networks of one configuration are judged together, also after kills."""

import time
from functools import partial

import pytest

from fleet.api import launch, read_results
from fleet.domain.events import NetworkVerdict, SearcherCalled
from fleet.domain.events.search import REPEATS
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.examples import long_but_first
from tests.mpi.conftest import Launcher, kill, spec
from tests.waiting import wait_until

RATE = "train.optimizer.learning_rate"
MODEL = {
    "family": "softmax",
    "name": "net",
    "space": {RATE: {"low": 0.001, "high": 0.5, "log": True}},
    "search": {"max_trials": 4, "repeats": 3},
}


def repeated_spec(tmp_path, rule="asha", epochs=4, **parts):
    return spec(
        tmp_path,
        [MODEL],
        train={"stopping": {"max_epochs": epochs}},
        prune={"rule": rule, "min_epochs": 1, "factor": 2} if rule == "asha" else {"rule": rule},
        **parts,
    )


def epochs_by_trial(run):
    """Return the numbers of epochs of the repeats of each trial."""
    epochs = {}
    for row in read_results(run):
        if not row.is_mean:
            epochs.setdefault(row.name.partition("-repeat")[0], []).append(row.epochs)
    return epochs


def check(run, trials=4):
    epochs = epochs_by_trial(run)
    assert sorted(epochs) == [f"net-{number}" for number in range(trials)]
    assert all(len(counts) == 3 and len(set(counts)) == 1 for counts in epochs.values()), epochs
    calls = events_of(RunPaths(run).events, SearcherCalled)
    tells = [call.number for call in calls if call.call == "tell"]
    assert sorted(tells) == list(range(trials))
    reports = [(call.number, call.epoch) for call in calls if call.call == "report"]
    assert len(reports) == len(set(reports)) == sum(counts[0] for counts in epochs.values())


@pytest.mark.parametrize("ranks", long_but_first(3, 1))
def test_repeats_are_pruned_together_whatever_the_ranks(tmp_path, ranks):
    outcome = Launcher(tmp_path)(ranks, repeated_spec(tmp_path))
    assert outcome.status == 0, outcome.output
    check(tmp_path / "run")
    verdicts = events_of(RunPaths(tmp_path / "run").events, NetworkVerdict)
    assert any("asha" in verdict.by for verdict in verdicts)
    if ranks == 1:  # others wait without a device
        assert any(verdict.by == (REPEATS,) for verdict in verdicts)


def has_lines(events, count, process):
    """Return True once a log has more lines than ``count``, or the launch has ended."""
    if process.poll() is not None:
        return True
    return events.exists() and len(events.read_bytes().splitlines()) > count


@pytest.mark.long
def test_killed_launches_of_repeats_go_on(tmp_path):
    launcher = Launcher(tmp_path)
    content = repeated_spec(tmp_path, epochs=30)
    events = RunPaths(tmp_path / "run").events
    for size in (40, 120):
        process = launcher.start(2, content)
        wait_until(partial(has_lines, events, size, process))
        kill(process)
        process.communicate()
        time.sleep(0.1)
    outcome = launcher(2, content)
    assert outcome.status == 0, outcome.output
    assert "differs" not in outcome.output
    check(tmp_path / "run")


@pytest.mark.long
def test_repeats_of_plain_entries_can_be_added_to_a_launch(tmp_path):
    launcher = Launcher(tmp_path)
    content = spec(tmp_path, [], keep_open="2s", train={"stopping": {"max_epochs": 2}})
    with launch(
        launcher.write(content), 2, "--plain", environment=launcher.environment({})
    ) as running:
        names = running.add_all({"family": "softmax", "grid": {RATE: [0.1, 0.2]}, "repeats": 2})
    assert names == [f"softmax-{number}-repeat{n}" for number in range(2) for n in range(2)]
    means = [row.name for row in running.results() if row.is_mean]
    assert sorted(means) == ["softmax-0", "softmax-1"]
