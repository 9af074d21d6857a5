"""Networks that do not fit the data."""

import pytest

from fleet.spec import parse
from fleet.spec.fit_checks import find_misfits
from preprocess.sample import ArraySpec, SampleSpec

SAMPLE = SampleSpec(ArraySpec((4, 4, 1), "uint8"), 3)


def misfits(**rate):
    """Return what is wrong with a schedule for 3 epochs of 3 steps."""
    spec = parse(
        {
            "models": [{"family": "softmax"}],
            "resources": {"engine": "torch"},
            "train": {
                "batch": {"size": 24},
                "optimizer": {"learning_rate": {"name": "OneCycleLR", "max_lr": 0.1, **rate}},
                "stopping": {"max_epochs": 3},
            },
        }
    )
    return [(wrong, right) for *_, wrong, right in find_misfits(spec, SAMPLE, 60, True)]


@pytest.mark.parametrize(
    ("rate", "wrong"),
    [
        ({"total_steps": 5}, "total_steps: the schedule ends after 5 of 9 steps"),
        ({"epochs": 2, "steps_per_epoch": 3}, "epochs: the schedule ends after 6 of 9 steps"),
        ({"total_steps": 2, "every": "epoch"}, "total_steps: the schedule ends after 2 of 3"),
    ],
)
def test_schedule_that_ends_before_the_training_is_refused(rate, wrong):
    [(message, right)] = misfits(**rate)
    assert f"train.optimizer.learning_rate.{wrong}" in message
    assert "epochs: 3" in right


@pytest.mark.parametrize(
    "rate", [{"total_steps": 9}, {"epochs": 3}, {"total_steps": 3, "every": "epoch"}]
)
def test_schedule_as_long_as_the_training_fits(rate):
    assert misfits(**rate) == []
