"""Tests of ``fleet simulate idle-nodes``."""

import errno
import json
import os
from functools import partial

import pytest

EVENTS = "t_s,node,delta\n0,0,1\n0,1,1\n100,1,-1\n"
TRAINERS = {
    "curves": {
        "net": {"nodes": [0, 2], "samples_per_s": [0, 20]},
        "big": {"nodes": [0, 2], "samples_per_s": [0, 22]},
    },
    "jobs": [["net", 0, 5, 2, 1, 2, 1e9], ["big", 0, 5, 2, 1, 2, 1e9]],
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "idle.csv").write_text(EVENTS)
    (tmp_path / "trainers.json").write_text(json.dumps(TRAINERS))
    (tmp_path / "names.txt").write_text("n1\nn0\n")
    return tmp_path


@pytest.fixture
def words(files):
    return (
        "simulate",
        "idle-nodes",
        "--events",
        files / "idle.csv",
        "--trainers",
        files / "trainers.json",
    )


@pytest.fixture
def simulate(words, fleet):
    return partial(fleet, *words)


def test_json_has_the_agreed_keys_and_values(simulate):
    status, result, _ = simulate("--hours", 200 / 3600, "--max-parallel", 1, "--json")
    assert status == 0
    assert result.pop("wall_s") > 0
    assert result == {
        "efficiency": pytest.approx(2960 / 3000),
        "node_hours": pytest.approx(300 / 3600),
        "equivalent_nodes": pytest.approx(1.5),
        "preemption_cost_samples": 40.0,
        "rescale_cost_samples": 0.0,
        "completed": 0,
        "mean_trainer_hours": None,
        "events": 2,
    }


def test_text_output_is_a_table(simulate):
    status, out, _ = simulate()
    assert status == 0
    assert "efficiency" in out
    assert "trainers done (of 2)" in out


def cost(simulate, *options):
    status, numbers, _ = simulate("--hours", 1, "--json", *options)
    assert status == 0
    return numbers["preemption_cost_samples"]


def test_weight_moves_nodes_to_a_trainer(simulate):
    assert cost(simulate) == 2 * 22
    assert cost(simulate, "--weight", "net=2") == 2 * 20
    assert cost(simulate, "--rescale-factor", 10) == 20 * 22
    assert cost(simulate, "--policy", "equal") == 2 * 11  # one node each; the second one leaves


def test_objective_changes_the_allocation(simulate, files):
    document = json.loads(json.dumps(TRAINERS))
    document["curves"]["net"]["objective"] = [0, 99]
    (files / "trainers.json").write_text(json.dumps(document))
    assert cost(simulate) == 2 * 20
    assert cost(simulate, "--objective", "samples") == 2 * 22


def test_nodes_selects_a_range(simulate):
    _, result, _ = simulate("--nodes", "0:1", "--hours", 1, "--json")
    assert (result["node_hours"], result["events"]) == (1, 1)


def test_placement_by_name_changes_the_lost_node(simulate, files):
    """Node 1 leaves: the second trainer has it by index, the first one by name."""
    equal = ("--policy", "equal")
    assert cost(simulate, *equal, "--placement", "index") == 2 * 11
    assert cost(simulate, *equal, "--node-names", files / "names.txt") == 2 * 10
    assert (
        cost(simulate, *equal, "--node-names", files / "names.txt", "--placement", "index")
        == 2 * 11
    )


def test_default_file_of_node_names_is_read(simulate, files):
    import gzip

    (files / "summit_node_names.txt.gz").write_bytes(gzip.compress(b"n1\nn0\n"))
    assert cost(simulate, "--policy", "equal") == 2 * 10


def test_completions_are_events_adds_decisions(simulate, files):
    jobs = [["net", 0, 5, 2, 1, 2, 200], ["net", 0, 5, 2, 1, 2, 200]]
    (files / "trainers.json").write_text(json.dumps({**TRAINERS, "jobs": jobs}))
    options = ("--hours", 0.02, "--max-parallel", 1, "--json")
    assert (
        simulate(*options)[1]["completed"] == 1
    )  # at 10 s; the second starts with the change at 100 s
    assert simulate(*options, "--completions-are-events")[1]["completed"] == 2


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(simulate, files, suffix):
    pytest.importorskip("matplotlib")
    assert simulate("--plot", files / f"replay.{suffix}")[0] == 0
    assert (files / f"replay.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--nodes", "3"], "--nodes: '3' should be A:B"),
        (["--nodes", "a:b"], "--nodes: 'a:b' should be A:B"),
        (["--nodes", "1:1"], "nodes 1:1 select none of the nodes 0:2"),
        (["--hours", "-1"], "--hours: '-1' should be a number above 0"),
        (["--hours", "nan"], "--hours: 'nan' should be a number"),
        (["--horizon", "-5"], "--horizon: '-5' should be a number from 0"),
        (["--max-parallel", "0"], "--max-parallel: '0' should be a whole number from 1"),
        (["--weight", "net"], "--weight: 'net' should be CURVE=NUMBER"),
        (["--weight", "vgg=2"], "a weight for the unknown network 'vgg'"),
        (["--rescale-factor", "-1"], "--rescale-factor: '-1' should be a number from 0"),
        (["--placement", "order"], "--placement order needs --node-names FILE"),
        (["--node-names", "nowhere.txt"], f"nowhere.txt: {os.strerror(errno.ENOENT)}"),
        (["--plot", "replay.nonsense"], "--plot: replay.nonsense: "),
    ],
)
def test_invalid_option_is_one_line_and_status_2(refused, words, options, complaint):
    line = refused(*words, *options)
    assert line.startswith("fleet simulate idle-nodes: ")
    assert complaint in line


def test_file_with_too_few_node_names_is_refused(refused, words, files):
    (files / "names.txt").write_text("n1\n")
    assert "names.txt: 1 names, but node 1 is in" in refused(
        *words, "--node-names", files / "names.txt"
    )


@pytest.mark.parametrize("samples", [(0, 0), (0, 1e9), (5e-324, 0)])
def test_trainers_without_work_complete_immediately(files, simulate, samples):
    trainers = {
        **TRAINERS,
        "jobs": [[*job[:-1], total] for job, total in zip(TRAINERS["jobs"], samples, strict=True)],
    }
    (files / "trainers.json").write_text(json.dumps(trainers))
    status, result, _ = simulate("--json")
    assert status == 0
    assert result["completed"] == sum(total < 1 for total in samples)
    assert (result["efficiency"] is None) == (max(samples) < 1)
