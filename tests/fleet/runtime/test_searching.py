"""Whole runs with a search on the numpy engine, including launches that are killed."""

import gc
import json
import shutil
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fleet.__main__ import main
from fleet.domain import events as ev
from fleet.domain.network import NetworkStatus, TrainingState
from fleet.errors import ExitStatus, SpecError
from fleet.runtime.admission import Admission
from fleet.runtime.rate_memory import RateMemory
from fleet.runtime.replay import largest_difference
from fleet.search.decisions import AddNetwork
from fleet.storage.checkpoint import find_newest, read_history, read_state, write_state
from fleet.storage.event_log import events_of, read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status, read_results
from scheduler.ensemble.policies import POLICIES
from tests.examples import long_but_first
from tests.fleet.histories import record, results_of
from tests.fleet.runtime.runs import launch, prepare, write
from tests.refusals import refused

LEARNING_RATE = "train.optimizer.learning_rate"
ENTRY = {
    "family": "softmax",
    "name": "net",
    "space": {LEARNING_RATE: {"low": 1e-3, "high": 0.1, "log": True}},
}

pytestmark = pytest.mark.usefixtures("quick")


class Run:
    """A run of one search, on rank 0 and two trainers.

    Args:
        search: the settings of its search.
        parts: further parts of the spec.
    """

    def __init__(self, folder, search, epochs=4, models=None, **parts):
        self.folder, self.seed = folder, 0
        models = [{**ENTRY, "search": search}] if models is None else models
        data = {
            "source": "tests.sources:numbered",
            "path": "24",
            "transforms": ["decode", {"scale": {"mean": 0.5, "std": 0.5}}],
        }
        content = {
            "data": data,
            "schedule": {"policy": "adaptive"},
            "train": {"batch": {"size": 8}, "stopping": {"max_epochs": epochs}},
            **parts,
        }
        self.path, self.paths = write(folder, models, **content), RunPaths(folder / "run")

    def launch(self, turns=None):
        """Run a launch; return rank 0's status, or None if it was killed after ``turns``."""
        self.seed += 1
        with warnings.catch_warnings(action="ignore"):
            status, _ = launch(self.path, 3, seed=self.seed, turns=turns)
            gc.collect()  # killed ranks leave open files
        return status

    def rows(self):
        return {row.name: row for row in read_results(self.folder / "run")}

    def of(self, kind):
        return events_of(self.paths.events, kind)


def test_search_trains_trials_one_after_another(tmp_path):
    run = Run(tmp_path, {"max_trials": 5, "max_concurrent": 3})
    assert run.launch() is ExitStatus.OK
    rows = run.rows()
    assert sorted(rows) == [f"net-{number}" for number in range(5)]
    assert {(row.status, row.epochs) for row in rows.values()} == {(Status.FINISHED, 4)}
    assert len({row.drawn[LEARNING_RATE] for row in rows.values()}) == 5
    assert Counter(event.call for event in run.of(ev.SearcherCalled)) == {
        "ask": 5,
        "report": 20,
        "tell": 5,
    }
    lines = [json.loads(line) for line in run.paths.events.read_text().splitlines()]
    ask = next(line for line in lines if line["event"] == "search")
    assert ask == {
        "t_s": ask["t_s"],
        "event": "search",
        "entry": "net",
        "call": "ask",
        "number": 0,
        "answer": rows["net-0"].drawn,
        "network": "net-0",
    }


def test_search_estimates_of_time_left_count_expected_trials(tmp_path):
    run = Run(tmp_path, {"max_trials": 20, "max_concurrent": 2}, epochs=3)
    assert run.launch() is ExitStatus.OK
    assert 10 < run.of(ev.TimeLeftEstimated)[0].networks <= 20


@pytest.mark.long_but_first
@pytest.mark.parametrize("mode", ["pause", "stop"])
def test_search_with_asha_prunes_and_finishes_the_best(tmp_path, mode):
    run = Run(
        tmp_path,
        {"max_trials": 9},
        epochs=9,
        prune={"rule": "asha", "min_epochs": 1, "factor": 3, "on_fail": mode},
    )
    assert run.launch() is ExitStatus.OK
    statuses = Counter(row.status for row in run.rows().values())
    assert set(statuses) == {Status.PRUNED, Status.FINISHED}
    assert statuses[Status.FINISHED] < 5
    assert all(row.epochs in (1, 3) for row in run.rows().values() if row.status is Status.PRUNED)


