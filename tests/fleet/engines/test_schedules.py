"""Learning rate schedules: in epochs, of PyTorch, on a plateau, and functions of users."""

import math

import pytest

from fleet.engines.base import EpochProgress
from fleet.engines.schedules import Clock, rate_at
from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from tests.refusals import refused

COSINE = {"name": "CosineDecay", "initial_learning_rate": 0.1}
MODULES = "tests.torch_modules"


def rates_of(rate, steps=7, epochs=4, monitored=(), mode="min"):
    """Return the learning rates of all steps, as a run computes them."""
    return [
        rate_at(
            rate,
            epoch * steps + step,
            Clock(epoch * steps, EpochProgress(epoch, 0, steps, tuple(monitored[:epoch])), mode),
        )
        for epoch in range(epochs)
        for step in range(steps)
    ]


def test_schedule_in_epochs_equals_the_one_in_steps():
    warm = {"warmup_target": 0.2}
    in_steps = {**COSINE, **warm, "decay_steps": 21, "warmup_steps": 7}
    in_epochs = {**COSINE, **warm, "decay_epochs": 3, "warmup_epochs": 1}
    mixed = {**COSINE, **warm, "decay_epochs": 3, "warmup_steps": 7}
    assert rates_of(in_epochs) == rates_of(mixed) == rates_of(in_steps)


def test_schedule_of_epochs_changes_between_epochs():
    rates = rates_of({**COSINE, "decay_steps": 4, "every": "epoch"})
    assert [len(set(rates[first : first + 7])) for first in (0, 7, 14, 21)] == [1, 1, 1, 1]
    assert rates[7] == pytest.approx(0.05 * (1 + math.cos(math.pi / 4)))


def test_schedule_in_epochs_follows_the_length_of_each_epoch():
    rate = {**COSINE, "decay_epochs": 2}
    assert rate_at(rate, 10, Clock(10, EpochProgress(1, 0, 5))) == pytest.approx(0.05)
    assert rate_at(rate, 12, Clock(10, EpochProgress(1, 2, 4))) == pytest.approx(
        rate_at({**COSINE, "decay_steps": 4}, 3)
    )


