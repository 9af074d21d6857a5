"""Tests of ``fleet simulate ensemble`` and ``fleet simulate draw``."""

import errno
import json
import os
from functools import partial

import pytest

from scheduler.ensemble.policies import POLICIES

RATES = {
    "samples_per_epoch": 100,
    "gpus_per_node": 2,
    "models": [
        {"name": "a", "rates": [10.0, 19.0], "epochs": 3},
        {"name": "b", "rates": [20.0], "epochs": 2},
        {"name": "c", "rates": [5.0, 9.0], "epochs": 1},
    ],
}


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(RATES))
    return path


@pytest.fixture
def simulate(fleet, rates):
    return partial(fleet, "simulate", "ensemble", rates)


@pytest.fixture
def refuses(refused, rates):
    return partial(refused, "simulate", "ensemble", rates)


def test_json_has_the_agreed_keys_and_values(simulate):
    status, result, _ = simulate("--gpus", 1, "--policy", "baseline", "--json")
    assert status == 0
    assert list(result) == [
        "policy",
        "makespan_s",
        "lower_bound_s",
        "first_signal_s",
        "waiting_s_per_gpu",
        "regroup_s_per_gpu",
        "scheduling_s",
        "checkpoint_s",
        "replans",
        "rounds",
    ]
    assert (
        result["makespan_s"],
        result["lower_bound_s"],
        result["waiting_s_per_gpu"],
    ) == pytest.approx((60, 60, 0))
    assert {round(entry["end_s"] - entry["start_s"]) for entry in result["rounds"]} == {30, 10, 20}
    assert list(result["rounds"][0]["members"][0]) == ["name", "gpus", "devices", "epochs"]


def test_policy_all_simulates_every_policy(simulate):
    _, result, _ = simulate("--gpus", 4, "--policy", "all", "--json")
    spans = {entry["policy"]: entry["makespan_s"] for entry in result["policies"]}
    assert list(spans) == list(POLICIES)
    status, text, _ = simulate("--gpus", 4, "--policy", "all")
    assert status == 0
    assert all(policy in text for policy in spans)


def test_default_costs_depend_on_the_policy(simulate):
    _, free, _ = simulate("--gpus", 2, "--policy", "adaptive", "--regroup-s", 0, "--json")
    _, paid, _ = simulate("--gpus", 2, "--policy", "adaptive", "--json")
    assert free["makespan_s"] < paid["makespan_s"] <= free["makespan_s"] + 5 * 4
    _, paid, _ = simulate("--gpus", 2, "--policy", "global", "--json")
    assert paid["scheduling_s"] == pytest.approx(0.46 * len(paid["rounds"]))


def test_slow_stream_limits_networks(simulate):
    spans = {
        stream: simulate("--gpus", 3, "--policy", "baseline", "--stream", stream, "--json")[1][
            "makespan_s"
        ]
        for stream in ("free", "lockstep", "2", "ring:50%", "ring:0.5")
    }
    assert spans["free"] == min(spans.values())
    assert spans["ring:50%"] == spans["ring:0.5"]
    assert spans["free"] < spans["lockstep"]
    slow = simulate("--gpus", 3, "--policy", "baseline", "--stream-rate", 1, "--json")[1]
    assert slow["makespan_s"] == pytest.approx(300.0)


def test_draw_epochs_and_rate_error_depend_on_the_seed(simulate):
    spans = {
        simulate("--gpus", 2, "--policy", "adaptive", "--draw-epochs", "--seed", seed, "--json")[1][
            "makespan_s"
        ]
        for seed in (1, 1, 2, 3, 4)
    }
    assert 1 < len(spans) < 5
    assert simulate("--gpus", 2, "--policy", "adaptive", "--rate-error", "5%")[0] == 0


