"""Optimizers under PyTorch: equal to plain loops, groups, optimizers of users, states of 0.2."""

import inspect

import numpy as np
import pytest

from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from fleet.spec.engines import ENGINES
from fleet.vocabulary.optimizers import COMMON
from fleet.vocabulary.torch_optimizers import OF_KERAS, TORCH_OPTIMIZERS, UNUSABLE
from tests.fleet.engines.async_steps import take_step
from tests.fleet.engines.torch.test_network import (
    FLAT,
    MODULES,
    built,
    custom,
    flat_batch,
    module_like,
    weights_of,
)
from tests.refusals import refused

pytestmark = pytest.mark.torch

EPOCHS, BATCHES = 10, 3
MODEL = custom("with_spare_parts")  # one layer has a gradient in every other step, one never


def losses_of(trainable, steps=EPOCHS * BATCHES, first=0):
    return [
        take_step(trainable, *flat_batch(step % BATCHES), 12).loss / 12
        for step in range(first, first + steps)
    ]


def plain_losses(module, optimizer, steps=EPOCHS * BATCHES, before_step=lambda step: None):
    """Return the losses of a plain PyTorch loop."""
    import torch

    losses = []
    for step in range(steps):
        inputs, labels = map(torch.from_numpy, flat_batch(step % BATCHES))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module.train()(inputs), labels)
        loss.backward()
        before_step(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_equal_weights(trainable, module, tolerance=1e-6):
    for name, value in module.state_dict().items():
        assert weights_of(trainable)[name] == pytest.approx(value.numpy(), abs=tolerance), name


CASES = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-6, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.02, "fused": True}),
    ("AdamW", {"lr": 0.02, "weight_decay": 0.3}),
    ("Adadelta", {}),
    ("Adafactor", {}),
    ("Adagrad", {"lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    ("Adamax", {}),
    ("ASGD", {"t0": 3.0}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "alpha": 0.9}),
    ("Rprop", {}),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_optimizer_equals_a_plain_loop_over_ten_epochs(name, settings):
    import torch

    trainable = built(MODEL, FLAT, optimizer={"name": name, **settings})
    module = module_like(trainable, "with_spare_parts")
    plain = getattr(torch.optim, name)(module.parameters(), **settings)
    assert losses_of(trainable) == pytest.approx(plain_losses(module, plain), abs=1e-6)
    assert_equal_weights(trainable, module)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_optimizer_resumes_bit_for_bit(name, settings):
    optimizer = {"name": name, **settings}
    trainable, resumed = built(MODEL, FLAT, optimizer=optimizer), built(MODEL, FLAT, seed=1)
    resumed = built(MODEL, FLAT, seed=1, optimizer=optimizer)
    resumed.load(trainable.state())  # before any step
    assert losses_of(trainable, 4) == losses_of(resumed, 4)
    resumed = built(MODEL, FLAT, seed=1, optimizer=optimizer)
    resumed.load(trainable.state())
    resumed.module.calls = trainable.module.calls
    assert losses_of(trainable, 4, 4) == losses_of(resumed, 4, 4)
    for key, array in trainable.state().items():
        assert np.array_equal(array, resumed.state()[key]), key


def test_table_of_optimizers_is_that_of_torch():
    import torch

    classes = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and name != "Optimizer"
    }
    assert classes.keys() == {*TORCH_OPTIMIZERS, *UNUSABLE}
    for name, word in TORCH_OPTIMIZERS.items():
        arguments = dict(inspect.signature(classes[name]).parameters)
        assert arguments.pop("lr").default == word.learning_rate, name
        around = (COMMON - {"weight_decay"}) | {"groups", "rho", *OF_KERAS}
        takes = word.takes - (around - {"rho"} if name == "adadelta" else around)
        assert takes == set(arguments) - {"params", "capturable", "differentiable"}, name


def test_slots_of_optimizers_match_their_state():
    for name, settings in CASES:
        trainable = built(custom("gated"), FLAT, optimizer={"name": name, **settings})
        word = TORCH_OPTIMIZERS[name.lower()]
        slots = [
            key
            for key, array in trainable.state().items()
            if key.endswith("/linear.weight") and key.startswith("optimizer/") and array.ndim == 2
        ]
        has_momentum = bool(settings.get("momentum")) and word.slot_of_momentum
        options = sum(map(bool, (settings.get("amsgrad"), settings.get("centered"), has_momentum)))
        assert len(slots) <= word.slots + options + (name == "Adafactor"), name