def test_search_adaptive_knows_distance_to_next_rung(tmp_path, monkeypatch):
    adaptive, received = POLICIES["adaptive"], set()

    def recording(rates, progress, cluster, options):
        # estimates of the time left have no distances
        remaining = set(rates.names) - progress.finished if progress.ahead else ()
        received.update(
            (progress.epochs_done.get(name, 0), progress.ahead[name]) for name in remaining
        )
        return adaptive.decide(rates, progress, cluster, options)

    monkeypatch.setitem(POLICIES, "adaptive", replace(adaptive, decide=recording))
    run = Run(
        tmp_path, {"max_trials": 6}, epochs=8, prune={"rule": "asha", "min_epochs": 2, "factor": 3}
    )
    assert run.launch() is ExitStatus.OK
    assert (
        {(0, 2), (2, 4), (6, 2)}
        <= received
        <= {(0, 2), (1, 1), (2, 4), (3, 3), (4, 2), (5, 1), (6, 2), (7, 1)}
    )


def test_search_starts_no_trial_while_promoted_ones_fit(tmp_path):
    (tmp_path / "rates.json").write_text(
        json.dumps(
            {
                "samples_per_epoch": 24,
                "gpus_per_node": 2,
                "models": [{"name": f"net-{number}", "rates": [10.0, 19.0]} for number in range(6)],
            }
        )
    )
    run = Run(
        tmp_path,
        {},
        epochs=4,
        models=[{**ENTRY, "name": "net", "count": 6}],
        prune={"rule": "asha", "min_epochs": 1, "factor": 2, "on_fail": "stop"},
        train={"batch": {"size": 8}, "stopping": {"max_epochs": 4, "monitor": "val_loss"}},
        schedule={"policy": "adaptive", "rates": str(tmp_path / "rates.json")},
    )
    assert run.launch() is ExitStatus.OK
    started, promised, survivors, wide = set(), set(), set(), 0
    for _, event in read_events(run.paths.events):
        if isinstance(event, ev.PlanChanged) and not survivors:
            promised = {member.name for member in event.members}
        match event:
            case ev.GroupStarted(network=name):
                assert name not in started
                # or planned before there were survivors, when its devices were not free yet
                assert not survivors or name in promised
                started.add(name)
            case ev.EpochEnded(network=name):
                survivors.add(name)
            # the rule never pauses
            case ev.NetworkVerdict(network=name) | ev.NetworkFinished(network=name):
                survivors.discard(name)
            case ev.PlanChanged(members=[ev.PlannedGroup(name=name, gpus=2)]):
                wide += name in survivors and len(started) < 6
    assert len(started) == 6
    assert wide


CAREFUL = {"sampler": "tests.fleet.search.searchers:Careful", "max_trials": 8}
ASHA = {"rule": "asha", "min_epochs": 1, "factor": 2}


MEDIAN = {"rule": "median", "min_trials": 2}


@pytest.mark.long
@pytest.mark.parametrize(
    ("search", "prune"),
    [
        (CAREFUL, ASHA),
        (CAREFUL, {}),
        ({"max_trials": 8}, {**ASHA, "synchronous": True}),
        (CAREFUL, MEDIAN),
    ],
)
def test_search_killed_repeatedly_loses_nothing(tmp_path, search, prune):
    run = Run(tmp_path, search, prune=prune)
    launches = [run.launch(turns) for turns in (150, 300, 80, 400, 200, 250, None)]
    assert launches[-1] is ExitStatus.OK
    rows, calls = run.rows(), run.of(ev.SearcherCalled)
    assert sorted(rows) == sorted(f"net-{number}" for number in range(8))
    assert {row.status for row in rows.values()} <= {Status.FINISHED, Status.PRUNED}
    assert run.of(ev.ReplayDiffered) == run.of(ev.SearcherFailed) == []
    messages = Counter(
        (call.call, call.number, call.epoch) for call in calls if call.answer is not None
    )
    assert {count for key, count in messages.items() if key[0] in ("ask", "report")} == {1}
    assert Counter(call.number for call in calls if call.call == "tell") == dict.fromkeys(
        range(8), 1
    )
    assert [added.network for added in run.of(ev.NetworkAdded)] == [
        f"net-{number}" for number in range(8)
    ]
    for name, row in rows.items():
        output = [call for call in calls if call.network == name and call.call == "tell"]
        assert [call.outcome for call in output] == [row.status]
        assert row.drawn == next(
            call.answer for call in calls if call.network == name and call.call == "ask"
        )


