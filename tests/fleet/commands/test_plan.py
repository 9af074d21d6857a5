"""Tests of ``fleet plan``."""

import json
import time
from functools import partial

import pytest

from scheduler.ensemble.policies import POLICIES

RATES = {
    "samples_per_epoch": 100,
    "gpus_per_node": 4,
    "models": [
        {"name": "fast", "rates": [40.0, 78.0, 110.0, 140.0]},
        {"name": "slow", "rates": [20.0, 39.0, 57.0, 75.0]},
        {"name": "tiny", "rates": [5.0, 4.0]},
    ],
}
SPEC = """
models:
  - {family: softmax, name: fast, gpus: [2, 3]}
  - {family: softmax, name: slow}
data: {source: "builtin:digits"}
schedule: {policy: global, pace_tolerance: 50%}
resources: {engine: numpy}
"""


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(RATES))
    return path


@pytest.fixture
def plan(fleet):
    return partial(fleet, "plan")


def test_json_has_the_agreed_keys_and_values(plan, rates):
    status, result, _ = plan(
        "--rates", rates, "--gpus", 4, "--gpus-per-node", 4, "--policy", "global", "--json"
    )
    assert status == 0
    assert result == {
        "members": [
            {
                "name": name,
                "gpus": gpus,
                "nodes": 1,
                "devices": member["devices"],
                "samples_per_s": member["samples_per_s"],
            }
            for member, name, gpus in zip(result["members"], ("fast", "slow"), (1, 3), strict=True)
        ],
        "idle_gpus": 0,
        "placement_score": pytest.approx(1 + 1 / 3),
    }
    assert sorted(result["members"][0]["devices"] + result["members"][1]["devices"]) == [0, 1, 2, 3]


def test_plan_lets_groups_lie_as_they_train_fastest(plan, tmp_path):
    """On three nodes of two GPUs one network is faster on a node, one on several."""
    fast, slow = [10] + [20] * 5, [10] + [12] * 5
    models = [
        {"name": "bound", "rates": fast, "spread_rates": slow},
        {"name": "crowded", "rates": slow, "spread_rates": fast},
    ]
    path = tmp_path / "spread.json"
    path.write_text(json.dumps({"samples_per_epoch": 100, "gpus_per_node": 2, "models": models}))
    _, result, _ = plan("--rates", path, "--gpus", 6, "--policy", "adaptive", "--json")
    assert [
        (member["name"], member["gpus"], member["nodes"], member["samples_per_s"])
        for member in result["members"]
    ] == [("bound", 2, 1, 20.0), ("crowded", 2, 2, 20.0)]


def test_delta_may_be_absolute_and_literal_wastes_gpus(plan, rates):
    only_tiny = {**RATES, "models": RATES["models"][2:]}
    rates.write_text(json.dumps(only_tiny))
    _, result, _ = plan("--rates", rates, "--gpus", 4, "--pace-tolerance", "20/s", "--json")
    assert (result["members"][0]["gpus"], result["idle_gpus"]) == (1, 3)
    _, result, _ = plan(
        "--rates", rates, "--gpus", 4, "--pace-tolerance", "20/s", "--literal", "--json"
    )
    assert (result["members"][0]["gpus"], result["idle_gpus"]) == (4, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_plan_prints_groups_under_every_policy(plan, rates, policy):
    status, text, _ = plan("--rates", rates, "--gpus", 8, "--policy", policy)
    assert status == 0
    assert f"{policy}: first round on 8 GPUs, 4 per node" in text
    assert "fast" in text
    assert "placement score" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", 0], "--gpus: '0' should be a whole number from 1"),
        (["--gpus", -2], "--gpus: '-2' should be a whole number from 1"),
        (
            ["--gpus", 2, "--gpus-per-node", 4],
            "gpus_per_node is 4, but the whole cluster has 2 GPUs",
        ),
        (
            ["--gpus", 2, "--gpus-per-node", 0],
            "--gpus-per-node: '0' should be a whole number from 1",
        ),
        (
            ["--gpus", 2, "--round-end-share", 1.5],
            "--round-end-share: '1.5' should be a share, at most 100%",
        ),
        (
            ["--gpus", 2, "--pace-tolerance", "near"],
            "--pace-tolerance: 'near' should be written like 15%",
        ),
        (
            ["--gpus", 2, "--pace-tolerance", "0.15"],
            "should be written like 15% (of the fastest rate) or 20/s (samples per second)",
        ),
        (
            ["--gpus", 2, "--pace-tolerance", 20],
            "should be written like 15% (of the fastest rate) or 20/s (samples per second)",
        ),
        (["--gpus", 2, "--seed", -1], "--seed: '-1' should be a whole number from 0"),
        (
            ["--gpus", 2, "--policy", "best"],
            "no policy is named 'best'; use one of adaptive, baseline, elastic, global",
        ),
        (
            ["--gpus", 2, "--policy", "nowhere:policy"],
            "policy 'nowhere:policy': cannot import 'nowhere'",
        ),
    ],
)
def test_bad_options_are_one_line_and_status_2(refused, rates, options, message):
    assert message in refused("plan", "--rates", rates, *options)


