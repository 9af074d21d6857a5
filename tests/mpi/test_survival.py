"""The launch survives dead ranks under ``mpirun --with-ft ulfm``."""

import json

import pytest

from fleet.domain.events import EpochEnded, GroupFailed, RankDied
from fleet.stream.order import parse_path
from tests.examples import long_but_first
from tests.mpi.conftest import ROOT, spec
from tests.mpi.test_training import replayed

# Ranks that outlive others need Open MPI's ULFM; MPICH's mpirun ends a launch when a rank dies.
DYING = (str(ROOT / "tests/mpi/killed_ranks.py"),)
EPOCHS = 6
STEP = "runtime.training.network:Training.begin"
# With these rates all three run at the same time on four trainers, in two rounds at most.
RATES = {"pair": [10.0, 19.0], "one": [19.0], "two": [19.0]}


def run_dying(launch, tmp_path, deaths, ranks=5, survive=True, environment=None, **parts):
    """Return a spec with one preprocessor, a network of two ranks and two networks of one rank."""
    rates = tmp_path / "rates.json"
    rates.write_text(
        json.dumps(
            {
                "samples_per_epoch": 100,
                "gpus_per_node": 4,
                "models": [{"name": name, "rates": RATES[name]} for name in RATES],
            }
        )
    )
    models = [
        {"family": "softmax", "name": name, **({"gpus": 2} if name == "pair" else {})}
        for name in RATES
    ]
    content = spec(
        tmp_path,
        models,
        samples=100,
        source="slow",
        schedule={"rates": str(rates)},
        **{"train": {"stopping": {"max_epochs": EPOCHS}}, **parts},
    )
    run = launch(
        ranks,
        content,
        program=DYING,
        survive=survive,
        timeout=300,
        environment={"FLEET_TEST_DEATHS": json.dumps(deaths), **(environment or {})},
    )
    return run, content


def check(launch, run, content, names=("pair",)):
    """Check that networks trained each epoch once, with the losses of training alone."""
    for name, row in run.results().items():
        assert (row.status, row.epochs) == ("finished", EPOCHS), run.output
        history = run.history(name)
        assert [record.epoch for record in history] == list(range(1, EPOCHS + 1))
        assert {record.samples for record in history} == {100}
        consumed = [
            chunk
            for record in history
            for chunk in parse_path(record.path) or [record.stream_epoch]
        ]
        assert len(set(consumed)) == len(consumed)
        logged = {
            (event.record.epoch, event.record.stream_epoch)
            for event in run.events(EpochEnded)
            if event.network == name
        }
        assert logged >= {(record.epoch, record.stream_epoch) for record in history}
    for name in names:
        assert replayed(launch, content, run, name) < 1e-9


@pytest.mark.open_mpi
@pytest.mark.parametrize(
    "deaths",
    long_but_first(
        {"2": (STEP, 30)},
        {"1": (STEP, 30), "2": (STEP, 30)},
        {"1": ("storage.writer:CheckpointWriter._write", 3)},
        {"1": ("storage.writer:write_history", 3)},
    ),
    ids=["a worker", "all", "the master before it has written", "the master when it has"],
)
def test_survival_only_the_failed_network_falls_back(launch, tmp_path, deaths):
    run, content = run_dying(launch, tmp_path, deaths)
    assert run.status == 0, run.output
    assert {event.rank for event in run.events(RankDied)} == set(map(int, deaths))
    assert {event.network for event in run.events(GroupFailed)} == {"pair"}
    trained = {
        name: [event.record.epoch for event in run.events(EpochEnded) if event.network == name]
        for name in RATES
    }
    assert trained["one"] == list(range(1, EPOCHS + 1))  # it has lost no epoch
    assert len(trained["pair"]) <= EPOCHS + 1
    check(launch, run, content)


@pytest.mark.open_mpi
def test_mistake_ends_a_launch_that_outlives_its_ranks(launch, tmp_path):
    content = spec(tmp_path, [{"family": "softmx"}])
    run = launch(3, content, survive=True, timeout=60)
    assert run.status == 2, run.output
    assert run.output.count("did you mean softmax?") == 1


@pytest.mark.open_mpi
@pytest.mark.long
def test_survival_of_a_preprocessors_death(launch, tmp_path):
    death = ("stream.filler:WindowFiller._produce", 30)
    run, content = run_dying(
        launch, tmp_path, {"1": death}, ranks=6, resources={"engine": "numpy", "preprocessors": 2}
    )
    assert run.status == 0, run.output
    assert [event.rank for event in run.events(RankDied)] == [1]
    assert not run.events(GroupFailed)
    check(launch, run, content)


@pytest.mark.open_mpi
@pytest.mark.long
def test_survival_does_not_consider_a_stopped_rank_dead(launch, tmp_path):
    run, content = run_dying(
        launch, tmp_path, {"2": (STEP, 30)}, environment={"FLEET_TEST_STOPS": "2"}
    )
    assert run.status == 0, run.output
    assert not run.events(RankDied)
    check(launch, run, content)


@pytest.mark.open_mpi
@pytest.mark.long
def test_survival_without_ulfm_all_end_and_job_resumes(launch, tmp_path):
    run, content = run_dying(launch, tmp_path, {"2": (STEP, 30)}, survive=False)
    assert run.status not in (0, 2, 3, 75)
    assert run.output.count("all ranks end") == 1
    again, content = run_dying(launch, tmp_path, {})
    assert again.status == 0, again.output
    check(launch, again, content)


@pytest.mark.open_mpi
@pytest.mark.tensorflow
@pytest.mark.long
@pytest.mark.parametrize("exchange", ["horovod", "mpi"])
def test_survival_of_a_death_in_a_tensorflow_group(launch, tmp_path, exchange):
    if exchange == "horovod":
        pytest.importorskip("horovod")
    family = {"family": "cnn", "args": {"filters": [4], "dense": [8], "norm": "none"}}
    rates = {
        "samples_per_epoch": 100,
        "gpus_per_node": 3,
        "models": [{"name": "pair", "rates": [10.0, 19.0]}, {"name": "one", "rates": [19.0]}],
    }
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    content = spec(
        tmp_path,
        [{**family, "name": "pair", "gpus": 2}, {**family, "name": "one"}],
        samples=100,
        schedule={"rates": str(tmp_path / "rates.json")},
        train={"stopping": {"max_epochs": EPOCHS}},
        resources={"engine": "keras", "exchange": exchange},
    )
    # An epoch is one call of many steps.
    run = launch(
        4,
        content,
        program=DYING,
        survive=True,
        timeout=600,
        environment={"FLEET_TEST_DEATHS": json.dumps({"2": (STEP, 4)})},
    )
    assert run.status == 0, run.output
    assert [event.network for event in run.events(GroupFailed)] == ["pair"]
    check(launch, run, content, names=())
