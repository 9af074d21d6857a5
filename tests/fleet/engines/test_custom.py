"""Checks of users' functions that do not depend on a library."""

from pathlib import Path

import numpy as np
import pytest

from fleet.engines.custom import (
    build_custom_model,
    check_output_shape,
    find_activation,
    import_folder,
)
from fleet.errors import ModelError, UserError
from fleet.spec.model import Architecture

PROBABILITIES = np.array([[0.25, 0.75], [0.5, 0.5]])
BOUNDED = np.array([[0.25, 0.25], [0.5, 0.9]])


def build(input_shape, classes):
    """Build a network that needs no library."""
    return {"shape": input_shape, "outputs": classes}


def test_check_output_shape_names_both_shapes():
    check_output_shape("net", (2, 3), (3,))
    with pytest.raises(ModelError, match=r"\(None, 4\); .* \(None, 3\)"):
        check_output_shape("net", (2, 4), (3,))


@pytest.mark.parametrize(
    ("values", "is_multilabel", "noise", "activation"),
    [
        (PROBABILITIES, False, 9.0, "softmax"),
        (PROBABILITIES, True, 9.0, ""),
        (BOUNDED, False, 0.0, "sigmoid"),
        (BOUNDED, False, 9.0, ""),
        (BOUNDED - 1, False, 0.0, ""),
        (BOUNDED * np.nan, False, 0.0, ""),
    ],
    ids=["softmax", "labels", "sigmoid", "other weights", "negative", "NaN"],
)
def test_find_activation_of_outputs(values, is_multilabel, noise, activation):
    assert find_activation(values, is_multilabel, lambda _: values + noise) == activation


def test_import_folder_contains_the_whole_package():
    assert import_folder("tests.fleet.engines.test_custom:NET") == Path(__file__).parents[3]
    assert import_folder("unknown_module:NET") is None


@pytest.mark.parametrize(
    ("args", "hint"), [({"lr": 0.1}, "train.optimizer.learning_rate"), ({"units": 3}, "")]
)
def test_unknown_argument_names_the_key_that_it_means(args, hint):
    network = Architecture("tests.fleet.engines.test_custom:build", args)
    with pytest.raises(UserError) as refusal:
        build_custom_model(network, (2,), 3, dict, "mapping")
    message = f"got an unexpected keyword argument {next(iter(args))!r}"
    assert str(refusal.value).endswith(f"{message} (did you mean {hint}?)" if hint else message)