@pytest.mark.parametrize(
    ("policy", "option", "reads"),
    [
        ("global", ["--seed", 3], "--pace-tolerance, --round-end-share, --literal"),
        ("local", ["--round-end-share", 0.5], "--pace-tolerance, --literal"),
        (
            "adaptive",
            ["--literal"],
            "none of --pace-tolerance, --round-end-share, --literal, --seed",
        ),
        ("baseline", ["--pace-tolerance", "5%"], "--seed"),
    ],
)
def test_plan_refuses_options_that_the_policy_ignores(refused, rates, policy, option, reads):
    assert refused("plan", "--rates", rates, "--gpus", 2, "--policy", policy, *option) == (
        f"fleet plan: {option[0]}: {policy} does not read it: it reads {reads}\n"
    )


def test_plan_with_a_custom_policy(plan, rates, tmp_path, monkeypatch):
    (tmp_path / "planned_policy.py").write_text(
        "from scheduler.base import Member, Round\n"
        "def policy(rates, progress, cluster, options):\n"
        "    return Round((Member(rates.models[-1].name, cluster.devices[-1:]),))\n"
    )
    monkeypatch.chdir(tmp_path)
    status, text, _ = plan(
        "--rates", rates, "--gpus", 4, "--policy", "planned_policy:policy", "--round-end-share", 0.5
    )
    assert status == 0
    assert "planned_policy:policy: first round on 4 GPUs" in text
    assert "1 of 3 networks train now, 2 wait" in text


@pytest.mark.parametrize("wrong", [[], [0.0], [-1.0], [float("nan")], ["fast"], None])
def test_invalid_rates_are_one_line_and_status_2(refused, rates, wrong):
    rates.write_text(json.dumps({**RATES, "models": [{"name": "a", "rates": wrong}]}))
    assert "models[0].rates" in refused("plan", "--rates", rates, "--gpus", 2)