@pytest.mark.parametrize("name", ["step", "epoch"])
def test_schedule_of_a_user_gets_steps_or_epochs(name):
    rate = {"name": f"{MODULES}:falling", "start": 1.0, "every": name}
    expected = [1 / (1 + step) for step in range(28)]
    if name == "epoch":
        expected = [1 / (1 + step // 7) for step in range(28)]
    assert rates_of(rate) == expected


def test_schedule_of_a_user_may_watch_a_metric():
    rates = rates_of({"name": f"{MODULES}:watching"}, monitored=[0.5, 0.25, 0.125])
    assert rates[::7] == [1.0, 0.5, 0.25, 0.125]


def test_schedule_of_a_user_that_fails_is_a_mistake():
    with refused(SettingError, "falling", "learning rate -1"):
        rate_at({"name": f"{MODULES}:falling", "start": -1.0}, 0)
    with refused(SettingError, "absent"):
        rate_at({"name": f"{MODULES}:absent"}, 0)


@pytest.mark.parametrize(
    ("engine", "rate", "message"),
    [
        ("torch", {**COSINE, "decay_steps": 3, "decay_epochs": 3}, "use one of them"),
        ("torch", {**COSINE, "decay_steps": 3, "every": "day"}, "it should be step or epoch"),
        ("torch", {"name": "StepLR", "gama": 0.1}, "StepLR has no argument gama"),
        ("torch", {"name": "StepLR"}, "StepLR needs the argument step_size"),
        ("torch", {"name": "torch.optim.lr_scheduler.StepLR"}, "StepLR needs the argument"),
        ("torch", {"name": "torch.optim.lr_scheduler.StLR"}, "no learning rate schedule 'StLR'"),
        ("keras", {"name": "StepLR", "step_size": 3}, "no learning rate schedule 'StepLR'"),
        ("keras", {**COSINE, "decay_epochs": 0}, "a number above 0"),
        ("numpy", {"name": f"{MODULES}:falling"}, "no learning rate schedule"),
    ],
)
def test_invalid_schedule_names_what_is_right(engine, rate, message):
    with refused(SpecError, message):
        parse(
            {
                "models": [{"family": "softmax"}],
                "resources": {"engine": engine},
                "train": {"optimizer": {"learning_rate": rate}},
            }
        )


def test_schedule_of_torch_begins_with_the_rate_of_the_optimizer():
    content = {"models": [{"family": "softmax"}], "resources": {"engine": "torch"}}
    for rate, first in (({}, 0.001), ({"lr": 0.5}, 0.5)):
        optimizer = {"name": "Adam", "lr": {"name": "StepLR", "step_size": 3, **rate}}
        (network,) = parse({**content, "train": {"optimizer": optimizer}}).networks
        assert network.train.optimizer.learning_rate["initial_learning_rate"] == first


@pytest.mark.parametrize("path", ["torch.optim.lr_scheduler.", "lr_scheduler."])
def test_schedule_of_torch_may_be_named_by_its_path(path):
    content = {"models": [{"family": "softmax"}], "resources": {"engine": "torch"}}
    rate = {"name": f"{path}SequentialLR", "milestones": [2]}
    rate["schedulers"] = [{"name": f"{path}LinearLR"}, {"name": f"{path}ConstantLR"}]
    (network,) = parse({**content, "train": {"optimizer": {"lr": rate}}}).networks
    parsed = network.train.optimizer.learning_rate
    assert parsed["name"] == "SequentialLR"
    assert [part["name"] for part in parsed["schedulers"]] == ["LinearLR", "ConstantLR"]


# ---- compared with PyTorch -----------------------------------------------------------------------

MONITORED = [1.0, 0.9, 0.95, 0.91, 0.899, 0.9, 0.9, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 1},
        {"patience": 2, "factor": 0.5, "cooldown": 2, "min_lr": 0.02},
        {"patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    ],
)
def test_plateau_equals_that_of_torch(mode, settings):
    import torch

    values = MONITORED if mode == "min" else [1 - value for value in MONITORED]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, **settings)
    expected = []
    for value in values:
        expected.append(optimizer.param_groups[0]["lr"])
        schedule.step(value)
    rate = {"name": "ReduceLROnPlateau", "initial_learning_rate": 0.1, **settings}
    assert rates_of(rate, 1, len(values), values, mode) == pytest.approx(expected)


@pytest.mark.torch
@pytest.mark.parametrize("anneal_strategy", ["cos", "linear"])
def test_one_cycle_equals_that_of_torch(anneal_strategy):
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.3, total_steps=28, anneal_strategy=anneal_strategy, cycle_momentum=False
    )
    expected = []
    for step in range(28):
        expected.append(optimizer.param_groups[0]["lr"])
        if step < 27:
            optimizer.step()
            schedule.step()
    rate = {
        "name": "OneCycle",
        "max_learning_rate": 0.3,
        "total_epochs": 4,
        "anneal_strategy": anneal_strategy,
    }
    assert rates_of(rate) == pytest.approx(expected, abs=1e-12)