def one_by_one(folder, asks):
    """Return a run whose searcher proposes these networks, one after another."""
    return Run(
        folder,
        {
            "sampler": "tests.fleet.search.searchers:Scripted",
            "max_trials": len(asks),
            "max_concurrent": 1,
            "options": {"asks": asks, "reports": {}},
        },
    )


def test_search_child_inherits_weights_and_is_replayed(tmp_path):
    asks = [
        {LEARNING_RATE: 0.01},
        {LEARNING_RATE: 0.02, "parent": 0},
        {LEARNING_RATE: 0.03, "parent": 1},
    ]
    run = one_by_one(tmp_path, asks)
    assert run.launch() is ExitStatus.OK
    added = {event.network: event for event in run.of(ev.NetworkAdded)}
    assert {name: event.parent for name, event in added.items()} == {
        "net-0": "",
        "net-1": "net-0",
        "net-2": "net-1",
    }
    rows = run.rows()
    assert [(rows[name].parent, rows[name].parent_epoch) for name in sorted(rows)] == [
        ("", 0),
        ("net-0", 4),
        ("net-1", 4),
    ]
    assert {row.epochs for row in rows.values()} == {4}
    assert rows["net-2"].loss < rows["net-1"].loss < rows["net-0"].loss
    for name in ("net-1", "net-2"):
        first, last = (
            read_state(run.paths.first(name)),
            read_state(run.paths.last(added[name].parent)),
        )
        assert first.epoch == added[name].parent_epoch == last.epoch
        assert (first.arrays["weights"] == last.arrays["weights"]).all()
    _, prepared = launch(run.path, 1, replay=str(tmp_path / "run"), only="net-2")
    replayed = [
        find_newest(paths, "net-2", with_arrays=False).history
        for paths in (run.paths, prepared.paths)
    ]
    assert largest_difference(*replayed) < 1e-9
    for paths in (run.paths, prepared.paths):
        report = read_history(paths.history("net-2"))
        assert [(row.parent, row.parent_epoch) for row in report] == [
            ("net-1", 4),
            ("", 0),
            ("", 0),
            ("", 0),
        ]
    assert "parent" not in run.paths.history("net-0").read_text()


def test_child_without_its_parents_weights_fails(tmp_path):
    asks = [{LEARNING_RATE: 0.01}, {LEARNING_RATE: 0.02, "parent": 0}]
    run = one_by_one(tmp_path, asks)
    assert run.launch() is ExitStatus.OK
    shutil.rmtree(run.paths.models / "net-1")
    assert run.launch() is ExitStatus.NETWORK_FAILED
    assert "it had the weights of net-0, epoch 4" in run.rows()["net-1"].reason


@pytest.fixture
def admission(tmp_path):
    """Return the admission of a run before its first network, and its results."""
    prepared = prepare(
        Run(tmp_path, {"sampler": "random", "max_trials": 2, "max_concurrent": 1}).path,
        (0, 0, 0),
        plain=True,
    )
    results = results_of(prepared.spec, prepared.paths)
    return Admission(prepared, results, RateMemory(prepared, [])), results


def test_search_child_waits_for_parents_checkpoint(admission, tmp_path):
    (admission, results), paths = admission, RunPaths(tmp_path / "run")
    admission.request(AddNetwork("net-0", "net", 0, {LEARNING_RATE: 0.01}))
    [parent] = admission.pop_ready((), 0.0)
    history = (record(1), record(2))
    results.run.set_status("net-0", NetworkStatus(history))
    admission.request(AddNetwork("net-1", "net", 1, {LEARNING_RATE: 0.02}, parent="net-0"))
    saved = TrainingState(
        {"weights": np.zeros(3)}, "", history[:1], architecture=parent.network.architecture.key
    )
    write_state(paths.last("net-0"), saved)
    assert admission.pop_ready({"net-0"}, 1.0) == []
    write_state(paths.last("net-0"), replace(saved, history=history))
    [child] = admission.pop_ready({"net-0"}, 2.0)
    assert (child.network.parent, child.network.parent_epoch) == ("net-0", 2)
    assert read_state(paths.first("net-1")).epoch == 2


