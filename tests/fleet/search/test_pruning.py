"""The pruners, compared with their definitions."""

import math
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import SpecError, UserError
from fleet.search.evidence import Evidence
from fleet.search.pruning import Halving, Median, NoPruning, make_pruner
from fleet.search.searcher import Verdict
from fleet.spec import parse
from fleet.spec.search import RULES, Prune, PruningRule, find_rule

GO_ON, PAUSE, STOP = Verdict
SCORE = st.one_of(st.integers(-3, 3).map(float), st.just(-math.inf))


def is_worse_than_the_median(score, remaining):
    return bool(remaining) and score < statistics.median(remaining)


@given(st.lists(SCORE, min_size=1, max_size=20), st.integers(1, 4), st.integers(1, 3))
def test_median_prunes_what_is_worse_than_the_median(scores, remaining, minimum):
    pruner = Median(Prune(min_epochs=minimum, min_trials=remaining), 9, 0)
    for number, score in enumerate(scores):
        for epochs in range(1, minimum):
            assert pruner.add(f"n{number}", epochs, score) is GO_ON
        is_bad = number >= remaining and is_worse_than_the_median(score, scores[:number])
        assert pruner.add(f"n{number}", minimum, score) is (STOP if is_bad else GO_ON)


@given(
    st.lists(SCORE, min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False)
)
def test_median_in_step_does_not_depend_on_order(scores, remaining, random):
    pruner = Median(Prune(min_trials=remaining, synchronous=True), 9, 0)
    order = list(enumerate(scores))
    for number, score in random.sample(order, len(order)):
        assert pruner.add(f"n{number}", 1, score) is PAUSE
    assert pruner.settle({"somebody"}) == ((), ())
    settled = pruner.settle(())
    bad = {
        f"n{number}"
        for number, score in order
        if len(scores) > remaining
        and is_worse_than_the_median(score, scores[:number] + scores[number + 1 :])
    }
    assert set(settled.stop) == bad
    assert set(settled.go_on) == {f"n{number}" for number, _ in order} - bad


def test_median_counts_repeated_epochs_once():
    pruner = Median(Prune(min_trials=1), 9, 0)
    pruner.add("a", 1, 5.0)
    pruner.add("a", 1, 0.0)
    assert pruner.add("b", 1, 1.0) is STOP
    assert pruner.add("c", 1, 3.0) is GO_ON  # the median of 5 and 1


# ---- hyperband ---------------------------------------------------------------------------------


def first_rungs(pruner, count=3000):
    return Counter(pruner.next_rung(f"net-{number}", 0) for number in range(count))


def test_hyperband_brackets_have_the_shares_of_the_paper():
    """81 epochs and factor 3: 81, 34, 15, 8 and 5 networks begin with 1, 3, 9, 27 and 81 epochs."""
    actual = first_rungs(make_pruner(Prune(rule="hyperband"), most_epochs=81, seed=0), count=14300)
    assert sorted(actual) == [1, 3, 9, 27, 81]
    for epochs, share in {1: 81, 3: 34, 9: 15, 27: 8, 81: 5}.items():
        assert actual[epochs] == pytest.approx(100 * share, rel=0.15)


def test_bracket_depends_on_name_and_seed_only():
    rule = Prune(rule="hyperband")
    assert first_rungs(make_pruner(rule, 27, 0)) == first_rungs(make_pruner(rule, 27, 0))
    assert first_rungs(make_pruner(rule, 27, 0)) != first_rungs(make_pruner(rule, 27, 1))


