"""Promises of every policy, and the behavior of each."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Cluster, Delta, Member, Network, Options, Progress, RateTable, Round
from scheduler.ensemble.moves import GroupHolding, Stance, Stop, plan_moves
from scheduler.ensemble.policies import POLICIES, SETTINGS, Policy, check_round
from scheduler.ensemble.rates import curve, rate
from tests.examples import examples
from tests.scheduler.strategies import ensembles


def table(*rates, **bounds):
    return RateTable(100, 4, tuple(Network(f"n{i}", r, **bounds) for i, r in enumerate(rates)))


class Trainer:
    """Carries out the rounds of a policy with random epoch ends, as the runtime does."""

    def __init__(self, drawn, policy, options, rng, devices_die=False):
        self.rates, self.cluster = drawn
        self.policy, self.options, self.rng, self.devices_die = policy, options, rng, devices_die
        self.epochs_left = {network.name: network.epochs for network in self.rates.models}
        self.running, self.target, self.rounds = {}, Round(), []

    def progress(self):
        return Progress(
            running=tuple(Member(*group) for group in self.running.items()),
            epochs_done={
                n.name: n.epochs - self.epochs_left[n.name]
                for n in self.rates.models
                if self.epochs_left[n.name] < n.epochs
            },
            finished=frozenset(
                name for name, remaining in self.epochs_left.items() if remaining == 0
            ),
            target=self.target,
        )

    def ask(self):
        progress = self.progress()
        self.target = POLICIES[self.policy].decide(self.rates, progress, self.cluster, self.options)
        check_round(self.target, self.rates, progress, self.cluster)
        assert self.target == POLICIES[self.policy].decide(
            self.rates, progress, self.cluster, self.options
        )
        self.rounds.append(self.target)

    def carry_out(self, ended=None):
        occupied = {
            name: GroupHolding(devices, Stance.BETWEEN if name == ended else Stance.INSIDE)
            for name, devices in self.running.items()
        }
        free = set(self.cluster.devices).difference(*self.running.values())
        for move in plan_moves(occupied, self.target, free, frees_at_once=True):
            if isinstance(move, Stop):
                del self.running[move.name]
                self.ask()
                return self.carry_out()
            self.running[move.name] = move.devices
        return None

    def run(self, most_steps=400):
        self.ask()
        self.carry_out()
        for _ in range(most_steps):
            if not any(self.epochs_left.values()):
                return True
            if not self.running:
                return False
            if self.a_device_dies():
                self.ask()
                self.carry_out()
                continue
            name = self.rng.choice(sorted(self.running))
            self.epochs_left[name] -= 1
            if self.epochs_left[name] == 0:
                del self.running[name]
            self.ask()
            self.carry_out(ended=name)
        return False

    def a_device_dies(self):
        """Its group ends with it."""
        if not (self.devices_die and self.cluster.gpus > 2 and self.rng.random() < 0.2):
            return False
        dead = self.rng.choice(self.cluster.devices)
        self.cluster = self.cluster.without([dead])
        self.running = {
            name: members_ for name, members_ in self.running.items() if dead not in members_
        }
        return True


runs = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors],
)
OPTIONS = st.builds(
    Options,
    alpha=st.sampled_from((0.5, 0.8, 1.0)),
    peak_limited=st.booleans(),
    delta=st.builds(Delta, st.sampled_from((0.15, 20.0, 0.0)), relative=st.booleans()),
    seed=st.integers(0, 3),
)


@pytest.mark.parametrize("policy", POLICIES)
class TestEveryPolicy:
    @runs
    @given(drawn=ensembles(), options=OPTIONS, rng=st.randoms(use_true_random=False))
    def test_policy_ends_and_answers_feasibly_and_repeatably(self, policy, drawn, options, rng):
        assert Trainer(drawn, policy, options, rng).run()

    @runs
    @given(drawn=ensembles(), options=OPTIONS, rng=st.randoms(use_true_random=False))
    def test_no_network_is_given_a_gpu_that_slows_it_down(self, policy, drawn, options, rng):
        trainer = Trainer(drawn, policy, replace(options, peak_limited=True), rng)
        trainer.run()
        curves = {network.name: network for network in drawn[0].models}
        for decided in trainer.rounds:
            for member in decided.members:
                paces = curve(curves[member.name], member.gpus)[curves[member.name].min_gpus - 1 :]
                assert all(paces[-1] > fewer for fewer in paces[:-1])

    @runs
    @given(drawn=ensembles(bounded=False), options=OPTIONS, rng=st.randoms(use_true_random=False))
    def test_policy_never_plans_a_dead_device(self, policy, drawn, options, rng):
        # Each answer is checked.
        assert Trainer(drawn, policy, options, rng, devices_die=True).run()

    def test_network_that_no_longer_fits_waits(self, policy):
        rates = RateTable(
            100, 4, (Network("large", (10.0, 20.0, 30.0), min_gpus=3), Network("small", (5.0,)))
        )
        assert POLICIES[policy].decide(rates, Progress(), Cluster((0, 2), 4), Options()).counts == {
            "small": 1
        }

    def test_policy_plans_nothing_after_the_end(self, policy):
        done = Progress(finished=frozenset({"n0", "n1"}))
        assert (
            POLICIES[policy].decide(table((1.0,), (2.0,)), done, Cluster.of(4, 4), Options())
            == Round()
        )

    def test_policy_never_plans_a_finished_network(self, policy):
        progress = Progress(
            finished=frozenset({"n0"}),
            target=Round((Member("n0", (0,)), Member("n1", (1,)))),
            running=(Member("n1", (1,)),),
        )
        decided = POLICIES[policy].decide(
            table((1.0,), (2.0,)), progress, Cluster.of(2, 2), Options()
        )
        assert set(decided.counts) == {"n1"}


# ---- the table of policies ---------------------------------------------------------------------


class Watched:
    """Options that record which of them a policy reads."""

    def __init__(self, options):
        self._options, self.read = options, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._options, name)


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_reads_only_its_declared_settings(policy):
    watched = Watched(Options())

    @runs
    @given(drawn=ensembles(), rng=st.randoms(use_true_random=False))
    def train(drawn, rng):
        Trainer(drawn, policy, watched, rng).run()

    train()
    assert watched.read == POLICIES[policy].reads


def test_policies_have_their_name_and_help():
    assert [policy.name for policy in POLICIES.values()] == list(POLICIES)
    assert all(policy.help for policy in POLICIES.values())


def test_policy_refuses_unknown_settings():
    with pytest.raises(
        InputError,
        match="policy mine reads unknown options 'gamma'; "
        "the options are alpha, delta, peak_limited, seed",
    ):
        Policy("mine", POLICIES["local"].decide, reads=SETTINGS | {"gamma"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([Member("n0", (0,))], "returns a list; it must return a Round"),
        (Round(("n0",)), "gives devices to 'n0', which is not an unfinished network"),
        (
            Round((Member("other", (0,)),)),
            "gives devices to 'other', which is not an unfinished network",
        ),
        (
            Round((Member("n1", (0,)),)),
            "gives devices to 'n1', which is not an unfinished network",
        ),  # it has finished
        (
            Round((Member("n0", (0,)), Member("n0", (2,)))),
            "gives devices to 'n0', which is not an unfinished network",
        ),
        (Round((Member("n0", ()),)), "gives 0 devices to n0, which takes 1 to 2"),
        (Round((Member("n0", (0, 2, 3)),)), "gives 3 devices to n0, which takes 1 to 2"),
        (
            Round((Member("n0", (0, 0)),)),
            r"assigns the devices \[0, 0\]; it can assign each of \[0, 2, 3\]",
        ),
        (
            Round((Member("n0", (1,)),)),
            r"assigns the devices \[1\]; it can assign each of \[0, 2, 3\]",
        ),
        (Round((Member("n0", (0,)), Member("n2", (0,)))), r"assigns the devices \[0, 0\]"),
    ],
)
def test_policy_refuses_impossible_answers(answer, message):
    rates, progress = (
        table((1.0,), (1.0,), (1.0,), max_gpus=2),
        Progress(finished=frozenset({"n1"})),
    )
    with pytest.raises(InputError, match=message):
        check_round(answer, rates, progress, Cluster((0, 2, 3), 4))


# ---- each policy -------------------------------------------------------------------------------


class TestGlobal:
    # n0 sets the reference 40; n1 keeps up on 2 GPUs, n2 on 4.
    RATES = table((40.0, 80.0, 120.0, 160.0), (20.0, 40.0, 60.0, 80.0), (10.0, 20.0, 30.0, 40.0))

    def decide(self, gpus=8, alpha=0.8, **progress):
        return POLICIES["global"].decide(
            self.RATES, Progress(**progress), Cluster.of(gpus, 4), Options(alpha=alpha)
        )

    def test_first_round_is_a_flotilla_with_spare_gpus_for_slowest(self):
        assert self.decide().counts == {"n0": 2, "n1": 2, "n2": 4}

    def test_policy_round_lasts_while_alpha_of_gpus_are_busy(self):
        running = (Member("n1", (0, 1)), Member("n2", (4, 5, 6, 7)))
        assert self.decide(alpha=0.75, running=running, finished=frozenset({"n0"})) == Round(
            running
        )

    def test_round_below_alpha_drains_before_a_new_one(self):
        running = (Member("n2", (4, 5, 6, 7)),)
        finished = frozenset({"n0"})
        assert self.decide(running=running, finished=finished) == Round()
        assert self.decide(finished=finished).counts == {"n1": 3, "n2": 5}

    def test_policy_keeps_a_round_that_has_partly_started(self):
        target = self.decide()
        assert self.decide(running=target.members[:1], target=target).counts == target.counts

    def test_new_round_waits_for_devices_of_finished_networks(self):
        late = (Member("n0", (0, 1)),)
        assert self.decide(running=late, finished=frozenset({"n0"}), target=Round()) == Round()

    def test_round_that_never_reached_alpha_continues_if_equal(self):
        slow = table((10.0,), (10.0,))  # with one measurement, a second GPU has no use
        running = (Member("n0", (0,)), Member("n1", (1,)))
        survivors = POLICIES["global"].decide(
            slow, Progress(running=running), Cluster.of(8, 4), Options()
        )
        assert survivors == Round(running)

    def test_gpus_of_finished_networks_are_given_if_none_waits(self):
        assert (
            self.decide(running=(Member("n1", (0, 1)),), finished=frozenset({"n0", "n2"}))
            == Round()
        )
        assert self.decide(finished=frozenset({"n0", "n2"})).counts == {"n1": 8}


@pytest.mark.parametrize("policy", POLICIES)
@runs
@given(data=st.data())
def test_formed_groups_never_share_a_device_being_released(policy, data):
    rates = table(*[(10.0,)] * 6, max_gpus=1)
    devices = st.permutations(range(3)).map(lambda order: order[: data.draw(st.integers(0, 3))])
    running = [
        Member(name, (device,))
        for name, device in zip(["n0", "n1", "n2"], data.draw(devices), strict=False)
    ]
    target = [
        Member(name, (device,))
        for name, device in zip(["n3", "n4", "n0"], data.draw(devices), strict=False)
    ]
    progress = Progress(
        tuple(running),
        finished=frozenset(data.draw(st.sets(st.sampled_from(rates.names)))),
        target=Round(tuple(target)),
    )
    cluster = Cluster.of(3, 3)
    check_round(
        POLICIES[policy].decide(rates, progress, cluster, Options()), rates, progress, cluster
    )


def test_local_keeps_running_groups_and_fills_free_devices():
    rates = table((40.0, 80.0), (20.0, 40.0), (20.0, 39.0), (5.0,))
    running = (Member("n0", (0, 1)),)
    decided = POLICIES["local"].decide(
        rates, Progress(running=running), Cluster.of(4, 4), Options()
    )
    assert decided.members[0] == running[0]
    assert decided.counts == {"n0": 2, "n1": 1, "n2": 1}
    assert {device for member in decided.members[1:] for device in member.devices} == {2, 3}


def test_baseline_starts_networks_in_the_order_of_the_seed():
    rates = table(*[(10.0, 20.0)] * 6, min_gpus=1)
    orders = {
        tuple(
            POLICIES["baseline"]
            .decide(rates, Progress(), Cluster.of(2, 2), Options(seed=seed))
            .counts
        )
        for seed in range(20)
    }
    assert len(orders) > 5
    two = RateTable(100, 4, (Network("wide", (1.0, 2.0), min_gpus=2),))
    assert POLICIES["baseline"].decide(two, Progress(), Cluster.of(3, 3), Options()).counts == {
        "wide": 2
    }


def test_homogeneous_waits_for_the_last_of_its_subset():
    rates = table(*[(10.0,)] * 4)
    first = POLICIES["homogeneous"].decide(rates, Progress(), Cluster.of(2, 2), Options())
    assert len(first.members) == 2
    running_name, other_name = first.members
    half_begun = Progress(running=(running_name,), target=first)
    assert (
        POLICIES["homogeneous"].decide(rates, half_begun, Cluster.of(2, 2), Options()).counts
        == first.counts
    )
    progress = Progress(running=(other_name,), finished=frozenset({running_name.name}))
    assert POLICIES["homogeneous"].decide(rates, progress, Cluster.of(2, 2), Options()) == Round(
        (other_name,)
    )
    progress = Progress(finished=frozenset({running_name.name, other_name.name}))
    second = POLICIES["homogeneous"].decide(rates, progress, Cluster.of(2, 2), Options())
    assert len(second.members) == 2


class TestAdaptive:
    RATES = table(*[(10.0, 19.0, 27.0, 34.0)] * 3)

    def decide(self, **progress):
        return POLICIES["adaptive"].decide(
            self.RATES, Progress(**progress), Cluster.of(4, 4), Options()
        )

    def test_gpus_are_shared_again_when_a_network_finishes(self):
        first = self.decide()
        assert sorted(first.counts.values()) == [1, 1, 2]
        remaining = tuple(member for member in first.members if member.name != "n2")
        second = self.decide(running=remaining, target=first, finished=frozenset({"n2"}))
        assert second.counts == {"n0": 2, "n1": 2}
        for before, after in zip(remaining, second.members, strict=True):
            assert set(before.devices) <= set(after.devices)

    def test_policy_keeps_its_answer_until_a_network_ends(self):
        target = Round((Member("n0", (0, 1)), Member("n1", (2,)), Member("n2", (3,))))
        assert self.decide(running=(Member("n0", (0, 1, 2)),), target=target) == target

    @pytest.mark.parametrize(
        "occupied", [(0,), (0, 1, 2, 3)], ids=["beside idle GPUs", "beside a wide group"]
    )
    def test_new_network_does_not_wait_for_another_to_finish(self, occupied):
        target = Round((Member("n0", occupied),))
        come = self.decide(running=target.members, target=target, finished=frozenset({"n2"}))
        assert come.counts == {"n0": 2, "n1": 2}

    def test_network_waits_when_all_have_their_minimum(self):
        rates = table(*[(10.0, 19.0)] * 3)
        target = Round((Member("n0", (0,)), Member("n2", (1,))))
        progress = Progress(running=target.members, target=target)
        assert POLICIES["adaptive"].decide(rates, progress, Cluster.of(2, 2), Options()) == target

    def test_policy_replans_after_a_device_died(self):
        target = Round((Member("n0", (0, 1)), Member("n1", (2,)), Member("n2", (3,))))
        progress = Progress(running=target.members, target=target)
        decided = POLICIES["adaptive"].decide(
            self.RATES, progress, Cluster((0, 1, 2), 4), Options()
        )
        assert decided.counts == {"n0": 1, "n1": 1, "n2": 1}
        assert {device for member in decided.members for device in member.devices} == {0, 1, 2}

    def test_slow_networks_get_more_so_that_all_keep_one_pace(self):
        rates = table((100.0,), (25.0, 50.0, 75.0, 100.0), (50.0, 100.0))
        counts = POLICIES["adaptive"].decide(rates, Progress(), Cluster.of(7, 7), Options()).counts
        assert counts == {"n0": 1, "n1": 4, "n2": 2}
        assert {rate(network, counts[network.name]) for network in rates.models} == {100.0}

    def test_networks_come_to_their_next_rung_together(self):
        rates = table(*[tuple(10.0 * gpus for gpus in range(1, 9))] * 3)
        # n2 is unknown: as many as the others on average.
        progress = Progress(ahead={"n0": 2.0, "n1": 4.0})
        counts = POLICIES["adaptive"].decide(rates, progress, Cluster.of(9, 9), Options()).counts
        assert counts == {"n0": 2, "n1": 4, "n2": 3}

    def test_policy_network_near_its_rung_does_not_wait(self):
        rates = table(*[tuple(10.0 * gpus for gpus in range(1, 9))] * 4)
        target = Round((Member("n0", (0, 1)), Member("n1", (2, 3))))
        progress = Progress(
            running=target.members,
            target=target,
            ahead={"n0": 18.0, "n1": 18.0, "n2": 1.0, "n3": 1.0},
        )
        decided = POLICIES["adaptive"].decide(rates, progress, Cluster.of(4, 4), Options())
        assert decided.counts == {"n0": 1, "n1": 1, "n2": 1, "n3": 1}
        assert {member.name: set(member.devices) <= {0, 1} for member in decided.members[:2]} == {
            "n0": True,
            "n1": False,
        }

    @settings(max_examples=examples(100))
    @given(
        ahead=st.lists(st.integers(1, 54), min_size=1, max_size=9),
        occupied=st.sets(st.integers(0, 8), max_size=4),
        gpus=st.integers(4, 9),
    )
    def test_rungs_leave_no_gpu_idle_while_networks_wait(self, ahead, occupied, gpus):
        rates = table(*[tuple(10.0 * count * 0.9**count for count in range(1, 10))] * len(ahead))
        names = [f"n{row}" for row in sorted(occupied) if row < len(ahead)]
        running = tuple(
            Member(name, tuple(range(index, gpus, len(names)))) for index, name in enumerate(names)
        )
        progress = Progress(
            running=running, ahead={f"n{row}": float(epochs) for row, epochs in enumerate(ahead)}
        )
        counts = (
            POLICIES["adaptive"].decide(rates, progress, Cluster.of(gpus, gpus), Options()).counts
        )
        assert len(counts) == min(gpus, len(ahead))
        assert {member.name for member in running} <= counts.keys()

    @pytest.mark.parametrize(
        ("survivors", "running", "counts"),
        [
            ((), {}, {"n0": 1, "n1": 1, "n2": 1, "n3": 1}),
            (("n3",), {}, {"n0": 1, "n3": 3}),  # a fourth GPU would not pay off
            (("n2", "n3"), {}, {"n2": 2, "n3": 2}),
            (
                ("n3",),
                {"n0": (0,), "n1": (1,)},
                {"n0": 1, "n1": 1, "n3": 2},
            ),  # a network that has started trains on
        ],
    )
    def test_survivors_get_paying_gpus_before_others_start(self, survivors, running, counts):
        rates = table(*[(10.0, 19.0, 27.0, 30.0)] * 4)
        progress = Progress(
            running=tuple(Member(name, devices) for name, devices in running.items()),
            ahead=dict.fromkeys(rates.names, 1.0) | dict.fromkeys(survivors, 9.0),
            survivors=frozenset(survivors),
        )
        decided = POLICIES["adaptive"].decide(rates, progress, Cluster.of(4, 4), Options())
        assert decided.counts == counts
        later = replace(progress, running=decided.members, target=decided)
        assert POLICIES["adaptive"].decide(rates, later, Cluster.of(4, 4), Options()) == decided

    def test_others_start_on_gpus_that_survivors_cannot_use(self):
        rates = RateTable(
            100, 2, tuple(Network(name, (10.0, 20.0, 20.0, 40.0)) for name in ("a", "b", "c", "d"))
        )
        progress = Progress(ahead=dict.fromkeys("abcd", 2.0), survivors=frozenset("cd"))
        counts = POLICIES["adaptive"].decide(rates, progress, Cluster.of(5, 2), Options()).counts
        assert counts == {"a": 1, "c": 2, "d": 2}

    @settings(max_examples=examples(100))
    @given(
        ahead=st.lists(st.integers(1, 54), min_size=1, max_size=9),
        survivors=st.sets(st.integers(0, 8), max_size=4),
        occupied=st.sets(st.integers(0, 8), max_size=3),
        gpus=st.integers(3, 9),
    )
    def test_none_starts_while_a_survivor_waits(self, ahead, survivors, occupied, gpus):
        rates = table(*[tuple(10.0 * count * 0.9**count for count in range(1, 10))] * len(ahead))
        running = tuple(
            Member(f"n{row}", (index,))
            for index, row in enumerate(sorted(occupied))
            if row < len(ahead)
        )
        first = {f"n{row}" for row in survivors if row < len(ahead)}
        progress = Progress(
            running=running,
            ahead={f"n{row}": float(epochs) for row, epochs in enumerate(ahead)},
            survivors=frozenset(first),
        )
        counts = (
            POLICIES["adaptive"].decide(rates, progress, Cluster.of(gpus, gpus), Options()).counts
        )
        started = {member.name for member in running}
        assert started <= counts.keys()
        assert first <= counts.keys() or counts.keys() <= started | first
        assert sum(counts.values()) == gpus or len(counts) == len(ahead)

    def test_groups_lie_within_a_node_or_fill_nodes(self):
        rates = RateTable(
            100,
            4,
            tuple(
                Network(f"n{i}", tuple(10.0 * m * 0.99**m for m in range(1, 9))) for i in range(5)
            ),
        )
        counts = POLICIES["adaptive"].decide(rates, Progress(), Cluster.of(32, 4), Options()).counts
        assert sum(counts.values()) == 32
        assert all(size < 4 or size % 4 == 0 for size in counts.values())


def test_global_fills_idle_gpus_with_guessed_networks():
    rates, cluster = table((100.0,), (50.0,), (10.0,), (5.0,), max_gpus=1), Cluster.of(3, 3)
    everyone = frozenset(network.name for network in rates.models)

    def counts(**progress):
        return POLICIES["global"].decide(rates, Progress(**progress), cluster, Options()).counts

    assert counts() == {"n0": 1}
    assert counts(guessed=everyone) == {"n0": 1, "n1": 1, "n2": 1}
    assert counts(guessed=everyone, finished=frozenset({"n1"})) == {"n0": 1, "n2": 1, "n3": 1}
    assert counts(guessed=frozenset({"n3"})) == {"n0": 1, "n3": 1}
