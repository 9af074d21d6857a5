"""Training steps of the user in any engine."""

import pytest

from fleet.engines.own_step import OwnStep
from fleet.errors import SettingError
from fleet.spec import parse
from preprocess.record_target import RecordTarget
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec
from tests.refusals import refused

NUMBER = SampleSpec(ArraySpec((1,), "float32"), 3)
TARGETS = RecordTarget.of({"price": TargetSpec("value", 1), "kind": TargetSpec("class", 3)})


def user_step(model, batch, training):
    """Return a loss."""


@pytest.fixture
def own_step():
    spec = parse({"models": [{"family": "softmax"}], "train": {"step": f"{__name__}:user_step"}})
    return OwnStep(spec.networks[0].train)


def sample(*names):
    return SampleSpec.of_parts(dict.fromkeys(names, NUMBER), TARGETS)


def test_own_step_tells_inputs_from_targets(own_step):
    own_step.check_sample(sample("age", "height"))


def test_own_step_refuses_an_input_named_like_a_target(own_step):
    with refused(SettingError, "'price'", "an input and a target"):
        own_step.check_sample(sample("age", "price"))
