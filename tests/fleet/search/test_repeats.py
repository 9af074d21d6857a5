"""Tests of repeats: networks of one configuration are judged as one, by their means."""

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.events import NetworkFailed, NetworkVerdict
from fleet.domain.events.search import REPEATS
from fleet.domain.run import RunState
from fleet.search.controller import SearchController
from fleet.search.pruning import Pruner, make_pruner
from fleet.search.searcher import TrialOutcome, Verdict
from fleet.spec.search import Budget, Prune
from fleet.spec.space import Range
from tests.examples import examples
from tests.fleet.search.launches import LEARNING_RATE, Disk, Launch, record, run_killed, search_of

SPACE = {LEARNING_RATE: Range(0.001, 0.1, log=True)}
EPOCHS = 9
CAREFUL = "tests.fleet.search.searchers:Careful"


class Fussy(Pruner):
    """Prunes what is bad after any epoch, and pauses what is middling until nothing else runs."""

    def __init__(self):
        self.waiting = {}

    def add(self, name, epochs, score, is_done=False):
        if is_done or score > 0.6:
            return Verdict.GO_ON
        if score < 0.1 * epochs:
            return Verdict.STOP
        self.waiting[name] = None
        return Verdict.PAUSE

    def promotable(self):
        return next(iter(self.waiting), None) if len(self.waiting) > 2 else None

    def let_go_on(self, name):
        self.waiting.pop(name, None)

    leave = let_go_on


RULES = {
    "asha": Prune("asha", min_epochs=1, factor=3),
    "asha, later": Prune("asha", min_epochs=2, factor=2),
    "asha, stop": Prune("asha", min_epochs=1, factor=3, on_fail="stop"),
    "asha, synchronous": Prune("asha", min_epochs=1, factor=2, synchronous=True),
    "hyperband": Prune("hyperband", min_epochs=1, factor=3),
    "median": Prune("median", min_epochs=2, min_trials=2),
    "median, synchronous": Prune("median", min_epochs=1, min_trials=1, synchronous=True),
    "learning_curve": Prune("learning_curve", min_epochs=2, min_trials=1),
    "a custom rule": None,
}


def pruner_of(prune):
    return Fussy() if prune is None else make_pruner(prune, EPOCHS, seed=0)


def controller_of(prune, configurations):
    rule = "mine" if prune is None else prune.rule
    return SearchController(
        RunState(),
        [],
        configurations,
        pruner_of(prune),
        rule,
        trainers=2,
        configurations={name: name.rpartition("-repeat")[0] or name for name in configurations},
    )


class Group:
    """A configuration with what its repeats have trained, as the test counts it."""

    def __init__(self, name, repeats, draw):
        self.name = name
        self.best = {f"{name}-repeat{number}": [] for number in range(repeats)}
        self.failed = set()
        self.lengths = {network: draw.choice([3, 5, EPOCHS, EPOCHS]) for network in self.best}
        self.epochs = 0  # of which the oracle was told

    @property
    def counted(self):
        return [network for network in self.best if network not in self.failed]

    def is_done(self, network):
        return len(self.best[network]) == self.lengths[network]

    def next_epochs(self):
        """Yield (epoch, mean of the best values, whether all is done) of new common epochs."""
        while self.counted:
            epoch = self.epochs + 1
            ended = [self.best[network] for network in self.counted]
            if any(
                len(best) < epoch
                for network, best in zip(self.counted, ended, strict=True)
                if not self.is_done(network)
            ) or all(len(best) < epoch for best in ended):
                return
            self.epochs = epoch
            yield (
                epoch,
                fmean(best[min(epoch, len(best)) - 1] for best in ended),
                all(map(self.is_done, self.counted)) and all(len(best) <= epoch for best in ended),
            )


def group_verdicts(decisions):
    """Return the verdicts on configurations, each once, without those to wait for repeats."""
    verdicts = []
    for event in decisions:
        if isinstance(event, NetworkVerdict) and set(event.by) != {REPEATS}:
            by = tuple(judge for judge in event.by if judge != REPEATS)
            verdict = (event.network.rpartition("-repeat")[0] or event.network, event.verdict, by)
            if verdict not in verdicts[-1:]:
                verdicts.append(verdict)
    return verdicts


