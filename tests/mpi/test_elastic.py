"""The policy `elastic` live: changing batches, scaled learning rates, exact replays."""

import json
import os
import signal

import pytest

from fleet.domain.events import EpochEnded, FirstStep, PlanChanged, RateMeasured
from fleet.storage.event_log import events_of, read_events
from fleet.storage.paths import RunPaths
from scheduler.base import Cluster, Options
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates_file import parse_rates
from scheduler.simulation.ensemble import simulate
from tests.mpi.conftest import kill, rank_process, spec
from tests.mpi.test_training import replayed
from tests.waiting import wait_until

STEPS = [{"batch": 4, "seconds": 0.06}, {"batch": 8, "seconds": 0.1}]
SCALE = 0.05
NOISE = {
    "source": "builtin:noise",
    "path": None,
    "options": {"samples": 20_000, "validation": 20},
    "transforms": [],
}
COMM = [
    {"params_mb": 1.0, "gpus": 2, "seconds": 0.01},
    {"params_mb": 1.0, "gpus": 4, "seconds": 0.015},
]


def elastic(tmp_path, models, samples=200, batch=None, rates=(), **parts):
    """Return a spec under `elastic`; write a file with step times of up to 8 samples per GPU."""
    names = [model.get("name") for model in models if "name" in model]
    table = [{"name": name, "rates": [80.0], "params_mb": 1.0, "step_s": STEPS} for name in names]
    (tmp_path / "rates.json").write_text(
        json.dumps(
            {
                "samples_per_epoch": samples,
                "gpus_per_node": 4,
                "models": [*table, *rates],
                "comm_s": COMM,
            }
        )
    )
    parts.setdefault("train", {})["batch"] = batch or {"size": [8, 32]}
    return spec(
        tmp_path,
        models,
        samples=samples,
        source="slow",
        **parts,
        schedule={"policy": "elastic", "rates": str(tmp_path / "rates.json")},
    )


@pytest.mark.long
def test_elastic_network_takes_gpus_and_batch_and_is_replayed(launch, tmp_path):
    models = [
        {"family": "softmax", "name": name, "train": {"stopping": {"max_epochs": epochs}}}
        for name, epochs in (("short", 1), ("long", 30))
    ]
    content = elastic(tmp_path, models)
    run = launch(3, content)
    assert run.status == 0, run.output
    history = run.history("long")
    first, last = history[0], history[-1]
    assert (first.batch, first.gpus, first.learning_rate) == (8, 1, 0.02)
    assert (last.batch, last.gpus, last.learning_rate) == (16, 2, 0.04)  # the linear rule
    assert {member.batch for plan in run.events(PlanChanged) for member in plan.members} == {8, 16}
    for name in ("short", "long"):
        assert replayed(launch, content, run, name) < 1e-9


@pytest.mark.long
def test_elastic_emulated_run_takes_the_simulated_time(launch, tmp_path):
    """Six networks on four GPUs: more networks than GPUs, then as many, then fewer."""
    table = [
        {
            "name": f"n{index}",
            "rates": [80.0],
            "epochs": 2 + 3 * index,
            "params_mb": 1.0,
            "step_s": [
                {"batch": 40, "seconds": 0.3 + 0.1 * index},
                {"batch": 80, "seconds": 0.5 + 0.1 * index},
            ],
        }
        for index in range(6)
    ]
    rates = {"samples_per_epoch": 1600, "gpus_per_node": 4, "models": table, "comm_s": COMM}
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": network["name"]} for network in table],
        data={
            "source": "builtin:noise",
            "path": None,
            "options": {"samples": 1600, "validation": 20},
            "transforms": [],
        },
        train={"batch": {"size": [80, 320], "learning_rate": "sqrt"}},
        schedule={"policy": "elastic", "rates": str(tmp_path / "rates.json")},
        resources={"engine": "emulated", "time_scale": SCALE, "preprocessors": 1},
    )
    run = launch(5, content)
    assert run.status == 0, run.output
    ranged = {**rates, "models": [{**network, "batches": [80, 320]} for network in table]}
    messages = simulate(
        parse_rates(ranged), Cluster.of(4, 4), POLICIES["elastic"], Options(), Costs()
    )
    log = [
        (t_s, event)
        for t_s, event in read_events(run.paths.events)
        if isinstance(event, FirstStep | EpochEnded)
    ]
    took_s = log[-1][0] - log[0][0]
    assert took_s >= 0.99 * SCALE * messages.makespan_s  # the excess depends on the machine
    for network in table:
        history = run.history(network["name"])
        # The last two end within 4 % of the makespan; the machine decides which of them gets all
        # GPUs at the end.
        alike = {"n4", "n5"} if network["name"] in ("n4", "n5") else {network["name"]}
        stints = {len(stint.devices) for stint in messages.stints if stint.name in alike}
        assert {record.gpus for record in history} <= stints
        assert [
            record.learning_rate / history[0].learning_rate for record in history
        ] == pytest.approx([(record.batch / history[0].batch) ** 0.5 for record in history])


