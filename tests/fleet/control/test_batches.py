"""Global batches that the policy chooses."""

import pytest

from fleet.comm import messages as msg
from fleet.control.effects import PolicyAnswered, SaveRates
from fleet.domain.network import StepRate
from scheduler.base import CommTime, Member, Round, StepTime
from tests.fleet.control.driver import ControllerDriver


class Choosing(ControllerDriver):
    """A controller whose plan has batches: network -> (devices, batch)."""

    def ask(self, question):
        progress = question.progress
        plan = self.plan(progress) if callable(self.plan) else self.plan
        return PolicyAnswered(
            Round(
                tuple(
                    Member(name, devices, batch)
                    for name, (devices, batch) in plan.items()
                    if name not in progress.finished
                )
            )
        )


def test_batch_of_each_epoch_follows_the_plan():
    driver = Choosing(
        lambda progress: {"a": ((0,), 16 if progress.epochs_done else 8)}, networks="a", trainers=1
    )
    driver.send_ready()
    assert driver.read_mail() == {
        1: [msg.Start(driver.setup.spec.by_name["a"], (1,), 1, 0, batch=8)]
    }
    driver.handle(msg.Joined("a"))
    driver.end_epoch("a")
    assert driver.read_mail() == {1: [msg.Continue(1, 16)]}
    assert [
        [(member.name, member.batch) for member in plan.members]
        for plan in driver.events_of("PlanChanged")
    ] == [[("a", 8)], [("a", 16)]]


def test_batch_changes_at_the_epoch_after_a_group_grows():
    plan = {"a": ((0,), 8), "b": ((1,), 8)}
    driver = Choosing(
        lambda progress: {"a": ((0, 1), 16)} if "b" in progress.finished else plan, trainers=2
    ).begin()
    driver.end_epoch("b", final="enough")
    driver.read_mail()
    driver.handle(msg.Stopped("b", 0.0), msg.Ready(2))
    driver.handle(msg.Built("a", 2))
    driver.read_mail()
    driver.handle(msg.Paused("a", 0))
    (order,) = driver.read_mail()[1]
    assert isinstance(order, msg.Regroup)
    assert (order.ranks, order.batch) == ((1, 2), 16)
    driver.handle(msg.Regrouped("a", 30, 0.1))
    driver.end_epoch("a", gpus=2)
    assert driver.read_mail() == {1: [msg.Continue(1, 16)]}


def test_replay_repeats_batches_whatever_the_plan():
    driver = Choosing(
        {"a": ((0,), 8)}, networks="a", trainers=1, replayed=(4, 7, 9), replayed_batches=(8, 32, 16)
    )
    driver.send_ready()
    assert [order.batch for order in driver.read_mail()[1]] == [8]
    driver.handle(msg.Joined("a"))
    driver.end_epoch("a", stream_epoch=4)
    assert driver.read_mail() == {1: [msg.Continue(7, 32)]}
    driver.end_epoch("a", stream_epoch=7)
    assert driver.read_mail() == {1: [msg.Continue(9, 16)]}


def step_s(samples):
    """Return the duration of a step on one GPU, in seconds."""
    return 0.1 + samples / 100


def answer_measurement(order, fits):
    """Return a measurement with exchanges of 0.05 s, if ``fits`` samples fit on a GPU."""
    gpus = len(order.ranks)
    timed = tuple(
        StepTime(batch, step_s(batch / gpus) + 0.05 * (gpus > 1))
        for batch in order.batches
        if batch <= fits * gpus
    )
    rate = timed[0].batch / timed[0].seconds if timed else 0.0
    return msg.Measured(
        order.network.name,
        gpus,
        StepRate(rate, 0.0, 5),
        1.0,
        "" if timed else "no memory",
        timed=timed,
        parameters=250_000,
    )


class Measuring(Choosing):
    """A launch that measures its networks first, with its measurements and saved rates."""

    def __init__(self, fits=30, size=(10, 30), trainers=2, gpus=(1, 4)):
        super().__init__(
            {"a": (tuple(range(gpus[0])), size[0])},
            networks="a",
            trainers=trainers,
            measures=True,
            gpus={"a": list(gpus)},
            parts={"train": {"batch": {"size": list(size)}}, "schedule": {"policy": "elastic"}},
        )
        self.send_ready()
        self.orders = []
        self.saved = []
        while actual := {
            order.ranks: order
            for mail in self.read_mail().values()
            for order in mail
            if isinstance(order, msg.Measure)
        }:
            self.orders += actual.values()
            for order in actual.values():
                effects = self.handle(
                    answer_measurement(order, fits), *(msg.Ready(rank) for rank in order.ranks)
                )
                self.saved += [
                    effect.rates() for effect in effects if isinstance(effect, SaveRates)
                ]


def test_measurement_times_steps_and_exchanges_before_training():
    driver = Measuring()
    assert [(len(order.ranks), order.batches) for order in driver.orders] == [
        (1, (10, 17, 30)),
        (2, (30,)),
    ]
    (table,) = driver.saved
    (network,) = table.models
    assert (network.batches, network.params_mb) == ((10, 30), 1.0)
    assert network.step_s == tuple(
        StepTime(batch, pytest.approx(step_s(batch))) for batch in (10, 17, 30)
    )
    assert table.comm_s == (CommTime(1.0, 2, pytest.approx(0.05)),)
    assert network.rates == pytest.approx((30 / 0.4, 30 / 0.3))
    assert len(driver.events_of("GroupStarted")) == 1


def test_measurement_drops_batches_that_do_not_fit():
    driver = Measuring(fits=20)
    assert [step.batch for step in driver.saved[0].models[0].step_s] == [10, 17]
    assert driver.saved[0].models[0].rates == pytest.approx(
        (17 / step_s(17), 30 / (step_s(15) + 0.05))
    )


def test_network_with_one_fitting_batch_fails_with_a_reason():
    driver = Measuring(fits=10)
    assert driver.statuses["a"].outcome.is_failure
    assert "two batches or more" in driver.statuses["a"].outcome.reason


def test_measurement_on_fewer_gpus_uses_batches_that_fit():
    driver = Measuring(fits=32, size=(100, 128), trainers=4, gpus=(4, 4))
    assert [(len(order.ranks), order.batches) for order in driver.orders] == [
        (1, (25, 28, 32)),
        (2, (64,)),
        (3, (96,)),
        (4, (128,)),
    ]
    assert driver.saved[0].models[0].min_gpus == 4
    assert len(driver.events_of("GroupStarted")) == 1


def test_epoch_on_fewer_gpus_keeps_samples_per_gpu():
    plan = {"a": ((0,), 8), "b": ((1,), 8)}
    driver = Choosing(
        lambda progress: {"a": ((0, 1), 24)} if "b" in progress.finished else plan,
        trainers=2,
        parts={"train": {"batch": {"size": [4, 24]}}, "schedule": {"policy": "elastic"}},
    ).begin()
    driver.end_epoch("b", final="enough")
    driver.read_mail()
    driver.end_epoch("a")  # before the device of b is free
    assert driver.read_mail() == {1: [msg.Continue(1, 12)]}