def test_search_child_does_not_wait_for_a_stopped_parent(admission):
    admission, results = admission
    results.run.set_status("net-0", NetworkStatus((record(1),)))
    admission.request(AddNetwork("net-1", "net", 1, {LEARNING_RATE: 0.02}, parent="net-0"))
    assert admission.pop_ready({"net-0"}, 0.0) == []
    [child] = admission.pop_ready((), 1.0)
    assert "net-0 has no checkpoint" in child.added.wrong


def test_search_child_with_unknown_parent_fails(tmp_path):
    asks = [{LEARNING_RATE: 0.01}, {LEARNING_RATE: 0.02, "parent": 7}]
    run = one_by_one(tmp_path, asks)
    assert run.launch() is ExitStatus.NETWORK_FAILED
    assert run.rows()["net-1"].status is Status.FAILED
    assert "7 is no parent" in run.rows()["net-1"].reason


def test_search_with_a_refused_trial_resumes(tmp_path):
    search = {
        "sampler": "tests.fleet.search.searchers:Scripted",
        "max_trials": 2,
        "options": {"asks": [{LEARNING_RATE: 0.01}, {LEARNING_RATE: 0.01}], "reports": {}},
    }
    # Outside the entry, batches have 128 samples, which are more than there are.
    train = {"batch": {"size": 8}, "stopping": {"max_epochs": 1}}
    run = Run(tmp_path, search, models=[{**ENTRY, "search": search, "train": train}], train={})
    assert run.launch() is ExitStatus.NETWORK_FAILED
    assert "the same values as number 0" in run.rows()["net-1"].reason
    assert run.launch() is ExitStatus.NETWORK_FAILED


@pytest.mark.parametrize(
    ("searcher", "reason"),
    long_but_first(
        ("Raising", "failed: RuntimeError: out of ideas"),
        ("Hanging", "took longer than 3.0 s (search.timeout)"),
    ),
)
def test_search_failed_searcher_keeps_its_trials(tmp_path, searcher, reason):
    run = Run(
        tmp_path,
        {
            "sampler": f"tests.fleet.search.searchers:{searcher}",
            "max_trials": 5,
            "max_concurrent": 2,
            "timeout": "3s",
        },
    )
    assert run.launch() is ExitStatus.NETWORK_FAILED
    assert {name: row.status for name, row in run.rows().items()} == {
        "net-0": Status.FINISHED,
        "net-1": Status.FINISHED,
    }
    [failed] = run.of(ev.SearcherFailed)
    assert f"Ask(number=2) {reason}" in failed.reason


def test_search_hanging_constructor_is_a_spec_mistake(tmp_path):
    run = Run(
        tmp_path,
        {"sampler": "tests.fleet.search.searchers:Unmade", "max_trials": 5, "timeout": 0.2},
    )
    with refused(SpecError, "models[0].search.sampler", "Unmade", "0.2 s"):
        run.launch()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("exchanges", "batch", "reason"),
    [
        ([], [4, 16], "comm_s has no entry for 2 or more GPUs"),
        (
            [{"params_mb": 1.0, "gpus": 2, "seconds": 0.1}],
            [16, 24],
            "a batch of 16 does not fit on 2 GPUs",
        ),
    ],
)
def test_search_trial_without_batch_rates_fails(tmp_path, exchanges, batch, reason):
    rates = {
        "samples_per_epoch": 24,
        "gpus_per_node": 2,
        "comm_s": exchanges,
        "models": [
            {
                "name": "net",
                "rates": [10.0],
                "params_mb": 1.0,
                "step_s": [{"batch": 2, "seconds": 0.1}, {"batch": 4, "seconds": 0.15}],
            }
        ],
    }
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    run = Run(
        tmp_path,
        {"max_trials": 2},
        train={"batch": {"size": batch}, "stopping": {"max_epochs": 2}},
        schedule={"policy": "elastic", "rates": str(tmp_path / "rates.json")},
    )
    assert run.launch() is ExitStatus.NETWORK_FAILED
    assert [(row.status, reason in row.reason) for row in run.rows().values()] == [
        (Status.FAILED, True)
    ] * 2


def test_search_run_stays_open_while_idle(tmp_path):
    run = Run(tmp_path, None, models=[], keep_open=0.3)
    assert run.launch() is ExitStatus.OK
    [ended] = run.of(ev.LaunchEnded)
    assert 0.3 <= ended.seconds < 20


# ---- earlier runs ------------------------------------------------------------------------------


