"""Which networks may be trained as one program."""

import pytest

from fleet.comm.roles import assign_roles
from fleet.errors import UserError
from fleet.spec import parse
from fleet.spec.fusing import fuse_key, why_alone
from tests.refusals import refused

MLP = {"family": "mlp", "args": {"hidden": [4]}}


def networks(*entries, **train):
    models = [{**MLP, "name": f"n{number}", **entry} for number, entry in enumerate(entries)]
    return parse({"models": models, "resources": {"engine": "torch"}, "train": train}).networks


@pytest.mark.parametrize(
    ("entry", "is_equal"),
    [
        ({"train": {"optimizer": {"learning_rate": 0.5, "weight_decay": 0.1}}}, True),
        ({"train": {"optimizer": {"momentum": 0.5}}}, True),
        ({"train": {"stopping": {"max_epochs": 7}}}, True),
        (
            {
                "train": {
                    "optimizer": {
                        "learning_rate": {
                            "name": "CosineDecay",
                            "initial_learning_rate": 0.1,
                            "decay_steps": 5,
                        }
                    }
                }
            },
            True,
        ),
        ({"args": {"hidden": [5]}}, False),
        ({"train": {"batch": {"size": 7}}}, False),
        ({"train": {"optimizer": "adam"}}, False),
        ({"train": {"optimizer": {"nesterov": True}}}, False),
        ({"train": {"optimizer": {"use_ema": True}}}, False),
        ({"train": {"optimizer": {"clipnorm": 1.0}}}, False),
        ({"train": {"label_smoothing": 0.1}}, False),
        ({"train": {"precision": "mixed_bfloat16"}}, False),
    ],
)
def test_networks_differ_in_numbers_only(entry, is_equal):
    first, second = networks({}, entry, optimizer={"name": "sgd", "momentum": 0.9})
    assert (fuse_key(first) == fuse_key(second)) is is_equal
    assert why_alone(second) == ""


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"train": {"batch_transforms": ["mixup"]}}, "batch_transforms"),
        ({"train": {"compile": True}}, "compile"),
        ({"gpus": [2, 4]}, "2 GPUs"),
    ],
)
def test_network_that_is_not_fused_has_a_reason(entry, reason):
    (network,) = networks(entry)
    assert reason in why_alone(network)


@pytest.mark.parametrize(
    ("fuse", "networks_per_gpu", "fused", "fills"),
    [("off", 1, 1, False), (False, 1, 1, False), (3, 1, 3, True), ("auto", 1, 5, False)],
)
def test_trainers_of_a_rank_follow_the_spec(fuse, networks_per_gpu, fused, fills):
    resources = {"engine": "torch", "fuse": fuse, "networks_per_gpu": networks_per_gpu}
    spec = parse({"models": [{**MLP, "repeats": 5}], "resources": resources})
    roles = assign_roles(spec, [0, 0], None, cores=2)
    assert (roles.fused, roles.slots, roles.fills) == (fused, fused, fills)
    assert len(roles.trainers) == fused


def test_other_engines_do_not_fuse():
    with refused(UserError, "resources.fuse", "engine numpy", "torch"):
        parse({"models": [{"family": "softmax"}], "resources": {"engine": "numpy", "fuse": 2}})


def test_too_many_networks_on_a_gpu_are_refused():
    resources = {"engine": "torch", "fuse": 16, "networks_per_gpu": 8}
    with refused(UserError, "resources.fuse", "128", "at most 8"):
        parse({"models": [MLP], "resources": resources})
