"""Functions of models that exit, hang or block Python: a row of the results, and no rank waits."""

import pytest

from fleet.domain.events import EpochEnded, GroupStarted
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from launch.mpirun_kinds import stop_signal
from launch.processes import launch_members
from tests.examples import long_but_first
from tests.mpi.conftest import spec
from tests.waiting import wait_until

GOOD = {"family": "softmax", "name": "good"}
DEAF = "Python cannot interrupt it on rank"


def bad(function, **more):
    return {"build": f"tests.sources:{function}", "name": "bad", **more}


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "reason"),
    long_but_first(
        ("exits", "it exited, by sys.exit(3)"), ("interrupts", "it raised KeyboardInterrupt")
    ),
)
@pytest.mark.parametrize("gpus", long_but_first(2, 1))
def test_function_that_exits_is_a_failed_row(launch, tmp_path, function, reason, gpus):
    run = launch(3, spec(tmp_path, [bad(function, gpus=gpus), GOOD]))
    assert run.status == 3, run.output
    rows = run.results()
    assert (rows["good"].status, rows["bad"].status, rows["bad"].reason) == (
        "finished",
        "failed",
        reason,
    )
    assert "prterun" not in run.output  # mpirun does not see an abort


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3])
def test_function_that_hangs_is_a_row_with_its_place(launch, tmp_path, ranks):
    run = launch(ranks, spec(tmp_path, [bad("hangs"), GOOD], train={"build_timeout": 1.0}))
    assert run.status == 3, run.output
    rows = run.results()
    assert rows["good"].status == "finished"
    assert "building took longer than 1.0 s (train.build_timeout); it was at " in rows["bad"].reason
    assert "sources.py, line " in rows["bad"].reason


@pytest.mark.long
@pytest.mark.parametrize("survive", [False, True])
def test_unresponsive_rank_is_given_up_and_run_resumes(launch, tmp_path, survive):
    rates = tmp_path / "rates.json"
    rates.write_text(
        '{"samples_per_epoch": 600, "gpus_per_node": 2, "models": [{"name": "good", "rates": '
        "[9.0]}, "
        '{"name": "bad", "rates": [9.0]}]}'
    )
    content = spec(
        tmp_path,
        [bad("hangs_deaf"), GOOD],
        samples=600,
        source="slow",
        data={"shared_memory": 3 * 64 * 16},
        train={"build_timeout": 1.0, "stopping": {"max_epochs": 30}},
        schedule={"rates": str(rates)},
    )
    run = launch(3, content, survive=survive)
    assert run.status == 75, run.output
    row = run.results()["bad"]
    assert (row.status, DEAF in row.reason) == ("failed", True)
    assert "did not return from building bad" in run.output
    trained = run.results()["good"].epochs
    content["train"]["stopping"]["max_epochs"] = trained + 1
    again = launch(3, content, survive=survive)
    assert again.status == 3, again.output
    assert again.seconds < 30
    assert {name: row.status for name, row in again.results().items()} == {
        "bad": "failed",
        "good": "finished",
    }
    assert len(again.events(EpochEnded)) == trained + 1  # no epoch was trained twice


@pytest.mark.long
def test_unresponsive_single_rank_ends_by_another_thread(launch, tmp_path):
    run = launch(1, spec(tmp_path, [bad("hangs_in_c")], train={"build_timeout": 1.0}))
    assert run.status == 3, run.output
    assert DEAF in run.results()["bad"].reason


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "function"),
    [
        (1, "hangs"),
        *(
            pytest.param(ranks, function, marks=pytest.mark.long)
            for ranks, function in ((1, "hangs_in_c"), (3, "hangs"), (3, "hangs_deaf"))
        ),
    ],
)
def test_signal_is_handled_while_a_function_hangs(launch, tmp_path, ranks, function):
    rates = tmp_path / "rates.json"
    rates.write_text(
        '{"samples_per_epoch": 60, "gpus_per_node": 2, "models": [{"name": "bad", "rates": [9.0]}]}'
    )
    process = launch.start(ranks, spec(tmp_path, [bad(function)], schedule={"rates": str(rates)}))
    wait_until(lambda: events_of(RunPaths(tmp_path / "run").events, GroupStarted), process)
    number = stop_signal(process.args[0])
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert f"received {number.name}" in output
    assert not launch_members(process.pid)