@pytest.mark.long
def test_search_warm_start_survives_changed_space(
    tmp_path,
):
    first, folders = (
        Run(tmp_path, {"max_trials": 4}, epochs=2),
        [tmp_path / name for name in ("b", "c")],
    )
    assert first.launch() is ExitStatus.OK
    for folder in folders:
        folder.mkdir()
    search = {"max_trials": 3, "seed": 1, "warm_start": [str(tmp_path / "run")]}
    second = Run(folders[0], search, epochs=2)
    assert second.launch() is ExitStatus.OK
    [read] = second.of(ev.EarlierRunRead)
    assert (read.told, dict(read.left_out)) == (4, {})
    recorded = [event for event in second.of(ev.SearcherCalled) if event.call == "know"]
    assert [
        (event.number, event.network, len(event.curve), event.outcome) for event in recorded
    ] == [(-1 - number, f"net-{number}", 2, "finished") for number in range(4)]
    space = {LEARNING_RATE: {"low": 0.01, "high": 0.1}}
    changed = Run(
        folders[0],
        {**search, "max_trials": 5},
        epochs=2,
        models=[{**ENTRY, "space": space, "search": {**search, "max_trials": 5}}],
    )
    shutil.rmtree(tmp_path / "run")  # its trials are in the log
    assert main(["check", str(changed.path)]) == 0
    assert changed.launch() is ExitStatus.OK
    [_, began] = changed.of(ev.SearcherStarted)
    assert began.is_another
    assert "max_trials was 3 and is 5" in began.changed
    outside = sum(event.answer[LEARNING_RATE] < 0.01 for event in recorded)
    assert dict(changed.of(ev.EarlierRunRead)[-1].left_out) in (
        {},
        {f"{LEARNING_RATE} is outside of the space": outside},
    )
    assert sorted(changed.rows()) == [f"net-{number}" for number in range(5)]
    assert all(changed.rows()[name].drawn[LEARNING_RATE] >= 0.01 for name in ("net-3", "net-4"))
    for earlier, folder, reason in (
        (str(tmp_path / "run"), folders[1], "is not the folder of a run"),
        (f"{folders[0]}/./run", folders[0], "the folder of this run"),
    ):
        with refused(SpecError, "models[0].search.warm_start[0]", earlier, reason):
            Run(folder, {**search, "warm_start": [earlier]}).launch()


def test_search_objectives_are_in_results_as_reported(tmp_path):
    objectives = [
        {"value": "val_accuracy"},
        {"value": "parameters", "mode": "minimize"},
        {"value": "rate"},
    ]
    run = Run(tmp_path, {"max_trials": 3, "objectives": objectives}, epochs=2)
    assert [run.launch(150), run.launch()][-1] is ExitStatus.OK
    messages = {
        event.network: event.value for event in run.of(ev.SearcherCalled) if event.call == "tell"
    }
    rows = run.rows()
    assert sorted(messages) == sorted(rows)
    for name, row in rows.items():
        assert messages[name] == (row.val_accuracy, row.parameters, row.metrics["rate"])


@pytest.mark.long
def test_run_with_old_keys_resumes_with_new_keys_unchanged(tmp_path):
    """A log, results and a spec as version 0.2 wrote them."""
    space = {LEARNING_RATE: [0.1, 0.03], "train.converge.patience": [1, 2]}
    entry = {**ENTRY, "space": space, "search": {"ask": "random", "most": 3}}
    run = Run(tmp_path, None, models=[entry])
    assert run.launch(50) is None
    for path in (run.paths.events, run.paths.spec, run.paths.results):
        text = path.read_text() if path.exists() else ""
        for new, old in (("stopping", "converge"), ("sampler", "ask"), ("max_trials", "most")):
            text = text.replace(new, old)
        path.write_text(text)
    new_space = {LEARNING_RATE: [0.1, 0.03], "train.stopping.patience": [1, 2]}
    resumed = Run(
        tmp_path,
        None,
        models=[
            {**entry, "space": new_space, "search": {"sampler": "random", "max_trials": 3}},
        ],
    )
    assert resumed.launch() is ExitStatus.OK
    assert len(resumed.of(ev.SearcherStarted)) == 1  # the search has the same settings
    assert sorted(resumed.rows()) == ["net-0", "net-1", "net-2"]
    for row in resumed.rows().values():
        assert set(row.drawn) == set(new_space)
