"""Several optimizers of the user: each loss trains the parameters of its own."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.errors import SettingError, SpecError
from fleet.spec import parse
from preprocess.sample import ArraySpec, SampleSpec
from tests import torch_steps
from tests.fleet.one_process import Launch
from tests.refusals import refused

pytestmark = pytest.mark.torch

SAMPLE = SampleSpec(ArraySpec((5,), "float32"), 3)
SIZES = (8, 8, 8, 8)


def built(step="loss_of_each_part", optimizers="optimizers", group=None, **train):
    content = {
        "models": [{"build": "tests.torch_steps:parts"}],
        "resources": {"engine": "torch"},
        "train": {
            "step": step and f"tests.torch_steps:{step}",
            "optimizers": f"tests.torch_steps:{optimizers}",
            "stopping": {"monitor": "val_head", "direction": "min"},
            **train,
        },
    }
    spec = parse(content)
    return make_engine(spec, SAMPLE, None, 0, 1).build(
        replace(spec.networks[0], seed=0), group or SingleRankGroup()
    )


def batches():
    random = np.random.default_rng(0)
    for size in SIZES:
        yield random.random((size, 5), np.float32), random.integers(0, 3, size)


def trained(trainable):
    for rows in batches():
        size = [len(rows[1])]
        sums = trainable.user_steps.begin(StepBatches(rows, size, size), None)().sums
    return sums[0]


def plain_loop(module, alternates):
    """Train as a loop of PyTorch does, with both losses of one call or with one of each call."""
    import torch

    optimizers = torch_steps.optimizers(module)
    for inputs, labels in batches():
        batch = {"input": torch.from_numpy(inputs), "target": torch.from_numpy(labels)}
        if alternates:
            for name, optimizer in optimizers.items():
                module.zero_grad()
                torch_steps.loss_of_each_part(module, batch, True)[name].mean().backward()
                optimizer.step()
            continue
        losses = torch_steps.loss_of_each_part(module, batch, True)
        gradients = {
            name: torch.autograd.grad(
                losses[name].mean(), list(module[name].parameters()), retain_graph=True
            )
            for name in optimizers
        }
        for name, optimizer in optimizers.items():
            for parameter, gradient in zip(module[name].parameters(), gradients[name], strict=True):
                parameter.grad = gradient
            optimizer.step()


def assert_equal(module, expected):
    for name, value in expected.state_dict().items():
        assert module.state_dict()[name].numpy() == pytest.approx(value.numpy(), abs=1e-6), name


@pytest.mark.parametrize(
    ("step", "alternates"), [("loss_of_each_part", False), ("loss_of_one_part", True)]
)
def test_optimizers_equal_a_plain_loop(step, alternates):
    trainable = built(step)
    plain = copy.deepcopy(trainable.module)
    totals = trained(trainable)
    plain_loop(plain, alternates)
    assert_equal(trainable.module, plain)
    scores = trainable.scores(totals.metric_totals)
    assert set(scores) >= {"body", "head"}
    assert totals.loss == pytest.approx(8 * (scores["body"] + scores["head"]), rel=1e-5)
    assert totals.count == 8


@pytest.mark.parametrize("step", ["loss_of_each_part", "loss_of_one_part"])
def test_optimizers_are_exact_in_groups(step):
    alone = built(step)
    expected = trained(alone)
    results = {}

    def rank_main(world):
        trainable = built(step, group=world.group(range(2), 1))
        for rows in batches():
            share = slice(3) if world.rank == 0 else slice(3, None)
            local = tuple(part[share] for part in rows)
            step_batches = StepBatches(local, [len(rows[1])], [len(local[1])])
            sums = trainable.user_steps.begin(step_batches, None)().sums[0]
        results[world.rank] = sums, trainable.module

    assert Launch(2, 0).run(rank_main)
    for sums, module in results.values():
        assert sums.as_tuple == pytest.approx(expected.as_tuple, rel=1e-5)
        assert_equal(module, alone.module)


def test_optimizers_may_take_named_parameters():
    trainable = built(optimizers="optimizers_of_names")
    before = trainable.state()
    trained(trainable)
    assert all(
        not np.array_equal(value, before[name])
        for name, value in trainable.state().items()
        if name.startswith("model/")
    )


def test_optimizers_resume_from_a_state():
    first, second = built(), built()
    trained(first)
    second.load(first.state())
    assert trained(first) == trained(second)
    assert_equal(second.module, first.module)


def test_learning_rate_multiplies_those_of_optimizers():
    import torch

    trainable = built(optimizer={"learning_rate": 0.5})
    plain = copy.deepcopy(trainable.module)
    rows = next(iter(batches()))
    trainable.user_steps.begin(StepBatches(rows, [8], [8]), None)()
    batch = {"input": torch.from_numpy(rows[0]), "target": torch.from_numpy(rows[1])}
    torch_steps.loss_of_each_part(plain, batch, True)["head"].mean().backward()
    torch.optim.SGD(plain["head"].parameters(), lr=0.05, momentum=0.9).step()
    assert_equal(trainable.module["head"], plain["head"])


@pytest.mark.parametrize(
    ("optimizers", "names"),
    [
        ("shared_parameter", ["head.weight", "'body'", "'head'"]),
        ("single_optimizer", ["SGD", "by name"]),
        ("foreign_parameter", ["(3,)", "no parameter of the model"]),
    ],
)
def test_optimizers_refuse_mistakes(optimizers, names):
    with refused(SettingError, *names) as refusal:
        built(optimizers=optimizers)
    assert refusal.value.setting == ("train", "optimizers")


def test_optimizers_need_a_loss_each():
    with refused(SettingError, "'body'", "'head'"):
        built("classify_with_parts")


@pytest.mark.parametrize(
    ("setting", "name"), [({"optimizer": {"momentum": 0.9}}, "momentum"), ({"step": None}, "step")]
)
def test_optimizers_exclude_settings(setting, name):
    with refused(SpecError, "optimizers", name):
        built(stopping={"monitor": "val_loss"}, **setting)