def test_hyperband_judges_each_bracket_separately():
    pruner = make_pruner(Prune(rule="hyperband", synchronous=True), most_epochs=3, seed=0)
    names = [f"net-{number}" for number in range(20)]
    early = [name for name in names if pruner.next_rung(name, 0) == 1]
    late = [name for name in names if pruner.next_rung(name, 0) == 3]
    assert early
    assert late
    for number, name in enumerate(early):
        assert pruner.add(name, 1, float(number)) is PAUSE
    settled = pruner.settle(late)  # which have not come to a rung yet
    assert set(settled.go_on) == set(early[-(len(early) // 3) :])


@pytest.mark.parametrize(("maximum", "count"), [(1, 1), (2, 1), (3, 2), (8, 2), (9, 3), (243, 6)])
def test_hyperband_has_as_many_brackets_as_fit(maximum, count):
    assert len(first_rungs(make_pruner(Prune(rule="hyperband"), maximum, 0), count=5000)) == count


# ---- all rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("auto", Evidence),
        ("asha", Halving),
        ("hyperband", Halving),
        ("median", Median),
        ("searcher", NoPruning),
        ("none", NoPruning),
    ],
)
def test_make_pruner_returns_the_pruner_of_a_rule(rule, kind):
    assert isinstance(make_pruner(Prune(rule=rule), 9, 0), kind)


@pytest.mark.parametrize("rule", ["searcher", "none"])
def test_no_pruning_continues_all_networks(rule):
    pruner = make_pruner(Prune(rule=rule), 9, 0)
    assert pruner.add("a", 1, -math.inf) is GO_ON
    assert pruner.promotable() is None
    assert pruner.next_rung("a", 1) is None


@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from(["stop", "pause"]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 8), SCORE), max_size=60),
)
def test_pruner_with_equal_calls_is_in_the_same_state(rule, mode, order, epochs_ended):
    """Resumed runs rely on this."""

    def tell_all():
        pruner, epochs = (
            make_pruner(Prune(rule=rule, on_fail=mode, synchronous=order, min_trials=2), 9, 0),
            Counter(),
        )
        answers = []
        for number, score in epochs_ended:
            epochs[number] += 1
            answers.append((pruner.add(f"n{number}", epochs[number], score), pruner.promotable()))
            if answers[-1][1] is not None:
                pruner.let_go_on(answers[-1][1])
        return answers, pruner.settle(())

    assert tell_all() == tell_all()


# ---- custom rules ------------------------------------------------------------------------------


class Pausing(NoPruning):
    """Pauses all networks, and resumes the network in ``promoted``."""

    promoted = None

    def add(self, name, epochs, score, is_done=False):
        if name == "raises":
            raise KeyError("two\nlines")
        return {"stops": "stop", "odd": "perhaps"}.get(name, PAUSE)

    def promotable(self):
        return self.promoted

    def settle(self, alive):
        return ("settled",), ()


class Lacking:
    def __init__(self, *_):
        """Lack all methods."""


RULE = PruningRule("pausing", Pausing, reads=("min_epochs",), obeys=False)
HERE = "tests.fleet.search.test_pruning"


def test_custom_rule_is_found_by_path_and_reads_its_keys():
    assert find_rule(f"{HERE}:RULE") == PruningRule(
        f"{HERE}:RULE", Pausing, reads=("min_epochs",), obeys=False
    )
    assert find_rule(f"{HERE}:Pausing").reads == (
        "min_epochs",
        "factor",
        "on_fail",
        "synchronous",
        "min_trials",
        "options",
    )
    assert make_pruner(Prune(rule=f"{HERE}:RULE"), 9, 0).add("stops", 1, 0.0) is STOP


@pytest.mark.parametrize(
    ("prune", "key", "wrong"),
    [
        ({"rule": "median", "factor": 3}, "prune.factor", "median does not read factor"),
        (
            {"rule": f"{HERE}:RULE", "factor": 3},
            "prune.factor",
            f"{HERE}:RULE does not read factor",
        ),
        (
            {"rule": "ashes", "factor": 3},
            "prune.rule",
            "no rule is named 'ashes' (did you mean asha?)",
        ),
    ],
)
def test_spec_with_an_unknown_rule_or_unread_key_is_refused(prune, key, wrong):
    with pytest.raises(SpecError) as caught:
        parse({"models": [{"family": "softmax"}], "prune": prune})
    assert [(mistake.key, mistake.wrong) for mistake in caught.value.mistakes] == [(key, wrong)]


@pytest.mark.parametrize("rule", [*RULES, f"{HERE}:RULE"])
def test_a_rules_name_stands_for_the_rule(rule):
    models = [{"family": "softmax"}]
    expected = parse({"models": models, "prune": {"rule": rule}}).document.prune
    assert parse({"models": models, "prune": rule}).document.prune == expected


@pytest.mark.parametrize("prune", [3, True, ["auto"], None])
def test_prune_is_a_name_or_a_mapping(prune):
    with pytest.raises(SpecError, match="prune.*it should be the name of a rule, or a mapping"):
        parse({"models": [{"family": "softmax"}], "prune": prune})


class WithOptions(NoPruning):
    """Takes two options."""

    def __init__(self, prune, most_epochs, seed, gap, names=()):
        self.gap, self.names = gap, names


class WithAnyOptions(NoPruning):
    """Takes all options."""

    def __init__(self, *arguments, **options):
        self.options = options


