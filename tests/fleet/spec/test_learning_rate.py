"""Learning rate schedules: what is wrong with one is said before Keras is loaded."""

import pytest

from fleet.errors import SpecError
from fleet.spec import load, parse

COSINE = {"name": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 100}


def refused(rate, **entry):
    with pytest.raises(SpecError) as caught:
        parse({"models": [{"family": "softmax", **entry}], "train": {"optimizer": {"learning_rate": rate}}})
    return str(caught.value)


@pytest.mark.parametrize(("rate", "said"), [
    ({**COSINE, "alhpa": 0.1}, "the schedule CosineDecay takes no alhpa; its arguments are initial_learning_rate"),
    ({"name": "CosineDecay", "initial_learning_rate": 0.1}, "the schedule CosineDecay lacks decay_steps"),
    ({**COSINE, "decay_steps": "many"}, "the schedule CosineDecay wants a number for decay_steps, not 'many'"),
    ({**COSINE, "decay_steps": 0}, "the schedule CosineDecay wants a number above 0 for decay_steps, not 0"),
    ({"name": "ExponentialDecay", "initial_learning_rate": 0.1, "decay_steps": 9, "decay_rate": 0.5, "staircase": 1},
     "the schedule ExponentialDecay wants true or false for staircase, not 1"),
    ({"name": "PiecewiseConstantDecay", "boundaries": [10], "values": [0.1]}, "not 1 boundaries and 1 values"),
    ({"name": "PiecewiseConstantDecay", "boundaries": 10, "values": [0.1]}, "wants a list of numbers for boundaries"),
])
def test_a_schedule_that_keras_would_refuse_is_a_mistake_of_the_spec(rate, said):
    assert said in refused(rate)


def test_all_that_is_wrong_with_an_optimizer_and_its_schedule_is_said_at_once():
    rate = {"name": "CosineDecay", "initial_learning_rate": "fast", "decay_steps": -5, "alhpa": 0.1}
    said = refused(rate, train={"optimizer": {"beta_1": 0.9}})
    assert all(part in said for part in ("takes no alhpa", "for initial_learning_rate, not 'fast'",
                                         "for decay_steps, not -5", "sgd takes no beta_1"))


def test_an_entry_may_give_what_a_schedule_at_the_top_lacks():
    rate = {"name": "CosineDecay", "initial_learning_rate": 0.1, "warmup_target": None}
    entry = {"train": {"optimizer": {"learning_rate": {"decay_steps": 7}}}}
    network, = parse({"models": [{"family": "softmax", **entry}],
                      "train": {"optimizer": {"learning_rate": rate}}}).networks
    assert network.train.optimizer.learning_rate["decay_steps"] == 7


def test_what_several_networks_lack_is_said_once_where_it_stands(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("models: [{family: softmax}, {family: cnn}]\ntrain:\n  optimizer:\n"
                    "    learning_rate: {name: CosineDecay, initial_learning_rate: 0.1}\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    mistake, = caught.value.mistakes
    assert (mistake.line, mistake.key) == (4, "train.optimizer.learning_rate")
