"""Tests of ``fleet skip``."""

import pytest

from fleet.__main__ import main
from fleet.domain.run import RunState
from fleet.storage.paths import RunPaths
from fleet.storage.recovery import restore_network
from fleet.storage.results import Results, Status
from fleet.storage.skipped_networks import read_skipped
from tests.fleet.histories import spec

NETWORKS = [{"family": "softmax", "name": name} for name in ("a", "b")]


@pytest.fixture
def run(tmp_path):
    paths = RunPaths(tmp_path)
    paths.marker.touch()
    paths.spec.write_text(
        "models: [{family: softmax, name: a}, {family: softmax, name: b}]\n"
        "data: {source: npz, path: none.npz}\nresources: {engine: numpy}\n"
    )
    return paths


def test_skip_excludes_networks_until_undone(run, capsys):
    assert main(["skip", str(run.root), "a", "b"]) == 0
    assert main(["skip", str(run.root), "b", "--undo"]) == 0
    assert read_skipped(run) == {"a"}
    assert capsys.readouterr().out.splitlines() == [
        "the next launches skip a, b",
        "the next launches train b",
    ]
    assert main(["skip", str(run.root), "a", "--undo"]) == 0
    assert not run.skipped.exists()


def test_skip_refuses_unknown_networks(run, capsys):
    assert main(["skip", str(run.root), "c"]) == 2
    assert "'c'; it has a, b" in capsys.readouterr().err
    assert not run.skipped.exists()


def test_skipped_network_keeps_a_row(tmp_path):
    content, paths = spec(*NETWORKS), RunPaths(tmp_path)
    results = Results(content, paths, RunState(content), skipped=frozenset({"a"}))
    for network in content.networks:
        results.run.set_status(network.name, restore_network(results, network)[0])
    assert {row.name: row.status for row in results.rows()} == {
        "a": Status.SKIPPED,
        "b": Status.WAITING,
    }
