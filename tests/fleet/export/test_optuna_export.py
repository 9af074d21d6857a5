"""Tests of the Optuna export, read back by Optuna and its dashboard."""

import json
import math
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from fleet.__main__ import main
from fleet.api import read_history, read_results
from fleet.export.tracked_run import TrackedObjective
from fleet.export.trackers import TRACKERS, write
from fleet.spec.dimensions import Range
from tests.examples import long_but_first
from tests.fleet.export.conftest import CHANGED, EARLY, LATE, RATE, SPACE, made_up

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: make test-track has it")
FORMS = pytest.mark.parametrize("name", ["studies.log", "studies.db"])
FINE = ("0 COMPLETE", "1 PRUNED", "2 FAIL", "3 COMPLETE")


def storage_of(path):
    if path.suffix == ".db":
        return f"sqlite:///{path}"
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def studies(path):
    storage = storage_of(path)
    return {
        name: optuna.load_study(study_name=name, storage=storage)
        for name in optuna.get_all_study_names(storage)
    }


def reported(trial):
    return (
        trial.number,
        trial.state.name,
        trial.values,
        trial.params,
        trial.intermediate_values,
        trial.user_attrs["network"],
    )


@pytest.mark.long_but_first
@FORMS
def test_optuna_study_per_entry_and_trial_per_network(tmp_path, name):
    write("optuna", LATE, path := tmp_path / "deep" / name)
    by_name = studies(path)
    assert {
        name: [f"{trial.number} {trial.state.name}" for trial in study.trials]
        for name, study in by_name.items()
    } == {"digits-net": [*FINE], "digits": ["0 COMPLETE"]}
    study = by_name["digits-net"]
    assert (study.direction.name, study.best_value, study.best_trial.user_attrs["network"]) == (
        "MAXIMIZE",
        0.4,
        "net-0",
    )
    first = study.trials[0]
    assert first.params == {RATE: 0.01, "filters": "[8, 16]"}
    assert first.distributions == {
        RATE: optuna.distributions.FloatDistribution(0.001, 0.1, log=True),
        "filters": optuna.distributions.CategoricalDistribution(("[8]", "[8, 16]")),
    }
    assert first.intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert (first.datetime_start, first.duration.total_seconds()) == (
        datetime.fromtimestamp(1000),
        240,
    )
    assert study.trials[1].value == 0.2  # Optuna's own value of a pruned trial


@pytest.mark.long_but_first
@FORMS
@pytest.mark.parametrize(
    "before", long_but_first([EARLY, CHANGED], [LATE], [EARLY], [EARLY, EARLY], [CHANGED])
)
def test_optuna_rewrites_leave_no_duplicates(tmp_path, name, before):
    (tmp_path / "once").mkdir()
    for run in [*before, LATE]:
        write("optuna", run, path := tmp_path / name)
    write("optuna", LATE, once := tmp_path / "once" / name)
    assert {name: list(map(reported, study.trials)) for name, study in studies(path).items()} == {
        name: list(map(reported, study.trials)) for name, study in studies(once).items()
    }
    before = path.read_bytes()
    write("optuna", LATE, path)
    assert path.read_bytes() == before


def test_optuna_study_of_restarted_run_is_separate(tmp_path):
    write("optuna", LATE, path := tmp_path / "studies.log")
    foreign = optuna.create_study(storage=storage_of(path), study_name="mine")
    foreign.ask()
    write("optuna", made_up(*EARLY.networks, key="fedcba9876543210"), path)
    assert {name: len(study.trials) for name, study in studies(path).items()} == {
        "digits-net": 4,
        "digits": 1,
        "mine": 1,
        "digits-net-fedcba": 3,
        "digits-fedcba": 1,
    }


@pytest.mark.long_but_first
@FORMS
def test_optuna_study_has_all_objectives(tmp_path, name):
    def judged(networks, parameters, **more):
        return made_up(
            *(
                replace(
                    direction,
                    objectives=(
                        *direction.objectives,
                        TrackedObjective("parameters", parameters, False),
                    ),
                )
                for direction in networks
            ),
            **more,
        )

    write("optuna", judged(EARLY.networks, math.nan, is_going_on=True), path := tmp_path / name)
    write("optuna", judged(LATE.networks[:4], math.nan, is_going_on=True), path)
    assert studies(path)["digits-net"].trials[0].state.name == "RUNNING"  # not reported yet
    write("optuna", judged(LATE.networks, math.nan), path)
    assert studies(path)["digits-net"].trials[0].state.name == "FAIL"  # never reported
    write("optuna", judged(LATE.networks, 100.0), path)
    study = studies(path)["digits-net"]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [(trial.state.name, trial.values) for trial in study.trials] == [
        ("COMPLETE", [0.4, 100.0]),
        ("PRUNED", None),
        ("FAIL", None),
        ("COMPLETE", [0.3, 100.0]),
    ]
    assert [trial.user_attrs["network"] for trial in study.best_trials] == ["net-0"]


