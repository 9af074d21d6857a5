"""Energy of networks on real ranks, with a made-up counter of 100 watts."""

import json

import pytest

from fleet.domain.events import EnergyUsed
from fleet.monitor.report import read_report
from tests.mpi.conftest import ROOT, spec

WATTS = 100.0
COUNTER = """
import time
from launch import energy

def find_counters(*arguments):
    return [energy.Counter("rapl", "processor 0", lambda: {watts} * time.time() % 500, 500.0)]

energy.find_counters = find_counters
"""
MODELS = [{"family": "softmax", "name": name} for name in ("a", "b")]


@pytest.fixture
def counting(launch, tmp_path):
    """Start a launch on a machine that counts energy, of 3 ranks by default."""
    (tmp_path / "sitecustomize.py").write_text(COUNTER.format(watts=WATTS))
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def start(content, ranks=3):
        return launch(ranks, content, environment=environment)

    return start


def slow(tmp_path, epochs, **more):
    """Return a spec of epochs that take about half a second."""
    train = {"stopping": {"max_epochs": epochs}, "batch": {"size": 4}}
    return spec(tmp_path, MODELS, samples=500, source="slow", train=train, **more)


def test_energy_of_networks_adds_up_to_the_counter(counting, tmp_path):
    run = counting(slow(tmp_path, 3))
    assert run.status == 0, run.output
    rows = run.results()
    total_j = 1000 * sum(row.energy_kj for row in rows.values())
    # Both train all the time, side by side: the counter counts once.
    longest_s = max(row.seconds for row in rows.values())
    assert 0.9 * longest_s * WATTS < total_j < run.seconds * WATTS
    logged = run.events(EnergyUsed)
    assert sum(event.joules for event in logged) == pytest.approx(total_j, rel=1e-3)
    assert json.loads(json.dumps(read_report(run.paths).as_dict()["energy_kj"])) > 0

    # The energy of earlier launches counts.
    again = counting(slow(tmp_path, 4))
    assert again.status == 0, again.output
    assert all(again.results()[name].energy_kj > rows[name].energy_kj for name in rows)


@pytest.mark.parametrize("ranks", [1, 4])
def test_energy_is_counted_on_any_number_of_ranks(counting, tmp_path, ranks):
    models = [{"family": "softmax", "name": "pair", "gpus": [1, 2]}]
    content = {**slow(tmp_path, 1), "models": models}
    run = counting(content, ranks)
    assert run.status == 0, run.output
    (row,) = run.results().values()
    assert 0.9 * row.seconds * WATTS < 1000 * row.energy_kj < run.seconds * WATTS


@pytest.mark.torch
@pytest.mark.long
def test_energy_of_fused_networks_adds_up_to_the_counter(counting, tmp_path):
    models = [
        {
            "family": "mlp",
            "args": {"hidden": [4]},
            "name": f"n{epochs}",
            "train": {"stopping": {"max_epochs": epochs}},
        }
        for epochs in (1, 2, 4)  # the first ones end early
    ]
    content = {**slow(tmp_path, 4), "models": models, "resources": {"engine": "torch", "fuse": 4}}
    run = counting(content, ranks=2)
    assert run.status == 0, run.output
    rows = run.results()
    energy = {name: row.energy_kj for name, row in rows.items()}
    assert 0.9 * rows["n4"].seconds * WATTS < 1000 * sum(energy.values()) < run.seconds * WATTS
    assert 0 < energy["n1"] < energy["n2"] < energy["n4"]


def test_budget_of_energy_is_refused_without_a_counter(launch, tmp_path):
    search = {"budget": {"kwh": 5}}
    models = [
        {
            "family": "softmax",
            "search": search,
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1}},
        }
    ]
    (tmp_path / "sitecustomize.py").write_text(
        "from launch import energy\nenergy.find_counters = lambda *arguments: []\n"
    )
    run = launch(2, spec(tmp_path, models), environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert run.status == 2
    assert "models[0].search.budget.kwh: no rank can read a counter of energy" in run.output
