"""Clones of networks in a running launch, and for the next one."""

import json

import pytest

import fleet.api
from fleet.__main__ import main
from fleet.api import launch
from fleet.domain.events import CommandReceived, NetworkAdded
from fleet.errors import UserError
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status
from tests.examples import long_but_first
from tests.mpi.conftest import Launcher, spec

RATE = "train.optimizer.learning_rate"
MODELS = [{"family": "softmax", "name": "a"}]


def launcher_and_spec(tmp_path, **parts):
    content = {"train": {"stopping": {"max_epochs": 2}}, **parts}
    return Launcher(tmp_path), spec(tmp_path, MODELS, **content)


@pytest.mark.long
@pytest.mark.parametrize("ranks", long_but_first(3, 1))
def test_clones_of_a_running_launch_start_warm_or_anew(tmp_path, ranks, capsys):
    launcher, content = launcher_and_spec(tmp_path, keep_open="3s")
    run = tmp_path / "run"
    with launch(
        launcher.write(content), ranks, "--plain", environment=launcher.environment({})
    ) as running:
        for report in running.reports():
            if report.network == "a" and report.is_last:
                break
        assert running.clone("a", {RATE: 0.05}) == "a-clone"
        assert main(["clone", str(run), "a", "--set", f"{RATE}=0.01", "--warm"]) == 0
        assert capsys.readouterr().out.split() == ["a-clone2"]
        assert main(["clone", str(run), "b"]) == 2
        assert "no network named 'b'" in capsys.readouterr().err
        with pytest.raises(UserError, match="did you mean train.optimizer.learning_rate"):
            running.clone("a", {"train.optimizer.learning_rat": 1.0})
    rows = {row.name: row for row in running.results()}
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(
        ["a", "a-clone", "a-clone2"], Status.FINISHED
    )
    assert rows["a-clone"].drawn == {RATE: 0.05}
    assert (rows["a-clone"].parent, rows["a-clone2"].parent) == ("", "a")
    assert rows["a-clone2"].parent_epoch == 2


@pytest.mark.long
def test_clones_for_the_next_launch_are_trained_by_it(tmp_path, capsys):
    launcher, content = launcher_and_spec(tmp_path)
    run = tmp_path / "run"
    launcher(2, content)
    assert fleet.api.clone(run, "a", {RATE: 0.05}, warm=True, name="warm") == ["warm"]
    assert fleet.api.clone(run, "warm") == ["warm-clone"]
    with pytest.raises(UserError, match="warm-clone has no checkpoint yet"):
        fleet.api.clone(run, "warm-clone", warm=True)
    launcher(2, content)
    rows = {row.name: row for row in fleet.api.read_results(run)}
    assert all(row.status is Status.FINISHED for row in rows.values())
    assert rows["warm"].parent == "a"
    assert fleet.api.clone(run, "warm", warm=True) == ["warm-clone2"]
    launcher(2, content)
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == 0
    [added] = json.loads(capsys.readouterr().out)["searches"]
    parents = {network["name"]: network.get("parent") for network in added["networks"]}
    assert parents == {"warm": "a", "warm-clone": None, "warm-clone2": "warm"}


@pytest.mark.long
def test_a_clone_that_a_killed_launch_accepted_is_added_once(tmp_path):
    launcher, content = launcher_and_spec(tmp_path)
    run = RunPaths(tmp_path / "run")
    launcher(1, content)
    fleet.api.clone(run.root, "a", warm=True)
    [accepted] = events_of(run.events, CommandReceived)
    lines = run.events.read_text().splitlines(keepends=True)
    run.events.write_text("".join(line for line in lines if '"added"' not in line))
    run.mailbox.mkdir(exist_ok=True)
    command = {"do": "clone", "network": "a", "warm": True}
    (run.mailbox / f"{accepted.command}.command.json").write_text(json.dumps(command))
    run.first("a-clone").unlink()
    launcher(1, {**content, "keep_open": "2s"})
    [added] = events_of(run.events, NetworkAdded)
    assert (added.network, added.parent) == ("a-clone", "a")


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "family"),
    [
        pytest.param("keras", "cnn", marks=pytest.mark.tensorflow),
        pytest.param("torch", "cnn", marks=pytest.mark.torch),
    ],
)
def test_warm_clones_continue_with_other_engines(tmp_path, engine, family):
    launcher = Launcher(tmp_path)
    model = {
        "family": family,
        "name": "a",
        "args": {"filters": [4], "dense": [8]},
        "train": {"optimizer": {"name": "adam"}},
    }
    content = spec(
        tmp_path,
        [model],
        train={"stopping": {"max_epochs": 2}},
        resources={"engine": engine},
    )
    run = tmp_path / "run"
    outcome = launcher(2, content, timeout=300)
    assert outcome.status == 0, outcome.output
    [name] = fleet.api.clone(run, "a", {RATE: 0.002}, warm=True)
    outcome = launcher(2, content, timeout=300)
    assert outcome.status == 0, outcome.output
    rows = {row.name: row for row in fleet.api.read_results(run)}
    assert (rows[name].status, rows[name].parent) == (Status.FINISHED, "a")
    before = [epoch.loss for epoch in fleet.api.read_history(run) if epoch.network == "a"]
    after = [epoch.loss for epoch in fleet.api.read_history(run) if epoch.network == name]
    assert after[0] < before[0]
