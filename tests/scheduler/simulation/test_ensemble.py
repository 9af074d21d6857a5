"""The simulated ensemble: checked by hand, against the bound, and against the paper's totals."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.base import Cluster, Delta, Member, Network, Options, RateTable, Round, StepTime
from scheduler.ensemble.costs import PAPER_COSTS, REGROUPING_COSTS, Costs
from scheduler.ensemble.pace import Ring, Stream
from scheduler.ensemble.policies import POLICIES, Policy
from scheduler.ensemble.rates import smooth_rates
from scheduler.ensemble.waterfill import lower_bound
from scheduler.files import read_json
from scheduler.simulation.draw import convert, redraw_epochs, with_errors
from scheduler.simulation.ensemble import simulate
from scheduler.simulation.learning import Learning
from tests.examples import examples, long_but_first
from tests.places import SHARED
from tests.scheduler.strategies import ensembles

FLEET100 = SHARED / "ensembles/fleet100.json"


def table(*networks, samples=100):
    """Make networks from (epochs, rates...)."""
    return RateTable(
        samples,
        4,
        tuple(
            Network(f"n{i}", tuple(map(float, rates)), epochs=epochs)
            for i, (epochs, *rates) in enumerate(networks)
        ),
    )


def run(rates, gpus, policy="baseline", costs=Costs(), stream=Stream(), per_node=None, **options):
    return simulate(
        rates,
        Cluster.of(gpus, per_node or gpus),
        POLICIES[policy],
        Options(**options),
        costs,
        stream,
    )


@pytest.fixture
def scripted(monkeypatch):
    """Register a policy that looks up its answer: finished networks -> members."""

    def register(script):
        def policy(rates, progress, cluster, options):
            return Round(
                tuple(
                    Member(name, tuple(devices))
                    for name, devices in script[frozenset(progress.finished)].items()
                )
            )

        monkeypatch.setitem(POLICIES, "scripted", Policy("scripted", policy))

    return register


# --- by hand ------------------------------------------------------------------------------------


def test_ensemble_one_network_takes_its_epochs_over_its_rate():
    simulated = run(table((3, 10)), 1)
    assert (simulated.makespan_s, simulated.lower_bound_s, simulated.waiting_s_per_gpu) == (
        30.0,
        30.0,
        0.0,
    )


def test_first_signal_is_the_last_first_epoch():
    assert run(table((3, 10), (2, 5)), 2).first_signal_s == 20.0
    assert run(table((4, 10)), 1).first_signal_s == 10.0


def test_ensemble_free_gpu_takes_the_next_network():
    simulated = run(table((1, 10), (1, 10), (2, 10)), 1)
    assert simulated.makespan_s == 40.0
    assert [len(network.members) for network in simulated.rounds] == [1, 1, 1]


def test_lockstep_trains_all_at_the_slowest_rate():
    # n1 slows n0 to 5 samples/s for its one epoch of 20 s; then n0 has 2 of its 3 epochs left.
    simulated = run(table((3, 10), (1, 5)), 2, stream=Stream(count=1))
    assert simulated.makespan_s == pytest.approx(20 + 20)
    # GPU 0 worked at half its rate for 20 s; GPU 1 is idle for the last 20 s.
    assert simulated.waiting_s_per_gpu == pytest.approx((10 + 20) / 2)


def test_ensemble_waits_for_a_slow_stream():
    assert run(table((1, 10), (1, 20)), 2, stream=Stream(rate=4.0)).makespan_s == pytest.approx(
        25.0
    )


def test_ensemble_group_grows_at_any_step(scripted):
    scripted(
        {
            frozenset(): {"n0": [0], "n1": [1]},
            frozenset({"n1"}): {"n0": [0, 1]},
            frozenset({"n0", "n1"}): {},
        }
    )
    # After 4 s n1 is done, and n0 trains its last 60 samples on two GPUs; regrouping takes 3 s.
    simulated = run(table((1, 10, 20), (1, 25)), 2, "scripted", Costs(regroup_s=3.0))
    assert simulated.makespan_s == pytest.approx(3 + 4 + 3 + (100 - 40) / 20)
    assert [stint.devices for stint in simulated.stints if stint.name == "n0"] == [(0,), (0, 1)]
    assert simulated.regroup_s_per_gpu == pytest.approx((3 * 2 + 3 * 2) / 2)


def test_ensemble_group_shrinks_at_the_end_of_its_epoch_only(scripted):
    scripted(
        {
            frozenset(): {"n0": [0, 1], "n1": [2]},
            frozenset({"n1"}): {"n0": [0], "n2": [1, 2]},
            frozenset({"n1", "n2"}): {"n0": [0]},
            frozenset({"n0", "n1", "n2"}): {},
            frozenset({"n0", "n1"}): {"n2": [1, 2]},
        }
    )
    # n1 is done after 1 s; n0 keeps its two GPUs until its epoch ends at 5 s, so n2 starts then.
    simulated = run(table((2, 10, 20), (1, 100), (1, 50, 100)), 3, "scripted")
    assert next(stint.start_s for stint in simulated.stints if stint.name == "n2") == pytest.approx(
        5.0
    )
    assert simulated.makespan_s == pytest.approx(5 + 10)


def test_stopped_group_holds_devices_for_its_checkpoint():
    # Both join (delta 0); n0 is stopped after n1 converges (alpha 1) and restarts on both GPUs.
    rates = table((2, 10, 20), (1, 10, 20))
    simulated = run(rates, 2, "global", Costs(checkpoint_s=7.0), Stream(count=1), alpha=1.0)
    assert simulated.makespan_s == pytest.approx(10 + 7 + 5)
    assert simulated.checkpoint_s == pytest.approx(7.0)
    # The device of n1, while n0 is saved.
    assert simulated.waiting_s_per_gpu == pytest.approx(7 / 2)


def test_scheduling_takes_its_time_before_every_change():
    simulated = run(table((1, 10), (1, 10)), 1, costs=Costs(scheduling_s=2.0, profile_s=100.0))
    assert simulated.makespan_s == pytest.approx(100 + 2 * (2 + 10))
    assert simulated.scheduling_s == pytest.approx(4.0)
    assert simulated.waiting_s_per_gpu == pytest.approx(0.0)


def test_epoch_cost_is_added_for_any_batch():
    steps = (StepTime(10, 1.0), StepTime(20, 1.5))
    elastic = RateTable(
        100, 1, (Network("a", (1.0,), epochs=3, params_mb=1.0, step_s=steps, batches=(10, 20)),)
    )
    assert run(table((2, 10), (1, 20)), 2, costs=Costs(epoch_s=0.5)).makespan_s == pytest.approx(
        2 * (10 + 0.5)
    )
    assert run(elastic, 1, "elastic", costs=Costs(epoch_s=0.5)).makespan_s == pytest.approx(
        3 * (5 * 1.5 + 0.5)
    )


def test_policy_sees_networks_only_after_their_arrival():
    """The second arrives in an epoch and gets a GPU at its end; the last when all are free."""
    rates = table((2, 10, 20), (1, 10, 20), (1, 50))
    simulated = simulate(
        rates,
        Cluster.of(2, 2),
        POLICIES["elastic"],
        Options(),
        Costs(),
        arrivals={"n1": 3.0, "n2": 40.0},
    )
    assert [
        (stint.name, len(stint.devices), stint.start_s, stint.end_s) for stint in simulated.stints
    ] == [("n0", 2, 0.0, 5.0), ("n0", 1, 5.0, 15.0), ("n1", 1, 5.0, 15.0), ("n2", 1, 40.0, 42.0)]


def test_ensemble_round_says_who_trained_how_many_epochs():
    simulated = run(
        table((2, 10, 20), (1, 10, 20)), 2, "global", Costs(), Stream(count=1), alpha=1.0
    )
    first, second = simulated.rounds
    assert {share.name: share.epochs for share in first.members} == {"n0": 1.0, "n1": 1.0}
    assert [(share.name, share.gpus, share.devices, share.epochs) for share in second.members] == [
        ("n0", 2, (0, 1), 1.0)
    ]
    assert (first.start_s, first.end_s, second.end_s) == (0.0, 10.0, 15.0)


def test_ensemble_policy_does_not_know_the_epochs(monkeypatch):
    def curious(rates, progress, cluster, options):
        assert all(network.epochs is None for network in rates.models)
        return POLICIES["baseline"].decide(rates, progress, cluster, options)

    monkeypatch.setitem(POLICIES, "curious", Policy("curious", curious))
    assert run(table((2, 10)), 1, "curious").makespan_s == 20.0


def test_ensemble_policy_may_use_wrong_rates():
    true, wrong_rates = table((1, 10, 9), (1, 10, 9)), table((1, 10, 20), (1, 1, 1))
    options = Options(delta=Delta(0.0, relative=False))
    alone = simulate(
        true, Cluster.of(2, 2), POLICIES["global"], options, Costs(), Stream(), wrong_rates
    )
    assert alone.rounds[0].members[0].gpus == 2  # as the given rates suggest, although it is slower


def test_group_that_grows_at_its_epochs_end_still_ends_it():
    # n2 frees its GPUs a rounding error before 200.46 s, when the epoch of n3 also ends.
    rates = table((1, 0.5), (1, 0.5), (2, 0.5, 1.0), (1, 0.5, 1.0))
    simulated = run(rates, 5, "adaptive", PAPER_COSTS, per_node=1, peak_limited=False)
    assert {stint.name for stint in simulated.stints} == {"n0", "n1", "n2", "n3"}


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (RateTable(100, 1, (Network("a", (1.0,)),)), "a has no epochs"),
        (
            RateTable(100, 1, (Network("a", (1.0,), epochs=1, min_gpus=9),)),
            "a needs at least 9 GPUs",
        ),
    ],
)
def test_ensemble_refuses_untrainable_networks(rates, message):
    with pytest.raises(InputError, match=message):
        run(rates, 2)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_costs_that_are_no_seconds_are_refused(seconds):
    with pytest.raises(InputError, match="regroup_s is"):
        Costs(regroup_s=seconds)


# --- properties ---------------------------------------------------------------------------------

STREAMS = st.sampled_from(
    (
        Stream(),
        Stream(1),
        Stream(2),
        Stream(2, change_at_any_step=True),
        Stream(rate=30.0),
        Stream(ring=Ring(shards=7, window=0.3)),
    )
)
COSTS = st.sampled_from((Costs(), PAPER_COSTS, REGROUPING_COSTS))
LEARNINGS = st.none() | st.builds(
    Learning,
    prior_error=st.floats(0, 2),
    error=st.floats(0, 0.3),
    after_s=st.sampled_from((0.0, 1.0, 1e6)),
    seed=st.integers(0, 5),
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(30), deadline=None)
@given(
    drawn=ensembles(), costs=COSTS, stream=STREAMS, peak_limited=st.booleans(), learning=LEARNINGS
)
def test_simulation_respects_the_bound_and_uses_gpus_once(
    policy, drawn, costs, stream, peak_limited, learning
):
    rates, cluster = drawn
    simulated = simulate(
        rates,
        cluster,
        POLICIES[policy],
        Options(peak_limited=peak_limited),
        costs,
        stream,
        learning=learning,
    )
    assert simulated.makespan_s >= simulated.lower_bound_s * (1 - 1e-9)
    assert simulated.waiting_s_per_gpu >= -1e-6 * simulated.makespan_s
    trained = Counter()
    for stint in simulated.stints:
        trained[stint.name] += stint.epochs
    assert trained == pytest.approx({network.name: network.epochs for network in rates.models})
    in_rounds = Counter()
    for model in simulated.rounds:
        for share in model.members:
            in_rounds[share.name] += share.epochs
    assert in_rounds == pytest.approx(trained)
    for device in cluster.devices:
        stints_ = sorted((s.start_s, s.end_s) for s in simulated.stints if device in s.devices)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(stints_))


@given(ensembles(bounded=False))
@settings(max_examples=examples(20), deadline=None)
def test_ring_with_a_full_window_costs_only_its_first_turn(drawn):
    rates, cluster = drawn
    free = simulate(rates, cluster, POLICIES["baseline"], Options(), Costs(), Stream())
    ring = simulate(
        rates,
        cluster,
        POLICIES["baseline"],
        Options(),
        Costs(),
        Stream(ring=Ring(shards=4, window=1.0)),
    )
    slowest = max(1 / network.rates[0] for network in rates.models)
    assert free.makespan_s <= ring.makespan_s * (1 + 1e-9)
    assert ring.makespan_s <= free.makespan_s + rates.samples_per_epoch * slowest


def test_equal_inputs_give_equal_simulations():
    rates = table((3, 10, 19), (2, 20, 39), (4, 5, 9), (1, 40, 70))
    for policy in POLICIES:
        assert run(rates, 4, policy, PAPER_COSTS) == run(rates, 4, policy, PAPER_COSTS)


def test_learned_rates_correct_a_wrong_group_size():
    rates = table((40, 10, 20, 30, 40), (40, 30, 60, 90, 120), samples=1000)

    def spans(learning):
        return simulate(
            rates, Cluster.of(8, 8), POLICIES["adaptive"], Options(), Costs(), learning=learning
        )

    exact, learned = spans(None), spans(Learning(prior_error=2.0, after_s=1.0, seed=3))
    assert learned.replans > 0 == exact.replans
    assert learned.makespan_s < 1.05 * exact.makespan_s


@pytest.mark.parametrize("wrong", [{"prior_error": -1}, {"error": 2}, {"after_s": math.inf}])
def test_learning_that_cannot_be_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Learning(**wrong)


# --- the calibrated ensemble --------------------------------------------------------------------

needs_ensemble = pytest.mark.skipif(
    not FLEET100.exists(), reason="the calibrated ensemble is not here"
)


@pytest.fixture(scope="module")
def calibrated():
    return convert(read_json(FLEET100))


@needs_ensemble
@pytest.mark.parametrize(("gpus", "total_s"), [(20, 55200.1), (40, 30204.8), (60, 24495.0)])
def test_global_literal_matches_table_4_of_the_paper(calibrated, gpus, total_s):
    options = Options(delta=Delta(20.0, relative=False), peak_limited=False)
    simulated = simulate(calibrated, Cluster.of(gpus, 4), POLICIES["global"], options)
    assert simulated.makespan_s == pytest.approx(total_s, rel=0.07)


@needs_ensemble
@pytest.mark.parametrize(("gpus", "excess"), long_but_first((20, 1.03), (60, 1.04), (160, 1.09)))
def test_adaptive_is_close_to_the_bound_without_epochs(calibrated, gpus, excess):
    rates = redraw_epochs(calibrated, seed=gpus)
    wrong_rates = smooth_rates(with_errors(rates, 0.05, seed=gpus), gpus)
    simulated = simulate(
        rates,
        Cluster.of(gpus, 4),
        POLICIES["adaptive"],
        Options(),
        REGROUPING_COSTS,
        Stream(),
        wrong_rates,
    )
    assert simulated.makespan_s <= excess * lower_bound(rates, gpus)


@needs_ensemble
@pytest.mark.parametrize("gpus", long_but_first(20, 60, 160))
def test_online_rates_cost_adaptive_little(calibrated, gpus):
    rates, cluster = redraw_epochs(calibrated, seed=gpus), Cluster.of(gpus, 4)
    exact, learned = (
        simulate(rates, cluster, POLICIES["adaptive"], Options(), learning=learning).makespan_s
        for learning in (None, Learning(math.log(2), error=0.05, seed=gpus))
    )
    assert learned < 1.02 * exact  # one draw; docs/measured/schedules.md has the means


@needs_ensemble
def test_adaptive_beats_global_and_global_beats_baseline(calibrated):
    options = Options(delta=Delta(20.0, relative=False))
    spans = [
        simulate(calibrated, Cluster.of(80, 4), POLICIES[policy], options).makespan_s
        for policy in ("adaptive", "global", "baseline")
    ]
    assert spans[0] * 1.2 < spans[1]
    assert spans[1] * 1.2 < spans[2]