def test_literal_extrapolates_rates_as_the_paper_does(plan, tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(
        json.dumps(
            {
                "samples_per_epoch": 100,
                "gpus_per_node": 1,
                "models": [
                    {"name": "falls", "rates": [10, 12, 30]},
                    {"name": "b", "rates": [10, 19, 28]},
                ],
            }
        )
    )
    values = {}
    for words in ((), ("--literal",)):
        _, result, _ = plan(
            "--rates", path, "--gpus", 12, "--pace-tolerance", "100%", "--json", *words
        )
        values[words] = {member["name"]: member["gpus"] for member in result["members"]}
    assert values[()] != values["--literal",]


@pytest.mark.long_but_first
@pytest.mark.parametrize("policy", POLICIES)
def test_plan_of_a_million_gpus_is_fast(plan, tmp_path, policy):
    path = tmp_path / "large.json"
    path.write_text(
        json.dumps(
            {
                "samples_per_epoch": 100,
                "gpus_per_node": 4,
                "models": [
                    {"name": "peaks", "rates": [10, 19]},
                    {"name": "grows", "rates": [10, 20.5]},
                ],
            }
        )
    )
    started = time.process_time()
    status, out, _ = plan("--rates", path, "--gpus", 10**6, "--policy", policy)
    assert status == 0
    assert time.process_time() - started < 4  # 0.3 to 1 s on an idle machine; it was more than 12 s
    assert "first round on 1000000 GPUs" in out


def test_plan_reads_policy_and_bounds_from_the_spec(plan, rates, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    status, result, err = plan(spec, "--rates", rates, "--gpus", 4, "--json")
    assert (status, err) == (0, "")
    assert {member["name"]: member["gpus"] for member in result["members"]} == {
        "fast": 2,
        "slow": 2,
    }


def test_plan_without_rates_names_the_spec(refused, rates, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("name: slow", "name: other"))
    assert "give a spec, or a rates file with --rates" in refused("plan", "--gpus", 2)
    assert "are known yet" in refused("plan", spec, "--gpus", 4, "--json")
    assert "has no rates of other" in refused("plan", spec, "--rates", rates, "--gpus", 4)


SHARED = {**RATES, "sharing": [1.0, 1.7, 2.0, 2.01]}


@pytest.mark.parametrize(
    ("slots", "maximum", "waiting"), [(1, 1, 4), (2, 2, 2), (9, 3, 0), ("auto", 3, 0)]
)
def test_plan_reads_networks_per_gpu_from_the_spec(plan, rates, tmp_path, slots, maximum, waiting):
    rates.write_text(
        json.dumps(
            {**SHARED, "models": [{"name": f"n-{i}", "rates": [40.0, 78.0]} for i in range(6)]}
        )
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "models: [{family: softmax, name: n, grid: {train.batch.size: [4, 5, 6, 7, 8, 9]}}]\n"
        f"data: {{source: 'builtin:digits'}}\nresources: "
        f"{{engine: numpy, networks_per_gpu: {slots}}}\n"
    )
    _, result, _ = plan(spec, "--rates", rates, "--gpus", 2, "--gpus-per-node", 2, "--json")
    assert result.get("networks_per_gpu", 1) == maximum
    assert (6 - len(result["members"]), result["idle_gpus"]) == (waiting, 0)
    tenants = [member["devices"] for member in result["members"]]
    assert {tenants.count([gpu]) for gpu in (0, 1)} == {maximum}
    _, text, _ = plan(spec, "--rates", rates, "--gpus", 2, "--gpus-per-node", 2)
    assert (f"up to {maximum} networks on each" in text) == (maximum > 1)
    assert f" {40 * [1, 1.7, 2.0][maximum - 1] / maximum:.4g} " in text


@pytest.mark.parametrize(("at_once", "maximum"), [(1, 2), (5, 4), ("auto", 4)])
def test_plan_counts_slots_for_concurrent_trials_of_a_search(
    plan, rates, tmp_path, at_once, maximum
):
    rates.write_text(
        json.dumps(
            {**SHARED, "models": [{"name": f"n-{i}", "rates": [40.0, 78.0]} for i in range(2)]}
        )
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "models:\n- {family: softmax, name: n, grid: {train.batch.size: [4, 5]}}\n"
        "- {family: softmax, name: s, space: {train.batch.size: [4, 5, 6, 7, 8, 9]}, "
        f"search: {{sampler: random, max_trials: 6, max_concurrent: {at_once}}}}}\n"
        "data: {source: 'builtin:digits'}\nresources: {engine: numpy, networks_per_gpu: 9}\n"
    )
    _, result, _ = plan(spec, "--rates", rates, "--gpus", 2, "--gpus-per-node", 2, "--json")
    assert result["networks_per_gpu"] == maximum