@FORMS
def test_optuna_names_objectives(tmp_path, name):
    two = replace(
        LATE.networks[0],
        objectives=(*LATE.networks[0].objectives, TrackedObjective("parameters", 9, False)),
    )
    write("optuna", made_up(two), path := tmp_path / name)
    write("optuna", made_up(*LATE.networks, name="others"), path)
    by_name = studies(path)
    assert by_name["digits-net"].metric_names == ["val_accuracy", "parameters"]
    assert by_name["others-net"].metric_names == ["val_accuracy"]


@pytest.mark.long_but_first
@FORMS
def test_optuna_keeps_parameters_of_earlier_spaces(tmp_path, name):
    first, pruned, failed, last, plain = LATE.networks
    depth = replace(pruned, drawn={**pruned.drawn, "depth": 3})
    networks = (first, depth, failed, replace(last, drawn={RATE: 0.5, "filters": [32]}), plain)
    spaces = {"net": {RATE: Range(0.1, 1.0, log=True), "filters": ([32],)}}
    earlier = {"net": [{**SPACE, "depth": Range(1, 4, integer=True)}]}
    write("optuna", made_up(*LATE.networks), path := tmp_path / name)
    for _ in range(2):
        write("optuna", made_up(*networks, spaces=spaces, earlier_spaces=earlier), path)
    trials = studies(path)["digits-net"].trials
    assert [trial.params for trial in trials] == [
        {RATE: 0.01, "filters": "[8, 16]"},
        {RATE: 0.01, "filters": "[8, 16]", "depth": 3},
        {RATE: 0.01, "filters": "[8, 16]"},
        {RATE: 0.5, "filters": "[32]"},
    ]
    bounds = {
        (trial.distributions[RATE].low, trial.distributions[RATE].high) for trial in trials[:2]
    }
    assert bounds == {(0.001, 0.1)}
    assert (trials[3].distributions[RATE].low, trials[3].distributions[RATE].high) == (0.1, 1.0)
    choices = {trial.distributions["filters"].choices for trial in trials}
    assert choices == {("[32]", "[8]", "[8, 16]")}


@FORMS
def test_optuna_dimension_may_change_its_kind(tmp_path, name):
    first, pruned, failed, last, plain = LATE.networks
    networks = (first, pruned, failed, replace(last, drawn={RATE: 0.5, "filters": 4}), plain)
    spaces = {"net": {RATE: (0.5, 0.7), "filters": Range(1, 8, integer=True)}}
    write(
        "optuna",
        made_up(*networks, spaces=spaces, earlier_spaces={"net": [SPACE]}),
        path := tmp_path / name,
    )
    trials = studies(path)["digits-net"].trials
    assert [trial.params for trial in trials] == [{RATE: 0.01}] * 3 + [{RATE: 0.5, "filters": 4}]
    assert trials[3].distributions[RATE].choices == (0.5, 0.7, 0.01)


@FORMS
def test_optuna_range_is_widened_for_values_of_users(tmp_path, name):
    cloned = replace(LATE.networks[0], drawn={RATE: 0.5, "filters": [8]})
    write("optuna", made_up(cloned, *LATE.networks[1:]), path := tmp_path / name)
    first, second, *_ = studies(path)["digits-net"].trials
    assert first.params[RATE] == 0.5
    assert (first.distributions[RATE].low, first.distributions[RATE].high) == (0.001, 0.5)
    assert second.distributions[RATE].high == 0.1


@pytest.mark.long
def test_optuna_study_spans_a_changed_search(searched, tmp_path):
    text = searched.path.read_text()
    changed = text.replace("high: 0.1", "high: 0.01").replace("max_trials: 5", "max_trials: 8")
    assert changed != text
    searched.path.write_text(changed)
    assert searched.launch() == 0
    run, path = searched.folder / "run", tmp_path / "studies.db"
    assert main(["export", str(run), "--optuna", str(path)]) == 0
    trials = studies(path)["ensemble-net"].trials
    rows = {row.name: row for row in read_results(run)}
    assert {trial.user_attrs["network"]: trial.params[RATE] for trial in trials} == {
        name: row.drawn[RATE] for name, row in rows.items() if name != "plain"
    }
    highs = {trial.distributions[RATE].high for trial in trials}
    assert highs == {0.1, 0.01}