SCHEDULES = [
    {"name": "StepLR", "step_size": 2, "gamma": 0.5},
    {"name": "MultiStepLR", "milestones": [2, 5]},
    {"name": "ConstantLR", "total_iters": 3},
    {"name": "LinearLR", "total_iters": 4},
    {"name": "ExponentialLR", "gamma": 0.9},
    {"name": "CosineAnnealingLR", "T_max": 6},
    {"name": "CosineAnnealingWarmRestarts", "T_0": 3, "T_mult": 2},
    {"name": "PolynomialLR", "total_iters": 6},
    {"name": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
    {"name": "OneCycleLR", "max_lr": 0.2, "total_steps": 40},
]


@pytest.mark.torch
@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("settings", SCHEDULES, ids=lambda settings: settings["name"])
def test_scheduler_of_torch_equals_a_plain_loop(settings, every):
    import torch

    from tests.fleet.engines.async_steps import take_step
    from tests.fleet.engines.torch import test_network as helpers

    sgd = {"name": "sgd", "momentum": 0.9}
    optimizer = {**sgd, "lr": {**settings, "lr": 0.1, "every": every}}
    networks = [
        helpers.built(helpers.FLAT_MODEL, helpers.FLAT, optimizer=optimizer) for _ in range(2)
    ]
    module = helpers.module_like(networks[0], "gated")
    plain = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    kind = getattr(torch.optim.lr_scheduler, settings["name"])
    schedule = kind(plain, **{key: value for key, value in settings.items() if key != "name"})
    losses, expected = [], []
    for epoch in range(10):
        for trainable in networks:
            trainable.begin_epoch(EpochProgress(epoch, 0, 3))
        for step in range(3):
            inputs, labels = map(torch.from_numpy, helpers.flat_batch(step))
            plain.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(inputs), labels)
            loss.backward()
            assert networks[0].learning_rate() == pytest.approx(plain.param_groups[0]["lr"])
            plain.step()
            expected.append(loss.item())
            losses.append(take_step(networks[0], *helpers.flat_batch(step), 12).loss / 12)
            if every == "step":
                schedule.step()
        if every == "epoch":
            schedule.step()
        if epoch == 5:  # another network resumes
            networks[1].load(networks[0].state())
            networks.reverse()
    assert losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("optimizer", "first"), [({"name": "sgd"}, 0.001), ({"name": "torch.optim:SGD"}, 0.001)]
)
def test_scheduler_class_of_a_user_equals_its_own(optimizer, first):
    import torch

    from tests import torch_schedules
    from tests.fleet.engines.torch import test_network as helpers

    plain = torch.optim.SGD([torch.zeros(1)], lr=first)
    schedule = torch_schedules.Wave(plain, 4)
    expected = []
    for _ in range(9):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        schedule.step()
    rate = {"name": "tests.torch_schedules:Wave", "period": 4}
    for settings in (rate, {"name": "SequentialLR", "milestones": [100], "schedulers": [rate] * 2}):
        trainable = helpers.built(
            helpers.FLAT_MODEL, helpers.FLAT, optimizer={**optimizer, "learning_rate": settings}
        )
        updates = trainable.steps.updates
        assert [updates._learning_rate_at(step) for step in range(9)] == pytest.approx(expected)


@pytest.mark.torch
def test_scheduler_class_of_a_user_that_fails_is_refused():
    from tests.fleet.engines.torch import test_network as helpers

    rate = {"name": "tests.torch_schedules:Wave", "perod": 4}
    with refused(SettingError, "tests.torch_schedules:Wave", "perod"):
        helpers.built(
            helpers.FLAT_MODEL, helpers.FLAT, optimizer={"name": "sgd", "learning_rate": rate}
        )


@pytest.mark.torch
def test_scheduler_of_torch_may_combine_others():
    from tests.fleet.engines.torch import test_network as helpers

    rate = {
        "name": "SequentialLR",
        "lr": 0.1,
        "milestones": [2],
        "schedulers": [
            {"name": "LinearLR", "start_factor": 0.1, "total_iters": 2},
            {"name": "LambdaLR", "lr_lambda": f"{MODULES}:halving"},
        ],
    }
    trainable = helpers.built(
        helpers.FLAT_MODEL, helpers.FLAT, optimizer={"name": "sgd", "learning_rate": rate}
    )
    updates = trainable.steps.updates
    assert [updates._learning_rate_at(step) for step in range(4)] == pytest.approx(
        [0.01, 0.055, 0.1, 0.05]
    )