@pytest.mark.long
def test_elastic_epoch_too_large_for_fewer_gpus_is_a_row(launch, tmp_path):
    content = elastic(
        tmp_path,
        [{"family": "softmax", "name": "net"}],
        samples=20_000,
        data=NOISE,
        resources={"engine": "emulated", "time_scale": 10, "preprocessors": 1},
    )
    process = launch.start(3, content)
    try:
        wait_until(lambda: events_of(RunPaths(tmp_path / "run").events, FirstStep), process)
        os.kill(rank_process(process.pid, 0), signal.SIGTERM)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 75, output
    finally:
        kill(process)
    run = launch(2, content)
    assert run.status == 3, run.output
    row = run.results()["net"]
    assert (row.status, row.reason) == ("failed", "a batch of 16 does not fit on 1 GPU")


@pytest.mark.long
@pytest.mark.tensorflow
def test_elastic_tensorflow_batches_change_and_replay(launch, tmp_path):
    # With these models a split changes only the order of sums.
    plain = {
        "filters": [4],
        "dense": [8],
        "norm": "none",
    }
    models = [
        {
            "family": "cnn",
            "name": name,
            "args": plain,
            "train": {"stopping": {"max_epochs": epochs}},
        }
        for name, epochs in (("short", 1), ("long", 60))
    ]
    content = elastic(tmp_path, models, samples=96, resources={"engine": "keras"})
    run = launch(3, content, timeout=240)
    assert run.status == 0, run.output
    history = run.history("long")
    assert {record.batch for record in history} == {8, 16}
    assert all(record.learning_rate == pytest.approx(0.02 * record.batch / 8) for record in history)
    assert replayed(launch, content, run, "long") < 1e-4


@pytest.mark.long
def test_elastic_step_times_are_measured_into_profile(launch, tmp_path):
    models = [{"family": "softmax", "name": name} for name in "ab"]
    content = spec(
        tmp_path, models, train={"batch": {"size": [8, 32]}}, schedule={"policy": "elastic"}
    )
    run = launch(3, content)
    assert run.status == 0, run.output
    table = json.loads(run.paths.profile.read_text())
    assert [network["batches"] for network in table["models"]] == [[8, 32]] * 2
    assert [[step["batch"] for step in network["step_s"]] for network in table["models"]] == [
        [8, 16, 32]
    ] * 2
    assert [(time["gpus"], time["params_mb"]) for time in table["comm_s"]] == [
        (2, table["models"][0]["params_mb"])
    ]
    assert all(8 <= record.batch <= 32 for name in "ab" for record in run.history(name))
    further = launch(3, {**content, "train": {**content["train"], "stopping": {"max_epochs": 4}}})
    assert further.status == 0, further.output
    assert [len(further.history(name)) for name in "ab"] == [4, 4]
    assert len(further.events(RateMeasured)) == len(
        {(event.network, event.gpus) for event in run.events(RateMeasured)}
    )
    assert (
        json.loads(further.paths.profile.read_text())["models"][0]["step_s"]
        == table["models"][0]["step_s"]
    )
    (tmp_path / "rates.json").write_text(json.dumps(table))
    again = {
        **content,
        "train": {**content["train"], "stopping": {"max_epochs": 5}},
        "schedule": {"policy": "elastic", "rates": str(tmp_path / "rates.json")},
    }
    run = launch(3, again)
    assert run.status == 0, run.output
    assert [len(run.history(name)) for name in "ab"] == [5, 5]
