"""Launches of searches with `prune: auto`."""

import pytest

from fleet.domain import events as ev
from fleet.search.pruning import make_pruner
from fleet.search.searcher import Verdict
from fleet.spec.search import Prune
from tests.mpi.conftest import kill
from tests.waiting import wait_until

EPOCHS, TRIALS = 9, 16


def search_spec(folder):
    return {
        "name": "auto",
        "output": str(folder / "run"),
        "data": {
            "source": "builtin:digits",
            "transforms": [{"decode": {"mode": "L"}}, {"scale": {}}],
            "validation": 0.5,
        },
        "models": [
            {
                "family": "softmax",
                "name": "net",
                "space": {"train.optimizer.learning_rate": {"low": 1e-4, "high": 1.0, "log": True}},
                "search": {"sampler": "random", "max_trials": TRIALS},
            }
        ],
        "prune": "auto",
        "train": {"batch": {"size": 128}, "stopping": {"max_epochs": EPOCHS}},
        "resources": {"engine": "numpy"},
    }


def check(run):
    """Check that the log of a run has the verdicts that follow from its epochs."""
    assert run.status == 0, run.output
    pruner = make_pruner(Prune(rule="auto"), EPOCHS, 0)
    scores, verdicts, ended, paused = {}, {}, set(), set()
    for event in run.events(ev.EpochEnded):
        name, record = event.network, event.record
        scores[name] = max(record.val_accuracy, scores.get(name, 0.0))
        verdict = pruner.add(name, record.epoch, scores[name], record.epoch == EPOCHS)
        verdicts.setdefault((name, record.epoch), verdict)  # a second time after the kill
        if record.epoch == EPOCHS:
            ended.add(name)
    for event in run.events(ev.NetworkVerdict):
        if event.verdict == Verdict.PAUSE:
            assert verdicts[event.network, event.epochs] is Verdict.PAUSE
            paused.add(event.network)
    assert len(scores) == TRIALS
    assert ended
    assert paused
    assert max(scores, key=scores.get) in ended


@pytest.mark.long
def test_networks_pause_by_the_measured_evidence(launch, tmp_path):
    check(launch(3, search_spec(tmp_path)))


@pytest.mark.long
def test_a_killed_search_resumes_with_the_same_verdicts(launch, tmp_path):
    content = search_spec(tmp_path)
    process = launch.start(3, content)
    events = tmp_path / "run/events.jsonl"
    wait_until(
        lambda: events.exists() and events.read_text().count('"event": "epoch"') >= 20, seconds=60
    )
    kill(process)
    process.communicate()
    check(launch(3, content))
