"""Networks whose steps kill their rank or hang: they hold up neither this launch nor later ones."""

import pytest

from fleet.domain.events import GroupStarted
from fleet.storage.rank_deaths import RankDeaths
from tests.examples import long_but_first
from tests.mpi.conftest import ROOT, spec

PROGRAM = (str(ROOT / "tests/mpi/misbehaving_steps.py"),)
MODELS = [{"family": "softmax", "name": name} for name in ("a", "bad", "c")]


def started(run):
    return [event.network for event in run.events(GroupStarted)]


def status_of(run):
    return {name: row.status for name, row in run.results().items()}


# MPICH's mpirun kills all ranks at once, so that none can record which one has died.
@pytest.mark.open_mpi
@pytest.mark.parametrize("action", long_but_first("kill", "exit"))
@pytest.mark.parametrize("ranks", long_but_first(2, 1))
def test_killing_network_comes_last_and_then_fails(launch, tmp_path, action, ranks):
    content = spec(tmp_path, MODELS)
    options = {"program": PROGRAM, "environment": {"FLEET_TEST_STEP": action}}
    first = launch(ranks, content, **options)
    assert first.status not in (0, 3, 75)
    assert "while training bad" in first.output or ranks == 1
    second = launch(ranks, content, **options)
    assert "bad: rank" in second.output
    assert started(second)[-1] == "bad"
    third = launch(ranks, content, **options)
    assert third.status == 3, third.output
    assert status_of(third) == {"a": "finished", "bad": "failed", "c": "finished"}
    assert "max_deaths: 2" in third.results()["bad"].reason
    content["max_deaths"] = 3
    assert launch(ranks, content).status == 0  # it is tried again and succeeds


@pytest.mark.long
@pytest.mark.parametrize("ranks", long_but_first(3, 1))
def test_hanging_step_does_not_delay_walltime_end(launch, tmp_path, ranks):
    models = MODELS if ranks > 1 else MODELS[1:2]
    content = spec(tmp_path, models, source="slow", train={"stopping": {"max_epochs": 200}})
    options = {"program": PROGRAM, "environment": {"FLEET_TEST_STEP": "hang"}}
    run = launch(ranks, content, "--walltime", "20s", **options)
    assert run.status == 75, run.output
    assert run.seconds < 60
    assert "bad: rank" in run.output
    assert RankDeaths(run.paths, 2).deaths_of("bad", 0)
    if ranks > 1:
        assert run.history("a") or run.history("c")


@pytest.mark.long
@pytest.mark.parametrize("action", long_but_first("child", "thread"))
def test_threads_and_children_do_not_delay_the_end(launch, tmp_path, action):
    content = spec(tmp_path, MODELS)
    options = {"program": PROGRAM, "environment": {"FLEET_TEST_STEP": action}}
    run = launch(2, content, timeout=120, **options)
    assert run.status == 0, run.output


@pytest.mark.open_mpi
@pytest.mark.long
def test_killing_network_fails_in_fault_tolerant_launch(launch, tmp_path):
    content = spec(tmp_path, MODELS)
    options = {"program": PROGRAM, "environment": {"FLEET_TEST_STEP": "kill"}}
    run = launch(4, content, survive=True, **options)
    assert run.status == 3, run.output
    assert status_of(run) == {"a": "finished", "bad": "failed", "c": "finished"}
