"""The schedule does not change the results: splits, neighbors, interruptions (numpy engine)."""

import json
import signal
import time

import pytest

from fleet.domain import events as ev
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import spec
from tests.places import ROOT
from tests.waiting import wait_until

GOLDEN = ROOT / "tests/golden"


def replayed(launch, content, run, name, ranks=1):
    """Return the largest difference between a network's history and its replay."""
    again = launch(ranks, content, "--replay", str(run.paths.root), "--only", name)
    assert again.status == 0, again.output
    assert "largest relative difference" in again.output
    return run.differs(name)


def test_training_gives_the_same_losses_as_alone(launch, tmp_path):
    models = [
        {"family": "softmax", "name": "free"},
        {"family": "softmax", "name": "pair", "gpus": 2, "train": {"batch": {"size": 7}}},
    ]
    content = spec(tmp_path, models, samples=62)
    run = launch(3, content)
    assert run.status == 0, run.output
    for model in models:
        assert replayed(launch, content, run, model["name"]) < 1e-9


@pytest.mark.long
def test_training_source_beside_the_spec_reaches_all_ranks(launch, tmp_path):
    (tmp_path / "beside_the_spec.py").write_text(
        "from tests.sources import Numbered\n\n\nclass Mine(Numbered):\n    pass\n\n\n"
        "def mine(path):\n    return Mine(int(path), seed=1), Mine(20, seed=2)\n"
    )
    content = spec(tmp_path, [{"family": "softmax"}])
    content["data"]["source"] = "beside_the_spec:mine"
    run = launch(3, content)
    assert run.status == 0, run.output


@pytest.mark.long
def test_training_signal_during_listing_stops_before_training(launch, tmp_path):
    content = spec(
        tmp_path, [{"family": "softmax"}], samples=f"60 {tmp_path}", source="listed_slowly"
    )
    process = launch.start(3, content)
    wait_until((tmp_path / "listing").exists, process)
    process.send_signal(signal.SIGUSR2)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert not events_of(RunPaths(tmp_path / "run").events, ev.EpochEnded)
    assert launch(3, content).status == 0


@pytest.mark.long
def test_training_signal_stops_within_a_step(launch, tmp_path):
    models = [{"family": "softmax", "name": "one"}]
    content = spec(
        tmp_path, models, samples=1000, source="slow", train={"stopping": {"max_epochs": 3}}
    )
    process = launch.start(2, content)
    events = RunPaths(tmp_path / "run").events
    wait_until(lambda: events_of(events, ev.EpochEnded), process)
    time.sleep(0.3)  # an epoch takes a second: this is in the middle of one
    process.send_signal(signal.SIGUSR2)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 75, output
    assert "received SIGUSR2" in output
    assert read_state(RunPaths(tmp_path / "run").last("one"), with_arrays=False).position > 0

    run = launch(2, content)
    assert run.status == 0, run.output
    assert [event.record.epoch for event in run.events(ev.EpochEnded)] == [1, 2, 3]
    assert replayed(launch, content, run, "one") < 1e-9


@pytest.mark.long
def test_training_walltime_stops_and_long_epochs_finish(launch, tmp_path):
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": "one"}],
        samples=12000,
        source="slow",
        walltime="9s",
        train={"stopping": {"max_epochs": 1}},
    )
    launches = [launch(2, content)]
    while launches[-1].status == 75 and len(launches) < 9:
        launches.append(launch(2, content))
    assert launches[-1].status == 0, launches[-1].output
    assert len(launches) >= 2
    assert "the walltime of 9.0 s is nearly over" in launches[0].output
    assert replayed(launch, {**content, "walltime": "1h"}, launches[-1], "one") < 1e-9


@pytest.mark.long
def test_training_finished_run_is_a_no_op_and_fresh_restarts(launch, tmp_path):
    content = spec(tmp_path, [{"family": "softmax"}])
    assert launch(2, content).status == 0
    again = launch(2, content)
    assert (again.status, len(again.events(ev.EpochEnded))) == (0, 3)
    fresh = launch(2, content, "--fresh")
    assert (
        fresh.status,
        len(fresh.events(ev.EpochEnded)),
        len(fresh.events(ev.LaunchStarted)),
    ) == (
        0,
        3,
        1,
    )


@pytest.mark.long
def test_training_does_not_measure_rates_of_a_file(launch, tmp_path):
    rates = {
        "samples_per_epoch": 60,
        "gpus_per_node": 2,
        "models": [{"name": "softmax", "rates": [10.0, 19.0]}],
    }
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    run = launch(
        3, spec(tmp_path, [{"family": "softmax"}], schedule={"rates": str(tmp_path / "rates.json")})
    )
    assert run.status == 0, run.output
    assert not run.events(ev.RateMeasured)
    # 19 samples/s on both are more than 10 on one.
    assert run.events(ev.GroupStarted)[0].devices == (
        0,
        1,
    )


@pytest.mark.long
def test_training_starts_immediately_and_shows_rates(launch, tmp_path):
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": name} for name in ("one", "two")],
        samples=400,
        schedule={"policy": "adaptive"},
    )
    first = launch(3, content)
    assert first.status == 0, first.output
    assert not first.events(ev.RateMeasured)
    assert (len(first.events(ev.TrainersReady)), len(first.events(ev.FirstStep))) == (1, 1)
    assert first.events(ev.LaunchEnded)[-1].profiling_s == 0
    learned = {(event.network, event.gpus) for event in first.events(ev.RateLearned)}
    assert learned
    again = launch(3, content, "--fresh")
    (remembered,) = again.events(ev.CachedRatesUsed)
    assert {
        (name, rate.gpus) for name, rates in remembered.rates.items() for rate in rates
    } >= learned
    assert {rate.how for rates in remembered.rates.values() for rate in rates} == {"trained"}


def test_training_matches_a_recorded_loss_curve(launch, tmp_path):
    models = [
        {"family": "softmax", "name": "one"},
        {"family": "softmax", "name": "pair", "gpus": 2},
    ]
    run = launch(4, spec(tmp_path, models, schedule={"policy": "baseline"}))
    assert run.status == 0, run.output
    curves = {name: [record.loss for record in run.history(name)] for name in ("one", "pair")}
    golden = json.loads((GOLDEN / "losses_numpy.json").read_text())
    for name, losses in curves.items():
        assert losses == pytest.approx(golden[name], rel=1e-9), json.dumps(curves)