def test_networks_per_gpu_simulates_shared_gpus(simulate):
    def span(*more):
        return simulate("--gpus", 1, "--policy", "adaptive", "--regroup-s", 0, *more, "--json")[1][
            "makespan_s"
        ]

    alone, shared = span(), span("--networks-per-gpu", "auto", "--sharing", "1,1.5,1.8")
    assert alone / 1.8 <= shared < alone / 1.4
    assert span("--networks-per-gpu", "auto", "--sharing", "1,1") == alone  # as many as pay off
    assert (
        span("--networks-per-gpu", 3, "--sharing", "1,0.5,0.4") > 1.5 * alone
    )  # as many as requested


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["--networks-per-gpu", "auto"],
            "--networks-per-gpu: {} has no throughputs of networks that share a GPU",
        ),
        (["--networks-per-gpu", "0"], "'0' should be a whole number from 1 to 64"),
        (["--networks-per-gpu", "auto", "--sharing", "2,3"], "'2,3' should begin with 1"),
        (["--sharing", "1,2"], "--sharing: with --networks-per-gpu 1 no GPU is shared"),
    ],
)
def test_networks_per_gpu_needs_throughputs(refuses, rates, values, message):
    assert message.format(rates) in refuses("--gpus", 1, "--policy", "adaptive", *values)


def test_profile_online_learns_rates(simulate):
    online = ["--gpus", 2, "--policy", "all", "--profile", "online", "--json"]
    _, exact, _ = simulate("--gpus", 2, "--policy", "all", "--json")
    _, learned, _ = simulate(*online, "--rate-error", "5%", "--prior-factor", 3, "--seed", 1)
    spans = [
        {entry["policy"]: entry["makespan_s"] for entry in result["policies"]}
        for result in (exact, learned)
    ]
    assert spans[0]["baseline"] == spans[1]["baseline"]  # it reads no rates
    assert spans[0]["adaptive"] != spans[1]["adaptive"]
    status, text, _ = simulate("--gpus", 2, "--policy", "adaptive", "--profile", "online")
    assert status == 0
    assert "plans after new rates" in text


def test_plot_draws_a_gantt_chart(simulate, refuses, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "gantt.png"
    assert simulate("--gpus", 2, "--policy", "global", "--plot", file)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert "gantt.nothing" in refuses(
        "--gpus", 2, "--policy", "global", "--plot", tmp_path / "gantt.nothing"
    )
    assert "--plot draws one policy" in refuses("--gpus", 1, "--policy", "all", "--plot", file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", 0], "--gpus: '0' should be a whole number from 1"),
        (
            ["--gpus", 1, "--gpus-per-node", 4],
            "gpus_per_node is 4, but the whole cluster has 1 GPU",
        ),
        (["--gpus", 1, "--stream", "fast"], "--stream: 'fast' should be free, lockstep, a number"),
        (
            ["--gpus", 1, "--stream", "ring:2"],
            "--stream: 'ring:2' should have a window above 0% and at most 100%",
        ),
        (
            ["--gpus", 1, "--pace-tolerance", "20"],
            "--pace-tolerance: '20' should be written like 15%",
        ),
        (["--gpus", 1, "--stream-rate", 0], "--stream-rate: '0' should be a number above 0"),
        (["--gpus", 1, "--checkpoint-s", -1], "--checkpoint-s: '-1' should be a number from 0"),
        (["--gpus", 1, "--rate-error", "much"], "--rate-error: 'much' should be written like 15%"),
        (["--gpus", 1, "--rate-error=-1%"], "--rate-error: '-1%' should be written like"),
        (["--gpus", 1, "--profile", "never"], "--profile: invalid choice: 'never'"),
        (
            ["--gpus", 1, "--profile", "online", "--prior-factor", 0.5],
            "--prior-factor: '0.5' should be a number from 1",
        ),
        (["--gpus", 1, "--prior-factor", 2], "--prior-factor: only --profile online guesses rates"),
    ],
)
def test_bad_options_are_one_line_and_status_2(refuses, options, message):
    assert message in refuses("--policy", "baseline", *options)


def test_literal_assigns_gpus_that_slow_a_network_down(simulate, rates):
    rates.write_text(
        json.dumps({**RATES, "models": [{"name": "a", "rates": [10.0, 8.0], "epochs": 1}]})
    )
    spans = [
        simulate(
            "--policy",
            "global",
            "--gpus",
            2,
            "--pace-tolerance",
            "20/s",
            "--checkpoint-s",
            0,
            "--scheduling-s",
            0,
            *letter,
            "--json",
        )[1]["makespan_s"]
        for letter in ([], ["--literal"])
    ]
    assert spans == pytest.approx([100 / 10, 100 / 8])