def test_options_go_to_the_rule_by_name():
    options = {"gap": 0.2, "names": ["a"]}
    prune = Prune(rule=f"{HERE}:WithOptions", options=options)
    pruner = make_pruner(prune, 9, 0)
    pruner._pruner.names.append("b")  # a copy
    assert (pruner._pruner.gap, options) == (0.2, {"gap": 0.2, "names": ["a"]})
    prune = Prune(rule=f"{HERE}:WithAnyOptions", options=options)
    assert make_pruner(prune, 9, 0)._pruner.options == options


@pytest.mark.parametrize(
    ("prune", "wrong", "right"),
    [
        (
            {"rule": f"{HERE}:WithOptions", "options": {"gap": 1, "nams": 2}},
            f"{HERE}:WithOptions has no option 'nams'",
            "did you mean names? its options are gap, names",
        ),
        (
            {"rule": f"{HERE}:WithOptions"},
            f"{HERE}:WithOptions needs the option 'gap'",
            "its options are gap, names",
        ),
        (
            {"rule": f"{HERE}:RULE", "options": {"a": 1}},
            f"{HERE}:RULE has no option 'a'",
            "it has no options",
        ),
        (
            {"rule": "none", "options": {"a": 1}},
            "none does not read options",
            "leave it out; options are for a rule of your own (module:rule)",
        ),
    ],
)
def test_unknown_options_are_mistakes(prune, wrong, right):
    with pytest.raises(SpecError) as caught:
        parse({"models": [{"family": "softmax"}], "prune": prune})
    assert [(mistake.key, mistake.wrong, mistake.right) for mistake in caught.value.mistakes] == [
        ("prune.options", wrong, right)
    ]


def test_all_options_are_right_for_a_rule_that_takes_all():
    prune = {"rule": f"{HERE}:WithAnyOptions", "options": {"a": 1}}
    parse({"models": [{"family": "softmax"}], "prune": prune})


SEARCH = {"sampler": "random", "max_trials": 3}


@pytest.mark.parametrize(
    ("search", "more", "advises"),
    [
        ({}, {}, True),
        ({"sampler": "grid"}, {}, True),
        ({"sampler": "tpe"}, {}, True),
        ({"sampler": "tpe", "options": {"pruner": "median"}}, {}, False),
        ({"sampler": "tests.fleet.search.searchers:Careful"}, {}, False),
        ({}, {"prune": "none"}, False),
        ({}, {"prune": {"min_epochs": 1, "rule": "asha"}}, False),
        ({}, {"train": {"stopping": {"max_epochs": 1}}}, False),
    ],
)
def test_a_search_without_prune_is_advised_to_prune(search, more, advises):
    entry = {
        "family": "softmax",
        "space": {"train.optimizer.learning_rate": [0.1, 0.2, 0.3]},
        "search": {**SEARCH, **search},
    }
    notices = parse({"models": [entry], **more}).notices
    assert len(notices) == advises
    assert all("add `prune: auto`" in notice for notice in notices)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ashes", r"no rule is named 'ashes' \(did you mean asha\?\); use one of auto, asha, "),
        (f"{HERE}:HERE", "is of type str; it should be a PruningRule"),
    ],
)
def test_find_rule_refuses_other_objects(rule, message):
    with pytest.raises(UserError, match=message):
        find_rule(rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("Lacking", "has no method add, promotable, let_go_on, "),
        ("is_worse_than_the_median", "cannot be constructed with .*TypeError"),
    ],
)
def test_make_pruner_refuses_invalid_rules(rule, message):
    with pytest.raises(UserError, match=f"the rule {HERE}:{rule} {message}"):
        make_pruner(Prune(rule=f"{HERE}:{rule}"), 9, 0)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda pruner: pruner.add("odd", 1, 0.0), "answered 'perhaps' to an epoch of odd"),
        (lambda pruner: pruner.add("raises", 1, 0.0), "failed in add: KeyError: 'two"),
        (lambda pruner: pruner.settle(()), "decides on 'settled', which it has not paused"),
    ],
)
def test_custom_rule_with_an_impossible_answer_is_refused(ask, message):
    with pytest.raises(UserError, match=f"the rule {HERE}:RULE {message}"):
        ask(make_pruner(Prune(rule=f"{HERE}:RULE"), 9, 0))


def test_custom_rule_cannot_resume_a_network_twice(monkeypatch):
    monkeypatch.setattr(Pausing, "promoted", "net")
    pruner = make_pruner(Prune(rule=f"{HERE}:RULE"), 9, 0)
    assert pruner.add("net", 1, 0.0) is PAUSE
    assert pruner.promotable() == "net"
    pruner.let_go_on("net")
    with pytest.raises(UserError, match="which it has not paused"):
        pruner.promotable()