@FORMS
def test_optuna_trials_lack_unused_parameters(tmp_path, name):
    space = {
        "filters": ([8], [8, 16]),
        "depth": Range(1, 8, integer=True, step=2, when={"filters": [[8]]}),
        "dropout": Range(0, 0.5, step=0.1, when={"depth": {"least": 3}}),
    }
    drawn = [{"filters": [8], "depth": 3, "dropout": 0.3}, {"filters": [8, 16]}]
    networks = [
        replace(network, drawn=values)
        for network, values in zip(LATE.networks, drawn, strict=False)
    ]
    write("optuna", made_up(*networks, spaces={"net": space}), path := tmp_path / name)
    first, second = studies(path)["digits-net"].trials
    assert first.params == {"filters": "[8]", "depth": 3, "dropout": 0.3}
    assert second.params == {"filters": "[8, 16]"}
    assert first.distributions["depth"] == optuna.distributions.IntDistribution(1, 7, step=2)
    assert first.distributions["dropout"] == optuna.distributions.FloatDistribution(
        0, 0.5, step=0.1
    )


@pytest.mark.long
def test_optuna_studies_equal_tables_after_resume(searched, tmp_path, capsys):
    command = [
        "export",
        str(searched.folder / "run"),
        "--optuna",
        str(path := tmp_path / "studies.log"),
    ]
    assert main(command) == 0
    first = studies(path)["ensemble-net"].trials
    assert searched.launch() == 0
    assert main(command) == main(command) == 0
    assert f"optuna-dashboard {path}" in capsys.readouterr().out
    trials = {
        trial.user_attrs["network"]: trial
        for study in studies(path).values()
        for trial in study.trials
    }
    rows = {row.name: row for row in read_results(searched.folder / "run")}
    assert sum(len(study.trials) for study in studies(path).values()) == len(rows) == 6
    assert len(first) <= 5
    states = {"finished": "COMPLETE", "pruned": "PRUNED"}
    assert {name: trial.state.name for name, trial in trials.items()} == {
        name: states[row.status] for name, row in rows.items()
    }
    assert {name: trial.params for name, trial in trials.items()} == {
        name: row.drawn for name, row in rows.items()
    }
    reported = {
        (name, epoch): value
        for name, trial in trials.items()
        for epoch, value in trial.intermediate_values.items()
    }
    assert reported == {
        (row.network, row.epoch): row.val_accuracy for row in read_history(searched.folder / "run")
    }


def test_optuna_dashboard_shows_the_studies(tmp_path):
    dashboard = pytest.importorskip("optuna_dashboard", reason="make test-track has it")
    write("optuna", EARLY, path := tmp_path / "studies.log")
    write("optuna", LATE, path)
    app, responses = dashboard.wsgi(storage_of(path)), []

    def get(url):
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": url,
            "QUERY_STRING": "",
            "SERVER_NAME": "x",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
        }
        body = b"".join(app(environ, lambda status, headers, error=None: responses.append(status)))
        return json.loads(body)

    names = {
        study["study_name"]: study["study_id"] for study in get("/api/studies")["study_summaries"]
    }
    assert sorted(names) == ["digits", "digits-net"]
    trials = get(f"/api/studies/{names['digits-net']}")["trials"]
    assert [trial["state"] for trial in trials] == ["Complete", "Pruned", "Fail", "Complete"]
    assert [len(trial["intermediate_values"]) for trial in trials] == [4, 2, 0, 3]
    assert responses == ["200 OK"] * 2


@pytest.mark.parametrize("name", ["studies.log", "my 100% studies.db"])
def test_printed_dashboard_command_serves_the_studies(tmp_path, name):
    pytest.importorskip("optuna_dashboard", reason="make test-track has it")
    write("optuna", LATE, path := tmp_path / name)
    program, *arguments = shlex.split(TRACKERS["optuna"].command(path))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [Path(sys.executable).with_name(program), *arguments, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    with urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=30) as answer:
                        summaries = json.load(answer)["study_summaries"]
                    break
                except URLError:
                    assert server.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.1)
        finally:
            server.terminate()
    assert sorted(summary["study_name"] for summary in summaries) == ["digits", "digits-net"]


@FORMS
def test_optuna_choices_distinguish_types(tmp_path, name):
    choices = (True, 1, 1.0)
    networks = [
        replace(EARLY.networks[0], name=f"net-{number}", drawn={"a": choice})
        for number, choice in enumerate(choices)
    ]
    write("optuna", made_up(*networks, spaces={"net": {"a": choices}}), path := tmp_path / name)
    trials = studies(path)["digits-net"].trials
    assert [trial.params["a"] for trial in trials] == ["true", "1", "1.0"]