def test_options_without_effect_are_refused(simulate, refuses):
    for options in (
        ["--policy", "homogeneous"],
        ["--policy", "global", "--rate-error", "1%"],
        ["--policy", "all", "--round-end-share", 0.5, "--pace-tolerance", "5%", "--literal"],
    ):
        assert simulate("--gpus", 2, "--seed", 1, *options)[0] == 0
    assert refuses("--gpus", 2, "--seed", 1, "--policy", "global") == (
        "fleet simulate ensemble: --seed: global does not read it: it reads --pace-tolerance, "
        "--round-end-share, --literal\n"
    )


OWN = """
from scheduler.base import Member, Round
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.policies import Policy

def first(rates, progress, cluster, options):
    left = [network.name for network in rates.models if network.name not in progress.finished]
    return Round(tuple(Member(name, cluster.devices[:1]) for name in left[:1]))

def never(rates, progress, cluster, options):
    return Round()

def every(rates, progress, cluster, options):
    return Round(tuple(Member(network.name, cluster.devices[:1]) for network in rates.models))

ONE_AFTER_ANOTHER = Policy("one after another", first, reads=frozenset(),
costs=Costs(regroup_s=2.0))
"""


@pytest.fixture
def custom_policy(tmp_path, monkeypatch):
    (tmp_path / "simulated_policy.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_custom_policy_is_simulated_with_its_costs(custom_policy, simulate):
    status, result, _ = simulate(
        "--gpus", 2, "--policy", "simulated_policy:ONE_AFTER_ANOTHER", "--json"
    )
    assert status == 0
    assert result["policy"] == "simulated_policy:ONE_AFTER_ANOTHER"
    assert result["makespan_s"] == pytest.approx(3 * 10 + 2 * 5 + 1 * 20 + 3 * 2)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (
            "simulated_policy:never",
            [],
            "the policy simulated_policy:never never starts a, b, c",
        ),
        (
            "simulated_policy:every",
            [],
            "the policy simulated_policy:every assigns the devices [0, 0, 0]",
        ),
        (
            "simulated_policy:ONE_AFTER_ANOTHER",
            ["--round-end-share", 0.5],
            "--round-end-share: simulated_policy:ONE_AFTER_ANOTHER does not",
        ),
        ("simulated_policy:OWN", [], "module 'simulated_policy' has no 'OWN'"),
    ],
)
def test_invalid_custom_policy_is_refused_in_one_line(
    custom_policy, refuses, policy, options, message
):
    assert message in refuses("--gpus", 2, "--policy", policy, *options)


def test_network_without_epochs_is_refused(refuses, rates):
    rates.write_text(json.dumps({**RATES, "models": [{"name": "a", "rates": [1.0]}]}))
    assert refuses("--gpus", 1, "--policy", "local") == (
        "fleet simulate ensemble: a has no epochs; a simulation needs them for every network\n"
    )


def test_drawn_ensemble_can_be_planned_and_simulated(fleet, tmp_path):
    file = tmp_path / "drawn.json"
    assert fleet("simulate", "draw", "--networks", 5, "--seed", 3, "--out", file)[0] == 0
    assert fleet("plan", "--rates", file, "--gpus", 8)[0] == 0
    status, result, _ = fleet(
        "simulate", "ensemble", file, "--gpus", 8, "--policy", "adaptive", "--json"
    )
    assert status == 0
    assert result["makespan_s"] >= result["lower_bound_s"]


def test_draw_converts_a_table_to_standard_output(fleet, tmp_path):
    file = tmp_path / "table.json"
    file.write_text(
        json.dumps({"images_per_epoch": 100, "dnns": [{"id": 7, "r": [10.0], "epochs": 2}]})
    )
    status, result, _ = fleet("simulate", "draw", "--convert", file)
    assert status == 0
    assert result == {
        "samples_per_epoch": 100,
        "gpus_per_node": 4,
        "models": [{"name": "m7", "rates": [10.0], "epochs": 2}],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--networks", 0], "--networks: '0' should be a whole number from 1"),
        (["--convert", "nowhere.json"], f"nowhere.json: {os.strerror(errno.ENOENT)}"),
        (["--out", "FILE/x.json"], "--out"),
    ],
)
def test_draw_refuses_invalid_files_in_one_line(refused, tmp_path, options, message):
    (tmp_path / "FILE").touch()  # a file instead of a folder
    assert message in refused(
        "simulate",
        "draw",
        *(str(option).replace("FILE", str(tmp_path / "FILE")) for option in options),
    )
