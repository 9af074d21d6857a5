"""Detection of networks whose code has changed since they were saved."""

import csv
import json

import numpy as np
import pytest

from fleet.storage.checkpoint import find_newest, read_state
from fleet.storage.run_spec import load_run_spec
from tests.fleet.histories import record
from tests.fleet.runtime.runs import Trained

FIRST = "import layers\ndef build(input_shape, classes, **args): return layers.small\n"
ACCEPT = {"accept_changes": True}


class Run(Trained):
    """A run of two custom networks and one of a family."""

    def __init__(self, folder):
        super().__init__(
            folder,
            [
                {"build": "own_models:build", "name": "a", "args": {"depth": 3}},
                {"build": "own_models:build", "name": "b"},
                {"family": "softmax", "name": "c"},
            ],
            {"source": "tests.sources:numbered", "path": "60", "transforms": []},
            train={"batch": {"size": 8}},
            resources={},
        )
        self.write("own_models.py", FIRST)
        self.write("layers.py", "small = 1\n")

    def write(self, name, text):
        (self.folder / name).write_text(text)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return Run(tmp_path)


@pytest.mark.parametrize("reason", ["", "2 epochs"])  # a finished network is refused as well
@pytest.mark.parametrize(
    ("file", "text"),
    [("own_models.py", FIRST.replace("small", "large")), ("layers.py", "small = 2\n")],
)
def test_code_changed_is_refused_with_file_and_options(run, file, text, reason):
    run.leave_checkpoints(final=reason)
    run.prepare()
    run.write(file, text)
    message = run.refused()
    assert f"a ({file}), b ({file})" in message
    assert "c (" not in message
    assert "--fresh-network a --fresh-network b" in message
    assert "--accept-changes" in message


def test_code_changed_args_are_refused_unless_accepted(run):
    run.leave_checkpoints()
    run.content["models"][0]["args"] = {"depth": 4}
    assert "a (args)" in run.refused()
    run.prepare(**ACCEPT)
    run.prepare()


def test_code_change_of_training_settings_is_refused(run):
    run.leave_checkpoints()
    run.content["train"]["batch"]["size"] = 4
    message = run.refused(**ACCEPT)
    assert "other settings" in message
    assert "--fresh-network a" in message


def test_code_accepted_change_is_in_history(run):
    run.leave_checkpoints()
    run.write("layers.py", "small = 2\n")
    prepared = run.prepare(**ACCEPT)
    assert [(change.network, change.files, change.epochs) for change in prepared.past.changes] == [
        ("a", ("layers.py",), 2),
        ("b", ("layers.py",), 2),
    ]
    with open(run.paths.history("a"), newline="") as file:
        assert [row["accepted"] for row in csv.DictReader(file)] == ["", "layers.py"]
    assert [row.accepted for row in find_newest(run.paths, "c").state.history] == ["", ""]
    run.prepare()
    np.testing.assert_array_equal(read_state(run.paths.last("a")).arrays["weights"], np.ones(3))
    run.paths.last("a").write_bytes(b"damaged")  # the previous checkpoint was accepted as well
    run.prepare()
    run.write("layers.py", "small = 3\n")
    assert "a (layers.py)" in run.refused()


def test_code_change_before_first_epoch_is_in_its_record(run):
    run.leave_checkpoints(epochs=(), position=8, stream_epoch=0)
    run.write("layers.py", "small = 2\n")
    run.prepare(**ACCEPT)
    state = find_newest(run.paths, "a").state
    assert (state.accepted, state.position) == ("layers.py", 8)
    assert state.next_epoch(record(1, accepted=state.accepted), "").accepted == ""


def test_code_changed_network_may_start_over_alone(run):
    run.leave_checkpoints()
    run.paths.tensorboard("a").mkdir(parents=True)
    run.write("layers.py", "small = 2\n")
    assert "b (layers.py)" in run.refused(fresh_network=("a",))
    prepared = run.prepare(fresh_network=("a",), **ACCEPT)
    assert [type(change).__name__ for change in prepared.past.changes] == [
        "NetworkRolledBack",
        "ChangesAccepted",
    ]
    assert (find_newest(run.paths, "a").state, find_newest(run.paths, "b").state.epoch) == (None, 2)
    assert not run.paths.model("a").exists()
    assert not run.paths.tensorboard("a").exists()
    run.prepare()


def test_fresh_network_refuses_unknown_names_and_foreign_files(run):
    run.leave_checkpoints()
    assert "--fresh-network d: the spec has no network of this name; it has a, b, c" in run.refused(
        fresh_network=("d",)
    )
    (run.paths.model("a") / "plot.png").touch()
    assert "FLEET did not write" in run.refused(fresh_network=("a",))


def test_code_unknown_to_version_0_1_warns_once(run, capsys):
    run.leave_checkpoints(code=None, architecture="")
    run.prepare()
    output = capsys.readouterr().err
    assert output.count("WARNING") == 1
    assert "a, b" in output
    assert "layers.py, own_models.py" in output
    run.prepare()
    assert capsys.readouterr().err == ""
    run.write("layers.py", "small = 2\n")  # from now on it is known
    assert "a (layers.py)" in run.refused()


def test_code_changed_is_not_replayed_unless_accepted(run):
    run.leave_checkpoints()
    run.write("layers.py", "small = 2\n")
    options = {"replay": str(run.paths.root), "only": "a"}
    assert "the code of a (layers.py) has changed" in run.refused(**options)
    assert run.prepare(**ACCEPT, **options).past.changes == ()


def test_checkpoint_record_is_plain_text(run):
    run.leave_checkpoints()
    block = run.paths.last("a").read_bytes().partition(b"\n")[2].partition(b"\0")[0]
    assert sorted(json.loads(block)["code"]) == ["layers.py", "own_models.py"]


def rates(spec):
    return {network.train.optimizer.learning_rate for network in spec.networks}


def test_run_of_0_2_keeps_its_default_learning_rate(run, capsys):
    run.content["train"]["optimizer"] = {"name": "adam"}
    run.content["defaults"] = 0.2
    run.content["resources"] = {"engine": "keras"}
    run.leave_checkpoints()
    stored = run.paths.spec.read_text()
    assert "defaults: '0.2'" in stored
    run.paths.spec.write_text(stored.replace("defaults: '0.2'\n", ""))  # as 0.2 has written it
    del run.content["defaults"]
    assert rates(load_run_spec(run.paths)) == {0.01}
    for _ in range(2):
        assert rates(run.prepare().spec) == {0.01}
        assert "the default learning rate stays 0.01" in capsys.readouterr().err
    assert rates(run.prepare(fresh=True).spec) == {0.001}
    assert "stays" not in capsys.readouterr().err
