"""User-defined policies, by import path."""

import pickle
import sys

import pytest

from fleet.errors import UserError
from fleet.plugins import find_policy, load_object
from scheduler.base import Cluster, Member, Network, Options, Progress, RateTable, Round
from scheduler.ensemble.policies import POLICIES

RATES = RateTable(100, 2, (Network("a", (1.0,)), Network("b", (1.0,))))
MODULE = """
from scheduler.base import Member, Round
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.policies import Policy

def alphabetical(rates, progress, cluster, options):
    left = sorted(network.name for network in rates.models if network.name not in progress.finished)
    return Round(tuple(Member(name, (device,)) for name, device in zip(left, cluster.devices)))

ROW = Policy("by name", alphabetical, reads=frozenset(), costs=Costs(regroup_s=1.0))

def raises(rates, progress, cluster, options):
    raise KeyError("a\\nb")

def wrong(rates, progress, cluster, options):
    return Round((Member("a", (7,)),))

def three(rates, progress, cluster): ...

class Class:
    def __init__(self, rates, progress, cluster, options): ...

number = 3
nothing = None
"""


@pytest.fixture(autouse=True)
def custom_module(tmp_path, monkeypatch):
    (tmp_path / "own_policies.py").write_text(MODULE)
    (tmp_path / "broken_policies.py").write_text("import nothing_of_this_name\n")
    monkeypatch.delitem(sys.modules, "own_policies", raising=False)  # of another test's folder
    monkeypatch.syspath_prepend(tmp_path)


def ask(name):
    return find_policy(name).decide(RATES, Progress(), Cluster.of(2, 2), Options())


def test_find_policy_returns_built_in_policies():
    assert find_policy("local") is POLICIES["local"]


def test_find_policy_makes_a_policy_of_a_function():
    policy = find_policy("own_policies:alphabetical")
    assert policy.name == "own_policies:alphabetical"
    assert policy.reads == {"alpha", "delta", "peak_limited", "seed"}
    assert (policy.needs_rates, policy.own_samples) == (True, False)
    assert ask(policy.name) == Round((Member("a", (0,)), Member("b", (1,))))


def test_find_policy_names_a_custom_policy_by_its_path():
    policy = find_policy("own_policies:ROW")
    assert (policy.name, policy.reads, policy.costs.regroup_s) == (
        "own_policies:ROW",
        frozenset(),
        1.0,
    )
    assert ask("own_policies:ROW").counts == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "best",
            "no policy is named 'best'; use one of adaptive, baseline, elastic, global, "
            "homogeneous, local, or an import path",
        ),
        ("own_policies:", "policy 'own_policies:' is not an import path module:policy"),
        (
            "no_such_module:policy",
            "policy 'no_such_module:policy': cannot import 'no_such_module': ModuleNotFoundError",
        ),
        ("broken_policies:policy", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("own_policies:other", "module 'own_policies' has no 'other'"),
        ("own_policies:nothing", "module 'own_policies' has no 'nothing'"),
        (
            "own_policies:number",
            "policy 'own_policies:number' is of type int; it should be a Policy, or a function of",
        ),
        (
            "own_policies:Class",
            "policy 'own_policies:Class' is of type type; it should be a Policy, or a function of",
        ),
        (
            "own_policies:three",
            "is the function three(rates, progress, cluster); it should be a Policy, or a function "
            "of",
        ),
    ],
)
def test_find_policy_refuses_other_objects_in_one_line(name, message):
    with pytest.raises(UserError) as refusal:
        find_policy(name)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_policies:raises", r"the policy own_policies:raises failed: KeyError: 'a\nb'"),
        (
            "own_policies:wrong",
            "the policy own_policies:wrong assigns the devices [7]; it can assign each of [0, 1] "
            "once",
        ),
    ],
)
def test_policy_that_fails_or_answers_wrongly_is_named(name, message):
    with pytest.raises(UserError) as refusal:
        ask(name)
    assert str(refusal.value) == message


def test_load_object_returns_any_type():
    assert load_object("own_policies:number", "number") == 3


def test_spec_with_a_custom_policy_can_be_pickled():
    from fleet.spec import parse

    spec = parse({"models": [{"family": "softmax"}], "schedule": {"policy": "own_policies:ROW"}})
    assert spec.policy.reads == frozenset()
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_load_object_suggests_a_close_name():
    with pytest.raises(UserError, match=r"has no 'nunber' \(did you mean number\?\)"):
        load_object("own_policies:nunber", "number")