def test_groups_of_parameters_equal_those_of_torch():
    import torch

    groups = [
        {"match": ["*.bias", "norm*"], "weight_decay": 0},
        {"match": "body.*", "lr": 0.05, "betas": [0.8, 0.9]},
    ]
    with refused(SettingError, "group 1: no trainable parameter matches 'norm*'", "body.weight"):
        built(MODEL, FLAT, optimizer={"name": "adamw", "groups": groups})
    groups[0]["match"] = "*.bias"
    optimizer = {"name": "adamw", "lr": 0.01, "weight_decay": 0.2, "groups": groups}
    trainable = built(MODEL, FLAT, optimizer={**optimizer, "global_clipnorm": 0.5})
    module = module_like(trainable, "with_spare_parts")
    named = dict(module.named_parameters())
    body = {"lr": 0.05, "betas": (0.8, 0.9)}
    plain = torch.optim.AdamW(
        [
            {"params": [named["body.weight"]], **body},
            {"params": [named["body.bias"]], **body, "weight_decay": 0.0},
            {"params": [named["spare.weight"], named["extra.weight"]]},
            {"params": [named["spare.bias"], named["extra.bias"]], "weight_decay": 0.0},
        ],
        lr=0.01,
        weight_decay=0.2,
    )

    def clip(_):
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)

    assert losses_of(trainable) == pytest.approx(plain_losses(module, plain, before_step=clip))
    assert_equal_weights(trainable, module)


def test_schedule_scales_the_rates_of_groups():
    import torch

    cosine = {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 40}
    groups = [{"match": "*.bias", "lr": 0.02}]
    optimizer = {"name": "sgd", "momentum": 0.9, "lr": cosine, "groups": groups}
    trainable = built(MODEL, FLAT, optimizer=optimizer)
    module = module_like(trainable, "with_spare_parts")
    named = dict(module.named_parameters())
    plain = torch.optim.SGD(
        [
            {"params": [value for name, value in named.items() if name.endswith("weight")]},
            {
                "params": [value for name, value in named.items() if name.endswith("bias")],
                "lr": 0.02,
            },
        ],
        lr=0.1,
        momentum=0.9,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 40)
    plain.register_step_post_hook(lambda *_: schedule.step())
    assert losses_of(trainable) == pytest.approx(plain_losses(module, plain), abs=1e-6)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"weight_decay": 0}, "needs `match`"),
        ({"match": "*.bias", "wd": 0}, "unknown key 'wd'"),
        ({"match": "*.bias", "weight_decay": -1}, "weight_decay"),
        ({"match": "*.bias", "use_ema": True}, "use_ema applies to all parameters"),
        ({"match": "*.bias", "momentum": 0.9}, "adam takes no momentum"),
        ({"match": "*.bias", "lr": {"name": "CosineDecay"}}, "lr should be a number"),
    ],
)
def test_invalid_group_of_parameters_is_a_mistake(group, message):
    with refused(SpecError, message):
        built(MODEL, FLAT, optimizer={"name": "adam", "groups": [group]})


@pytest.mark.parametrize(
    ("engine", "optimizer", "message"),
    [
        ("torch", {"name": "radam", "epsilon": 1e-7}, "radam takes no epsilon; write eps"),
        ("torch", {"name": "LBFGS"}, "lbfgs computes the loss of a batch several times"),
        ("keras", {"name": "adam", "betas": [0.9, 0.99]}, "write beta_1 and beta_2"),
        ("keras", {"name": "adam", "groups": [{"match": "a"}]}, "use the engine torch"),
        ("torch", {"lr": 0.1, "learning_rate": 0.1}, "is another name of learning_rate"),
        ("keras", {"name": "radam"}, "the keras engine has no optimizer 'radam'"),
    ],
)
def test_key_of_the_wrong_library_is_answered(engine, optimizer, message):
    content = {"models": [{"family": "softmax"}], "resources": {"engine": engine}}
    with refused(SpecError, message):
        parse({**content, "train": {"optimizer": optimizer}})


def test_names_of_keras_still_mean_arguments_of_torch():
    optimizers = [
        {"name": "adam", "beta_1": 0.8, "epsilon": 1e-6},
        {"name": "adam", "betas": [0.8, 0.999], "eps": 1e-6},
    ]
    of_keras, of_torch = (built(MODEL, FLAT, optimizer=optimizer) for optimizer in optimizers)
    assert losses_of(of_keras, 4) == losses_of(of_torch, 4)


def test_rate_in_a_space_may_be_called_lr():
    spec = parse(
        {
            "models": [{"family": "softmax", "grid": {"train.optimizer.lr": [0.1, 0.2]}}],
            "resources": {"engine": "torch"},
        }
    )
    assert [network.train.optimizer.learning_rate for network in spec.networks] == [0.1, 0.2]


