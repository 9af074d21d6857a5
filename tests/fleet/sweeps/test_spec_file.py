"""Tests of the spec that ``fleet import`` writes, and of launch of it."""

import json

import pytest
import yaml

from fleet.__main__ import main
from fleet.spec import load
from fleet.storage.results import read_results
from fleet.storage.trials_file import FileObjective, FileTrial, TrialsFile, write_trials_file
from fleet.sweeps.spec_file import quantity_of
from tests.fleet.sweeps.test_keras_tuner_project import RECORDED

SWEEP = {
    "method": "random",
    "run_cap": 4,
    "metric": {"name": "val_loss", "goal": "minimize"},
    "parameters": {
        "lr": {"min": 0.001, "max": 0.5, "distribution": "log_uniform_values"},
        "momentum": {"values": [0.0, 0.9]},
        "batch_size": {"value": 32},
        "epochs": {"value": 2},
    },
    "early_terminate": {"type": "hyperband", "min_iter": 1},
    "program": "train.py",
}
MISSING = "data: {source: 'builtin:digits', transforms: [{decode: {mode: L}}, {scale: {}}]}\n"


def complete(spec):
    """Add the data and the network, as a user does."""
    text = spec.read_text().replace("- name: ", "- family: softmax\n  name: ", 1)
    spec.write_text(f"{text}{MISSING}resources: {{engine: numpy}}\n")


@pytest.fixture
def launch():
    pytest.importorskip("mpi4py", reason="MPI is not installed: make test has it")
    from fleet.run import main as launch

    return launch


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    return path


def test_imported_spec_trains(source, tmp_path, quick, launch):
    spec = tmp_path / "spec.yaml"
    assert main(["import", str(source), "--to", str(spec)]) == 0
    complete(spec)
    assert main(["check", str(spec)]) == 0
    assert launch([str(spec)]) == 0
    rows = read_results("runs/sweep")
    assert len(rows) == 4
    assert all(
        row.drawn.keys() == {"train.optimizer.learning_rate", "train.optimizer.momentum"}
        for row in rows
    )


def test_imported_spec_without_data_and_network_says_so(source, tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    main(["import", str(source), "--to", str(spec)])
    assert main(["check", str(spec)]) == 2
    assert "family" in capsys.readouterr().err


def test_launch_with_imported_trials_passes_them_to_the_sampler(
    tmp_path, quick, launch, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    values = [{"train.optimizer.learning_rate": rate} for rate in (0.01, 0.02, 5.0)]
    trials = tuple(
        FileTrial(f"t{n}", value, "finished", (0.5,), (0.4, 0.5)) for n, value in enumerate(values)
    )
    folder = tmp_path / "specs"
    folder.mkdir()
    write_trials_file(
        folder / "spec.trials.json",
        TrialsFile((FileObjective("val_accuracy", "maximize"),), trials, "test"),
    )
    (folder / "spec.yaml").write_text(
        "models:\n- {family: softmax, name: net, space: {train.optimizer.learning_rate: "
        "{low: 0.001, high: 0.1}},\n   search: {max_trials: 1, warm_start: [spec.trials.json]}}\n"
        f"train: {{stopping: {{max_epochs: 1}}}}\nname: warm\n{MISSING}"
        "resources: {engine: numpy}\n"
    )
    assert launch(["specs/spec.yaml"]) == 0
    out = capsys.readouterr().out
    assert (
        "received 2 networks of spec.trials.json; 1 is left out: train.optimizer.learning_rate"
        in out
    )
    log = (tmp_path / "runs" / "warm" / "events.jsonl").read_text().splitlines()
    calls = [event for event in map(json.loads, log) if event.get("call") == "know"]
    assert [event["network"] for event in calls] == ["t0", "t1"]
    assert [event["curve"] for event in calls] == [[0.4, 0.5]] * 2
    assert launch(["specs/spec.yaml"]) == 0  # resumed: the log has the trials


def test_search_over_constants_trains_one_network(tmp_path, import_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, "parameters": {"lr": {"value": 0.1}}}))
    result = import_path(path)
    assert result.entry == {"name": "sweep"}
    assert result.prune is None
    assert "parameters" in result.changed


