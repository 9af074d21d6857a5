"""The Python API."""

import sys
from dataclasses import replace

import pytest
import yaml

from fleet import api
from fleet.api import Document, ModelEntry, Optimizer, Train, load, mpirun, run, write_spec
from fleet.domain.events import LaunchEnded
from fleet.errors import ExitStatus, InfrastructureError, SpecError, UserError
from fleet.spec.dimensions import Range
from fleet.storage.event_log import EventLog
from fleet.storage.paths import RunPaths
from tests.refusals import refused

DOCUMENT = Document(
    name="search",
    seed=3,
    train=Train(optimizer=Optimizer(name="adam", learning_rate=0.001)),
    models=(
        ModelEntry(family="cnn", args={"filters": [8, 16]}),
        ModelEntry(
            family="resnet", count=3, space={"width": [8, 16, 32], "dropout": Range(0.0, 0.5)}
        ),
    ),
)


def test_write_spec_writes_yaml_that_parses_to_the_same_networks(tmp_path):
    path = tmp_path / "deep" / "search.yaml"
    spec = write_spec(DOCUMENT, path)
    assert [network.name for network in spec.networks] == [
        "cnn",
        "resnet-0",
        "resnet-1",
        "resnet-2",
    ]
    assert load(path) == spec


def test_write_spec_accepts_a_mapping(tmp_path):
    content = {"models": [{"family": "softmax"}], "data": {"validation": None}, "seed": 4}
    assert write_spec(content, tmp_path / "search.yaml") == load(tmp_path / "search.yaml")
    assert yaml.safe_load((tmp_path / "search.yaml").read_text()) == content


@pytest.mark.parametrize(
    "wrong", [replace(DOCUMENT, name="../x"), {"models": [{"family": "resnte"}]}, {"nmae": "x"}]
)
def test_write_spec_refuses_an_invalid_spec(tmp_path, wrong):
    (tmp_path / "search.yaml").write_text("old")
    with pytest.raises(SpecError):
        write_spec(wrong, tmp_path / "search.yaml")
    assert (tmp_path / "search.yaml").read_text() == "old"


def ends_with(status, *, end=None, log=None):
    """Return a launcher that logs an end of the run with status ``end``, and exits with another."""
    program = f"import sys; print(sys.argv[1:]); sys.exit({int(status)})"
    if end is not None:
        entry = f'{{"event": "end", "status": {int(end)}}}\\n'
        program = f"""open({str(log)!r}, "a").write('{entry}'); {program}"""
    return [sys.executable, "-c", program]


@pytest.fixture
def path(tmp_path):
    """Return the path of a spec with an earlier launch that has ended."""
    path = tmp_path / "spec.yaml"
    write_spec({"models": [{"family": "softmax"}], "output": str(tmp_path / "run")}, path)
    log = EventLog(RunPaths(tmp_path / "run").events)
    log.add(LaunchEnded(0))
    log.close()
    return path


@pytest.mark.parametrize("status", [ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE])
def test_run_returns_the_status_and_passes_arguments(status, path, tmp_path, capfd):
    ended = ends_with(status, end=status, log=RunPaths(tmp_path / "run").events)
    assert run(path, 3, "--fresh", launcher=ended) is status
    assert capfd.readouterr().out == f"['-m', 'fleet.run', '{path}', '--fresh']\n"


@pytest.mark.parametrize("status", [ExitStatus.OK, ExitStatus.RESUMABLE])
def test_run_without_logged_end_is_an_infrastructure_error(status, path):
    with refused(InfrastructureError, path, *(["status 75"] if status else [])):
        run(path, 3, launcher=ends_with(status))


def test_run_prefers_the_logged_status_to_the_launchers(path, tmp_path):
    ended = ends_with(1, end=ExitStatus.RESUMABLE, log=RunPaths(tmp_path / "run").events)
    assert run(path, 3, launcher=ended) is ExitStatus.RESUMABLE


def test_run_raises_invalid_specs_and_failures(path):
    with refused(SpecError, "spec.yaml"):
        run("spec.yaml", 3, launcher=ends_with(2))
    with refused(UserError, path):
        run(path, 3, launcher=ends_with(2))
    with refused(InfrastructureError, path, "status 7"):
        run(path, 3, launcher=ends_with(7))


def test_run_refuses_an_unknown_argument(path):
    with refused(UserError, "--typo"):
        run(path, 3, "--typo", launcher=ends_with(0))


def test_mpirun_is_found_next_to_python_or_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with refused(InfrastructureError, "mpirun"):
        mpirun(3)
    (tmp_path / "mpirun").touch()
    assert mpirun(3)[:3] == [str(tmp_path / "mpirun"), "-n", "3"]
    assert mpirun(3)[-1] == str(tmp_path / "python")


def test_api_exports_exist():
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
