"""Batches that the policy chooses: which epoch has which."""

import pytest

from fleet.comm import messages as msg
from fleet.control.effects import SaveRates
from fleet.control.launch_state import PolicyAnswer
from fleet.domain.network import StepRate
from scheduler.base import CommTime, Member, Round, StepTime
from tests.fleet.control.told import Told


class Choosing(Told):
    """A policy that wants network -> (devices, batch)."""

    def ask(self, rates, progress, cluster, least):
        wanted = self.wanted(progress) if callable(self.wanted) else self.wanted
        return PolicyAnswer(
            Round(
                tuple(
                    Member(name, devices, batch)
                    for name, (devices, batch) in wanted.items()
                    if name not in progress.finished
                )
            )
        )


def test_batch_of_each_epoch_follows_the_plan():
    told = Choosing(
        lambda progress: {"a": ((0,), 16 if progress.epochs_done else 8)}, networks="a", trainers=1
    )
    told.ready()
    assert told.read() == {1: [msg.Start(told.setup.spec.by_name["a"], (1,), 1, 0, batch=8)]}
    told.hear(msg.Joined("a"))
    told.end_epoch("a")
    assert told.read() == {1: [msg.Continue(1, 16)]}
    assert [
        [(member.name, member.batch) for member in plan.members] for plan in told.of("PlanChanged")
    ] == [[("a", 8)], [("a", 16)]]


def test_batch_changes_at_the_epoch_after_a_group_grows():
    wanted = {"a": ((0,), 8), "b": ((1,), 8)}
    told = Choosing(
        lambda progress: {"a": ((0, 1), 16)} if "b" in progress.finished else wanted, trainers=2
    ).begin()
    told.end_epoch("b", final="enough")
    told.read()
    told.hear(msg.Stopped("b", 0.0), msg.Ready(2))
    told.hear(msg.Built("a", 2))
    told.read()
    told.hear(msg.Paused("a", 0))
    (order,) = told.read()[1]
    assert isinstance(order, msg.Regroup)
    assert (order.ranks, order.batch) == ((1, 2), 16)
    told.hear(msg.Regrouped("a", 30, 0.1))
    told.end_epoch("a", gpus=2)
    assert told.read() == {1: [msg.Continue(1, 16)]}


def test_a_replay_repeats_the_batches_whatever_the_policy_wants():
    told = Choosing(
        {"a": ((0,), 8)}, networks="a", trainers=1, replayed=(4, 7, 9), replayed_batches=(8, 32, 16)
    )
    told.ready()
    assert [order.batch for order in told.read()[1]] == [8]
    told.hear(msg.Joined("a"))
    told.end_epoch("a", stream_epoch=4)
    assert told.read() == {1: [msg.Continue(7, 32)]}
    told.end_epoch("a", stream_epoch=7)
    assert told.read() == {1: [msg.Continue(9, 16)]}


def step_s(samples):
    """Of a step on one GPU."""
    return 0.1 + samples / 100


def measured(order, fits):
    """What a group answers whose exchanges take 0.05 s, and of whose GPUs none holds more than ``fits`` samples."""
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
    """A launch that measures its networks first: what it asked, and the rates that it found out."""

    def __init__(self, fits=30, size=(10, 30), trainers=2, gpus=(1, 4)):
        super().__init__(
            {"a": (tuple(range(gpus[0])), size[0])},
            networks="a",
            trainers=trainers,
            measures=True,
            gpus={"a": list(gpus)},
            parts={"train": {"batch": {"size": list(size)}}, "schedule": {"policy": "elastic"}},
        )
        self.ready()
        self.orders, self.kept = [], []
        while found := {
            order.ranks: order
            for mail in self.read().values()
            for order in mail
            if isinstance(order, msg.Measure)
        }:
            self.orders += found.values()
            for order in found.values():
                effects = self.hear(
                    measured(order, fits), *(msg.Ready(rank) for rank in order.ranks)
                )
                self.kept += [effect.rates() for effect in effects if isinstance(effect, SaveRates)]


def test_measurement_times_steps_and_exchanges_before_training():
    told = Measuring()
    assert [(len(order.ranks), order.batches) for order in told.orders] == [
        (1, (10, 17, 30)),
        (2, (30,)),
    ]
    (table,) = told.kept
    (network,) = table.models
    assert (network.batches, network.params_mb) == ((10, 30), 1.0)
    assert network.step_s == tuple(
        StepTime(batch, pytest.approx(step_s(batch))) for batch in (10, 17, 30)
    )
    assert table.comm_s == (CommTime(1.0, 2, pytest.approx(0.05)),)
    assert network.rates == pytest.approx((30 / 0.4, 30 / 0.3))
    assert len(told.of("GroupStarted")) == 1


def test_batch_that_does_not_fit_limits_what_a_gpu_holds():
    told = Measuring(fits=20)
    assert [step.batch for step in told.kept[0].models[0].step_s] == [10, 17]
    assert told.kept[0].models[0].rates == pytest.approx(
        (17 / step_s(17), 30 / (step_s(15) + 0.05))
    )


def test_network_with_one_fitting_batch_fails_with_a_reason():
    told = Measuring(fits=10)
    assert told.standings["a"].outcome.is_failure
    assert "two batches or more" in told.standings["a"].outcome.reason


def test_measurement_on_fewer_gpus_uses_batches_that_fit():
    told = Measuring(fits=32, size=(100, 128), trainers=4, gpus=(4, 4))
    assert [(len(order.ranks), order.batches) for order in told.orders] == [
        (1, (25, 28, 32)),
        (2, (64,)),
        (3, (96,)),
        (4, (128,)),
    ]
    assert told.kept[0].models[0].min_gpus == 4
    assert len(told.of("GroupStarted")) == 1


def test_epoch_on_fewer_gpus_keeps_samples_per_gpu():
    wanted = {"a": ((0,), 8), "b": ((1,), 8)}
    told = Choosing(
        lambda progress: {"a": ((0, 1), 24)} if "b" in progress.finished else wanted,
        trainers=2,
        parts={"train": {"batch": {"size": [4, 24]}}, "schedule": {"policy": "elastic"}},
    ).begin()
    told.end_epoch("b", final="enough")
    told.read()
    told.end_epoch("a")  # before the device of b is free
    assert told.read() == {1: [msg.Continue(1, 12)]}