# ---- optimizers of users -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch.optim:Adam", f"{MODULES}:plain_adam"])
def test_everything_around_an_own_optimizer_works(name):
    around = {
        "learning_rate": {
            "name": "PolynomialDecay",
            "initial_learning_rate": 0.05,
            "decay_steps": 9,
        },
        "clipnorm": 0.4,
        "use_ema": True,
        "ema_momentum": 0.8,
        "groups": [{"match": "*.bias", "lr": 0.01}],
    }
    batch = {"accumulate": 2}
    networks = [
        built(MODEL, FLAT, optimizer={"name": kind, **around}, batch=batch)
        for kind in (name, "adam")
    ]
    assert losses_of(networks[0]) == losses_of(networks[1])
    assert networks[0].evaluate(*flat_batch()) == networks[1].evaluate(*flat_batch())


def test_weight_decay_of_an_own_optimizer_is_decoupled():
    optimizers = [
        {"name": f"{MODULES}:plain_adam", "lr": 0.02, "weight_decay": 0.3},
        {"name": "adamw", "lr": 0.02, "weight_decay": 0.3},
    ]
    first, second = (built(MODEL, FLAT, optimizer=optimizer) for optimizer in optimizers)
    assert losses_of(first) == pytest.approx(losses_of(second), abs=1e-6)


def test_names_of_parameters_reach_an_own_optimizer():
    trainable = built(MODEL, FLAT, optimizer={"name": f"{MODULES}:biased", "lr": 0.1})
    before = weights_of(trainable)
    losses_of(trainable, 2)
    changed = {
        name
        for name, value in weights_of(trainable).items()
        if not np.array_equal(value, before[name])
    }
    assert changed == {"body.bias", "extra.bias"}
    plain = built(MODEL, FLAT, optimizer={"name": "torch.optim:SGD"})
    (group,) = plain.steps.updates.optimizer.param_groups
    assert group["param_names"] == list(plain.steps.flat.parameters)


def test_own_optimizer_may_count_with_plain_numbers():
    optimizer = {"name": f"{MODULES}:alternating", "lr": 0.1}
    trainable, resumed = (built(MODEL, FLAT, optimizer=optimizer) for _ in range(2))
    losses_of(trainable, 3)
    resumed.load(trainable.state())
    resumed.module.calls = trainable.module.calls
    assert losses_of(trainable, 4) == losses_of(resumed, 4)


# ---- runs of 0.2 ---------------------------------------------------------------------------------


def state_of_0_2(trainable, names):
    """Return a state as FLEET 0.2 has saved it: Keras' names, and no counters of parameters."""
    state = trainable.state()
    updates = trainable.steps.updates
    rate = updates.learning_rate()
    result = {}
    for key, array in state.items():
        head, _, parameter = key.removeprefix("optimizer/").partition("/")
        if key.startswith("model/") or head == "iterations":
            result[key] = array
        elif head == "mu_product":
            result["optimizer/u_product"] = np.float64(array)
        elif head == "momentum_buffer":
            result[f"optimizer/momentum/{parameter}"] = -np.float32(rate) * array
        elif head in names:
            result[f"optimizer/{names[head]}/{parameter}"] = array
    return result


ADAM = {"exp_avg": "momentum", "exp_avg_sq": "velocity", "max_exp_avg_sq": "velocity_hat"}


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        ({"name": "sgd", "momentum": 0.9}, {}),
        ({"name": "adam", "amsgrad": True}, ADAM),
        ({"name": "nadam"}, ADAM),
        ({"name": "rmsprop"}, {"square_avg": "velocity"}),
    ],
)
def test_checkpoint_of_0_2_is_converted(optimizer, names):
    model = custom("gated")
    trainable, resumed = (built(model, FLAT, optimizer=optimizer) for _ in range(2))
    losses_of(trainable, 4)
    old = state_of_0_2(trainable, names)
    assert not any("started" in key or "step" in key for key in old)
    resumed.load(old)
    assert losses_of(resumed, 4) == pytest.approx(losses_of(trainable, 4), abs=1e-6)


def test_run_of_0_2_keeps_the_rules_of_keras():
    content = {"models": [{"family": "softmax"}], "resources": {"engine": "torch"}}
    (network,) = parse({**content, "defaults": "0.2"}).networks
    assert network.train.optimizer.learning_rate == 0.01
    assert ENGINES["torch"].words.optimizers["sgd"].learning_rate == 0.001


def test_weight_that_a_module_replaces_is_trained():
    import torch

    settings = {"lr": 0.1, "momentum": 0.9}
    trainable = built(custom("renormalizing"), FLAT, optimizer={"name": "SGD", **settings})
    module = module_like(trainable, "renormalizing")
    plain = torch.optim.SGD(module.parameters(), **settings)
    assert losses_of(trainable, 6) == pytest.approx(plain_losses(module, plain, 6), abs=2e-5)
    assert_equal_weights(trainable, module, 2e-5)