@pytest.mark.long_but_first
@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None)
@given(seed=st.integers(0, 10_000), repeats=st.integers(2, 4), fails=st.booleans())
def test_repeats_are_judged_as_by_a_pruner_of_means(rule, seed, repeats, fails):
    draw = random.Random(seed)
    groups = {name: Group(name, repeats, draw) for name in "abcdefg"}
    group_of = {network: group for group in groups.values() for network in group.best}
    repeated = controller_of(RULES[rule], list(group_of))
    oracle = controller_of(RULES[rule], list(groups))
    ended = set()
    seen, expected = [], []

    def tell_oracle(group):
        for epoch, score, is_done in group.next_epochs():
            trial = oracle.trials[group.name]  # the mean may fall once a repeat has failed
            trial.best = trial.best._replace(record=None, score=math.nan)
            oracle.end_epoch(group.name, record(epoch, score), is_done)
        if all(network in ended for network in group.best):
            outcome = TrialOutcome.FINISHED if group.counted else TrialOutcome.FAILED
            oracle.end_network(group.name, outcome)

    while True:
        training = draw.sample(sorted(group_of), draw.randint(0, len(group_of)))
        seen += repeated.decide(training)
        expected += oracle.decide()
        ready = sorted(repeated.trials.alive[""] - repeated.trials.awaited - ended, key=str)
        if not ready:
            break
        network = draw.choice(ready)
        group = group_of[network]
        if fails and draw.random() < 0.05:
            group.failed.add(network)
            ended.add(network)
            repeated.end_network(network, TrialOutcome.FAILED)
        else:
            best = group.best[network]
            value = draw.random()
            best.append(max([value, *best[-1:]]))
            is_done = group.is_done(network)
            repeated.end_epoch(network, record(len(best), value), is_done)
            if is_done:
                ended.add(network)
                repeated.end_network(network, TrialOutcome.FINISHED)
        tell_oracle(group)
    assert group_verdicts(seen) == group_verdicts(expected)
    assert not repeated.trials.paused
    assert repeated.is_over
    for group in groups.values():
        lengths = {
            len(group.best[network]) for network in group.counted if not group.is_done(network)
        }
        assert len(lengths) <= 1  # they stopped together


# ---- searches -----------------------------------------------------------------------------------


class Listening:
    """Proposes random values, and remembers what it hears; takes the spread."""

    def __init__(self, space, seed, mode, judge=None):
        self.space, self.random, self.judge = space, random.Random(seed), judge
        self.numbers, self.reports, self.tells = [], [], []

    def ask(self, number):
        self.numbers.append(number)
        return {LEARNING_RATE: self.space[LEARNING_RATE].at(self.random.random())}

    def report(self, number, epoch, value, spread):
        self.reports.append((number, epoch, value, spread))
        return "go_on" if self.judge is None else self.judge(number, epoch)

    def tell(self, number, outcome, value, spread=None):
        self.tells.append((number, outcome, value, spread))


def value_of(name, epoch):
    configuration, _, repeat = name.partition("-repeat")
    return (int(configuration.rpartition("-")[2]) + 1) * 0.1 + int(repeat) * 0.01 + epoch * 0.001


def listen(disk=None, repeats=3, max_trials=4, value=value_of, judge=None, **settings):
    searcher = Listening(SPACE, 0, "maximize", judge)
    launch = Launch(
        disk or Disk(),
        search_of("a searcher", max_trials=max_trials, repeats=repeats),
        SPACE,
        searcher=searcher,
        value=value,
        **settings,
    )
    return launch, searcher


def test_searchers_hear_the_mean_and_the_spread_of_repeats_once():
    launch, searcher = listen(epochs=2)
    launch.run()
    assert searcher.numbers == [0, 1, 2, 3]
    assert len(launch.added) == 12
    means = {
        (number, epoch): fmean(
            value_of(f"net-{number}-repeat{repeat}", epoch) for repeat in range(3)
        )
        for number in range(4)
        for epoch in (1, 2)
    }
    spread = pytest.approx(stdev([0.0, 0.01, 0.02]))
    assert {report[:2]: report[2] for report in searcher.reports} == pytest.approx(means)
    assert len(searcher.reports) == 8
    assert all(report[3] == spread for report in searcher.reports)
    assert sorted(searcher.tells) == [
        (number, "finished", pytest.approx(means[number, 2]), spread) for number in range(4)
    ]


def test_repeats_have_names_with_their_numbers_and_equal_values():
    launch, _ = listen(max_trials=2)
    launch.run()
    assert [*launch.added] == [f"net-{number}-repeat{n}" for number in range(2) for n in range(3)]
    assert len({str(add.values) for add in launch.added.values()}) == 2
    assert [add.repeat for add in launch.added.values()] == [0, 1, 2, 0, 1, 2]
    assert [add.number for add in launch.added.values()] == [0, 0, 0, 1, 1, 1]