def test_text_is_a_spec_with_comments_about_all_notes(source, capsys):
    assert main(["import", str(source)]) == 0
    out, err = capsys.readouterr()
    content = yaml.safe_load(out)
    comments = " ".join(line.strip("# ") for line in out.splitlines() if line.startswith("#"))
    assert content["models"][0]["search"] == {"sampler": "random", "max_trials": 4}
    assert content["prune"] == {"rule": "asha", "min_epochs": 1, "factor": 3, "on_fail": "stop"}
    for line in err.splitlines():
        note = line.partition(" ")[2].removeprefix("said ")
        assert note in comments
    assert "not said program: " in err
    assert "lr: sets train.optimizer.learning_rate" in err


def test_text_has_no_line_that_ends_a_comment(tmp_path, import_path, capsys):
    path = tmp_path / "sweep.yaml"
    content = {**SWEEP, "description": "a\nb: c\u2028d", "name": "x\ny: z"}
    path.write_text(yaml.safe_dump(content))
    assert main(["import", str(path)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == "x-y-z"


def test_existing_files_are_replaced_by_force_only(tmp_path, source, refusal, import_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("mine")
    assert f"{spec} exists; use --force" in refusal(source, "--to", spec)
    assert spec.read_text() == "mine"
    import_path(source, "--to", spec, "--force")
    assert "models" in yaml.safe_load(spec.read_text())
    second = tmp_path / "other.yaml"
    (tmp_path / "other.trials.json").write_text("mine")
    assert "other.trials.json exists" in refusal(RECORDED / "random", "--to", second)
    assert not second.exists()


def test_json_has_the_spec_and_all_notes(tmp_path, import_path):
    spec = tmp_path / "new folder" / "spec.yaml"
    record = import_path(RECORDED / "random", "--to", spec).record
    assert record["path"] == str(spec)
    assert record["trials"] == 3
    assert record["trials_path"] == str(spec.with_suffix(".trials.json"))
    assert yaml.safe_load(spec.read_text()) == record["spec"]
    assert all(note.keys() == {"key", "text"} for note in record["changed"] + record["left_out"])


def test_trials_without_a_file_are_announced(capsys):
    assert main(["import", str(RECORDED / "random")]) == 0
    out, err = capsys.readouterr()
    assert "warm_start" not in yaml.safe_load(out)["models"][0]["search"]
    assert "3 prior trials not written; --to SPEC" in err


def test_folder_that_cannot_be_made_is_reported(tmp_path, source, capsys):
    (tmp_path / "file").write_text("")
    assert main(["import", str(source), "--to", str(tmp_path / "file" / "spec.yaml")]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("val_loss", "val_loss"),
        ("validation/accuracy", "val_accuracy"),
        ("eval-acc", "val_accuracy"),
        ("train.loss", "loss"),
        ("Accuracy", "accuracy"),
        ("parameters", "parameters"),
        ("val/mae", "val_mae"),
        ("val_AUC", "val_auc"),
        ("val_reward", None),
        ("", None),
    ],
)
def test_metric_is_a_quantity_of_a_run(name, quantity):
    assert quantity_of(name) == quantity


def test_metric_of_keras_is_computed(tmp_path, import_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, "metric": {"name": "valid_mae"}}))
    result = import_path(path)
    assert result.train["metrics"] == ["mae"]
    assert result.train["stopping"]["monitor"] == "val_mae"


def test_metric_in_the_wrong_direction_is_listed(tmp_path, import_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, "metric": {"name": "val_loss", "goal": "maximize"}}))
    result = import_path(path)
    assert "metric val_loss" in result.left_out
    notes = {note["key"]: note["text"] for note in result.record["left_out"]}
    assert notes["metric val_loss"] == "val_loss is always minimized here, and cannot be maximized"
    assert result.train["stopping"]["monitor"] == "val_accuracy"


def test_loaded_spec_has_the_search(source, tmp_path):
    spec = tmp_path / "spec.yaml"
    main(["import", str(source), "--to", str(spec)])
    complete(spec)
    entry = load(spec).document.models[0]
    assert entry.search.max_trials == 4
    assert load(spec).document.train.batch.size == 32
