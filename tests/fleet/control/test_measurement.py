"""Which rates are measured, on how many GPUs, and in which order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.control.measurement import MeasurementTask, RateMeasurement
from fleet.domain.network import Outcome
from fleet.spec import NetworkSpec, Profile
from fleet.spec.train import Batch
from scheduler.base import StepTime
from scheduler.elastic.analyzer import StepTimings
from tests.examples import examples
from tests.fleet.histories import spec

NETWORK = spec().networks[0]


def network(name, minimum=1, maximum=None):
    return NetworkSpec(name, NETWORK.architecture, NETWORK.train, 0, minimum, maximum)


def make_measurement(
    networks, keys=None, rates=None, devices=4, gpus_per_node=2, max_gpus=None, timed=None
):
    return RateMeasurement(
        networks,
        keys or {network.name: network.name for network in networks},
        Profile(max_gpus=max_gpus),
        devices,
        gpus_per_node,
        {} if rates is None else rates,
        timed or {},
    )


def elastic(name, minimum=1):
    """A network whose batch the policy chooses, from 8 to 32."""
    train = replace(NETWORK.train, batch=Batch((8, 32)))
    return NetworkSpec(name, NETWORK.architecture, train, 0, minimum)


def timed(*batches, gpus=1):
    return StepTimings(
        {gpus: tuple(StepTime(batch, batch / 10) for batch in batches)}, parameters=250_000
    )


def run(measurement, rate=lambda name, gpus: 10.0 * gpus, idle=4):
    """Make all measurements, side by side on idle ranks; return them in order."""
    done, running, free = [], [], idle
    while not measurement.is_done:
        while (task := measurement.next(free)) is not None:
            running.append(task)
            free -= task.gpus
        task = running.pop(0)
        free += task.gpus
        done.append(task)
        value = rate(task.network, task.gpus)
        measurement.add(task, value, "" if value else "out of memory")
    assert not running
    return done


def test_known_step_timings_are_not_measured_again():
    both = StepTimings({**timed(8, 16, 32).steps, **timed(32, gpus=2).steps}, 250_000)
    rates = make_measurement(
        [elastic("a")], rates={"a": {1: 10.0, 2: 20.0}}, devices=2, timed={"a": both}
    )
    assert run(rates, idle=2) == []
    table = rates.table(100)
    assert [step.batch for step in table.models[0].step_s] == [8, 16, 32]
    assert [exchange.gpus for exchange in table.comm_s] == [2]


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (StepTimings(), [1, 2]),  # only a rate, as earlier versions stored it
        (timed(4, 8, 16), [1, 2]),  # measured with a minimum of two GPUs
        (timed(8, 16), [2]),  # 32 samples did not fit
    ],
)
def test_known_timings_are_used_if_they_show_batch_effects(before, again):
    rates = make_measurement(
        [elastic("a")], rates={"a": {1: 10.0, 2: 20.0}}, devices=2, timed={"a": before}
    )
    assert [task.gpus for task in run(rates, idle=2)] == again


A, B = network("a"), network("b")
TWINS = {"a": "k", "b": "k", "c": "other"}
SLOW_AND_FAST = {"a": 30.0, "b": 10.0}


@pytest.mark.parametrize(
    ("networks", "options", "tasks"),
    [
        ([A, B], {}, "a1 b1 a2 b2 a3 b3 a4 b4"),
        ([A], {"max_gpus": 2}, "a1 a2"),
        ([A], {"devices": 3, "max_gpus": 8}, "a1 a2 a3"),
        ([network("a", maximum=1), network("b", minimum=2, maximum=3)], {}, "a1 b2 b3"),
        # two with equal rates
        ([A, B, network("c")], {"keys": TWINS, "max_gpus": 2}, "a1 c1 a2 c2"),
        # a twin with wider bounds
        ([network("a", maximum=1), B], {"keys": TWINS, "max_gpus": 2}, "a1 b2"),
    ],
    ids=[
        "one GPU before two",
        "the spec",
        "the devices",
        "the bounds",
        "twins",
        "twins of other bounds",
    ],
)
def test_measurements_are_in_order_and_within_bounds(networks, options, tasks):
    assert (
        " ".join(
            f"{task.network}{task.gpus}" for task in run(make_measurement(networks, **options))
        )
        == tasks
    )


# The maximum is 30 / 10 GPUs, or two nodes.
@pytest.mark.parametrize(("gpus_per_node", "maximum"), [(1, 3), (3, 6)])
def test_measured_gpus_follow_from_single_gpu_rates(gpus_per_node, maximum):
    tasks = run(
        make_measurement([A, B], devices=9, gpus_per_node=gpus_per_node),
        lambda name, _: SLOW_AND_FAST[name],
        idle=9,
    )
    assert max(task.gpus for task in tasks) == maximum


def test_measurement_waits_until_enough_ranks_are_idle():
    measurement = make_measurement([network("a")], rates={"a": {1: 10.0}}, max_gpus=2)
    assert measurement.next(1) is None
    assert measurement.next(2) == MeasurementTask("a", 2)


def test_known_rates_are_not_measured_again():
    rates = {"a": {1: 10.0, 2: 18.0}, "b": {1: 5.0}}
    measurement = make_measurement([network("a"), network("b")], rates=rates, max_gpus=2)
    assert run(measurement, lambda *_: 7.0) == [MeasurementTask("b", 2)]
    assert rates["b"] == {1: 5.0}  # the argument is unchanged
    assert measurement.known_rates["b"] == {1: 5.0, 2: 7.0}
    assert (
        run(
            make_measurement(
                [network("a"), network("b")], rates=measurement.known_rates, max_gpus=2
            )
        )
        == []
    )


def test_failed_network_is_not_measured_again():
    measurement = make_measurement([network("a"), network("b")], max_gpus=3)
    tasks = run(measurement, lambda name, gpus: 0.0 if (name, gpus) == ("a", 2) else 1.0, idle=3)
    assert [task.gpus for task in tasks if task.network == "a"] == [1, 2]
    assert measurement.failed == {"a": Outcome("out of memory", is_failure=True)}
    assert [model.name for model in measurement.table(60).models] == ["b"]


def test_twin_of_a_failed_network_is_measured_instead():
    measurement = make_measurement([network("a"), network("b")], {"a": "k", "b": "k"}, max_gpus=3)
    tasks = run(
        measurement, lambda name, gpus: 0.0 if (name, gpus) == ("a", 2) else 1.0 * gpus, idle=3
    )
    assert sorted((task.network, task.gpus) for task in tasks) == [
        ("a", 1),
        ("a", 2),
        ("b", 2),
        ("b", 3),
    ]
    assert [(model.name, model.rates) for model in measurement.table(60).models] == [
        ("b", (1.0, 2.0, 3.0))
    ]


def test_measurement_without_results_ends():
    measurement = make_measurement([network("a"), network("b")], {"a": "k", "b": "k"})
    run(measurement, lambda *_: 0.0)
    assert (set(measurement.failed), measurement.table(60).models) == ({"a", "b"}, ())


def test_rates_count_up_to_the_first_gap():
    table = make_measurement(
        [network("a", 1, 2)], rates={"a": {1: 10.0, 2: 18.0, 4: 30.0}}, max_gpus=2
    ).table(60)
    assert (table.samples_per_epoch, table.gpus_per_node) == (60, 2)
    assert (table.models[0].rates, table.models[0].max_gpus) == ((10.0, 18.0), 2)


def test_measurement_starts_at_the_minimum_of_gpus():
    measurement = make_measurement([network("a", minimum=2), network("b")], devices=3, max_gpus=3)
    tasks = run(
        measurement, lambda name, gpus: 0.0 if (name, gpus) == ("a", 1) else 6.0 + gpus, idle=3
    )
    assert tasks == [
        MeasurementTask("b", 1),
        MeasurementTask("a", 2),
        MeasurementTask("b", 2),
        MeasurementTask("a", 3),
        MeasurementTask("b", 3),
    ]
    assert measurement.failed == {}
    assert [(model.name, model.rates) for model in measurement.table(60).models] == [
        ("a", (4.0, 8.0, 9.0)),
        ("b", (7.0, 8.0, 9.0)),
    ]


def test_network_without_enough_trainers_has_no_rates():
    measurement = make_measurement([network("a"), network("b", minimum=3)], max_gpus=2)
    task = measurement.next(1)
    measurement.limit_devices(2)
    measurement.add(task, 10.0, "")
    run(measurement, idle=2)
    assert [model.name for model in measurement.table(60).models] == ["a"]


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.sampled_from("klm"), st.integers(1, 5), st.integers(1, 5)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 5),
    st.sampled_from([None, 1, 2, 9]),
    st.sets(st.tuples(st.integers(0, 4), st.integers(1, 5))),
)
def test_measurement_ends_and_repeats_no_rate(created, devices, max_gpus, failing):
    networks = [
        network(f"n{index}", min(minimum, maximum, devices), maximum)
        for index, (_, minimum, maximum) in enumerate(created)
    ]
    keys = {f"n{index}": key for index, (key, *_) in enumerate(created)}
    measurement = make_measurement(networks, keys, devices=devices, max_gpus=max_gpus)
    fails = {(f"n{index}", gpus) for index, gpus in failing}
    tasks = run(
        measurement, lambda name, gpus: 0.0 if (name, gpus) in fails else 10.0 * gpus, idle=devices
    )
    good = [
        (keys[task.network], task.gpus) for task in tasks if (task.network, task.gpus) not in fails
    ]
    assert len(set(good)) == len(good)
    assert measurement.measured == measurement.total == len(tasks)
    assert all(
        task.gpus >= subject.min_gpus
        for task in tasks
        for subject in networks
        if subject.name == task.network
    )
    assert set(measurement.failed) == {task.network for task in tasks} & {
        name for name, gpus in fails if MeasurementTask(name, gpus) in tasks
    }
    table = measurement.table(60)
    assert [model.name for model in table.models] == [
        subject.name for subject in networks if subject.name not in measurement.failed
    ]
    assert all(
        model.rates == tuple(10.0 * (index + 1) for index in range(len(model.rates)))
        for model in table.models
    )


def test_failed_measurement_is_not_retried_on_missing_trainers():
    measurement = make_measurement(
        [network("a", minimum=3, maximum=4), network("b", minimum=3, maximum=4)],
        {"a": "same", "b": "same"},
    )
    task = measurement.next(4)
    assert task == MeasurementTask("a", 3)
    measurement.limit_devices(2)
    measurement.retry(task)  # a transient failure, but it needs three GPUs
    assert measurement.is_done
    measurement.add(task, 0.0, "out of memory")  # its twin needs three as well
    assert measurement.is_done