def test_searchers_pause_and_stop_all_repeats_together():
    launch, searcher = listen(
        max_trials=2, judge=lambda number, epoch: "stop" if epoch == 2 + number else "go_on"
    )
    launch.run()
    assert {name: epochs for name, (epochs, _) in launch.outcomes.items()} == {
        f"net-{number}-repeat{n}": 2 + number for number in range(2) for n in range(3)
    }
    assert [tell[:2] for tell in sorted(searcher.tells)] == [(0, "pruned"), (1, "pruned")]


def test_a_repeat_that_is_done_is_not_paused():
    controller = controller_of(None, ["a-repeat0", "a-repeat1"])
    controller.end_epoch("a-repeat0", record(1, 0.5), False)
    controller.end_epoch("a-repeat1", record(1, 0.5), True)
    controller.end_network("a-repeat1", TrialOutcome.FINISHED)
    decided = [event for event in controller.decide() if isinstance(event, NetworkVerdict)]
    assert {event.network for event in decided} == {"a-repeat0"}


def test_a_failed_repeat_leaves_the_mean_of_the_others():
    launch, searcher = listen(max_trials=1)
    launch.do(launch.controller.decide())
    launch.consult()
    launch.do(launch.controller.decide())
    launch.alive.discard("net-0-repeat2")
    launch.write(NetworkFailed("net-0-repeat2", "no memory"))
    launch.controller.end_network("net-0-repeat2", TrialOutcome.FAILED)
    launch.run()
    [(number, outcome, value, spread)] = searcher.tells
    assert (number, outcome) == (0, "finished")
    assert value == pytest.approx(fmean(value_of(f"net-0-repeat{n}", 9) for n in range(2)))
    assert len(searcher.reports) == 9


def test_a_trial_has_failed_if_all_its_repeats_have():
    launch, searcher = listen(max_trials=1)
    launch.do(launch.controller.decide())
    launch.consult()
    launch.do(launch.controller.decide())
    for name in list(launch.added):
        launch.alive.discard(name)
        launch.write(NetworkFailed(name, "no memory"))
        launch.controller.end_network(name, TrialOutcome.FAILED)
    launch.run()
    assert searcher.tells == [(0, "failed", None, None)]


def test_a_proposal_outside_of_the_space_fails_as_one_network():
    launch, searcher = listen(max_trials=1)
    searcher.ask = lambda number: {LEARNING_RATE: 7.0}
    launch.run()
    assert [*launch.added] == ["net-0"]
    assert searcher.tells == [(0, "failed", None, None)]


def test_max_concurrent_counts_trials_and_a_budget_all_epochs():
    launch = Launch(
        Disk(),
        search_of(max_trials=50, repeats=2, max_concurrent=3, budget=Budget(epochs=40)),
        SPACE,
    )
    maximum = 0
    while not launch.controller.is_over or launch.controller.trials.alive["net"]:
        launch.do(launch.controller.decide())
        maximum = max(maximum, len(launch.controller.trials.alive_configurations("net")))
        if launch.pending_call is not None:
            launch.consult()
        elif (name := launch.next()) is not None:
            launch.train(name)
        else:
            break
    assert maximum == 3
    epochs = sum(len(status.history) for status in launch.disk.statuses.values())
    assert 40 <= epochs < 40 + 3 * 2 * EPOCHS


@pytest.mark.long_but_first
@pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule] is not None])
@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from(["random", CAREFUL]),
    st.lists(st.integers(0, 70), max_size=8),
    st.integers(2, 3),
)
def test_killed_searches_of_repeats_decide_as_whole_ones(rule, sampler, kills, repeats):
    search = search_of(sampler, max_trials=6, repeats=repeats)
    reference, *_ = run_killed([], search, SPACE, prune=RULES[rule])
    killed, _, differences = run_killed(kills, search, SPACE, prune=RULES[rule])
    assert killed.decisions == reference.decisions
    assert killed.outcomes == reference.outcomes
    assert not differences


def test_a_parent_passes_each_repeat_to_one_of_the_child():
    launch, searcher = listen(max_trials=2, repeats=2)
    asks = [{LEARNING_RATE: 0.01}, {LEARNING_RATE: 0.01, "parent": 0}]
    searcher.ask = lambda number: asks[number]
    launch.run()
    assert {add.network: add.parent for add in launch.added.values() if add.number} == {
        "net-1-repeat0": "net-0-repeat0",
        "net-1-repeat1": "net-0-repeat1",
    }


def test_a_new_number_of_repeats_holds_for_new_trials():
    disk = Disk()
    launch, _ = listen(disk, repeats=2, max_trials=1)
    launch.run()
    launch, searcher = listen(disk, repeats=3, max_trials=2)
    launch.run()
    assert sorted(launch.controller.trials) == [
        *(f"net-0-repeat{n}" for n in range(2)),
        *(f"net-1-repeat{n}" for n in range(3)),
    ]
