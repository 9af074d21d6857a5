"""Labels of custom sources: classes, or an error in one line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess.source import open_data
from preprocess.target_checks import checked_labels
from tests.preprocess.samples import Memory, numbered


class Labelled(Memory):
    """Make a source with any labels."""

    def __init__(self, labels, classes=("a", "b"), count=None):
        super().__init__(
            [numbered(2, 2)] * (len(labels) if count is None else count), classes=classes
        )
        self.labels = labels

    def __len__(self):
        return len(self.samples)


WRONG = [
    (
        np.array([0.0, 0.5, 1.7]),
        "sample 1 has the label 0.5, of type float64; labels should be 3 integers from 0 to 1",
    ),
    (np.array([1.0, 0.0]), "sample 0 has the label 1.0, of type float64"),
    (np.array([0, np.nan, 1]), "sample 1 has the label nan"),
    ([0, 1, 0.25], "sample 2 has the label 0.25"),
    (np.array(["b", "a"]), "sample 0 has the label b, of type <U1"),
    (np.array([0, None]), "sample 0 has the label 0, of type object"),
    (
        np.array([0, 1, 5, 1, -1]),
        r"sample 2 has the label 5 \(and 1 more\), not one of the 2 classes",
    ),
    (
        np.array([1, 0, -1]),
        "sample 2 has the label -1, not one of the 2 classes; labels should be 3 integers from 0",
    ),
    (np.array([2**63], np.uint64), "sample 0 has the label 9223372036854775808"),
    (np.zeros((3, 1), int), r"array of shape \(3, 1\) for 3 samples; .*; use labels\[:, 0\]$"),
    (
        np.eye(2, dtype=int),
        r"array of shape \(2, 2\) for 2 samples; .*use labels.argmax\(axis=1\)",
    ),
    ([[0], [1, 0]], "its labels are not one number for each sample: ValueError: "),
    (np.array(1), r"array of shape \(\) for 1 sample"),
]


@pytest.mark.parametrize(("labels", "message"), WRONG)
def test_checked_labels_names_the_first_wrong_sample(labels, message):
    count = 1 if isinstance(labels, np.ndarray) and not labels.ndim else len(labels)
    with pytest.raises(InputError, match=f"^mine:f: .*{message}") as caught:
        checked_labels(Labelled(labels, count=count), "mine:f")
    assert "\n" not in str(caught.value)


def test_labels_are_one_per_sample():
    with pytest.raises(InputError, match=r"shape \(3,\) for 2 samples"):
        checked_labels(Labelled(np.array([0, 1, 1]), count=2), "mine:f")


@given(
    st.lists(st.integers(0, 4), max_size=20), st.sampled_from([np.int64, np.uint8, np.int32, list])
)
def test_integers_of_any_type_and_lists_of_them_are_labels(values, kind):
    labels = values if kind is list else np.array(values, kind)
    assert checked_labels(Labelled(labels, classes="abcde"), "mine:f").tolist() == values


def test_truth_is_a_label_too():
    assert checked_labels(Labelled(np.array([False, True])), "mine:f").tolist() == [0, 1]


# ---- where data are opened --------------------------------------------------------------------


def halves(path):
    return Labelled(np.arange(8) / 8)


def validation_outside(path):
    return Labelled(np.arange(8) % 2), Labelled(np.arange(4))


def with_a_list(path):
    return Labelled([0, 1, 0, 1], classes=["a", "b"])


def without_classes(path):
    return Labelled(np.array([], int), classes=())


@pytest.mark.parametrize("validation", [None, 0.25, "elsewhere"])
def test_opening_data_looks_at_the_labels_first(validation):
    with pytest.raises(InputError, match=f"^{__name__}:halves: sample 1 has the label 0.125, "):
        open_data(f"{__name__}:halves", None, validation, 0)


def test_labels_of_validation_data_are_looked_at_too():
    with pytest.raises(
        InputError,
        match="^tests.*:validation_outside of here, validation: sample 2 has the label 2 ",
    ):
        open_data(f"{__name__}:validation_outside", "here", None, 0)


def test_labels_list_of_labels_is_read_like_an_array():
    data = open_data(f"{__name__}:with_a_list", None, 0.5, 0)
    assert (sorted(data.train.labels), sorted(data.validation.labels)) == ([0, 1], [0, 1])
    assert (data.classes, data.train.read(1).shape) == (("a", "b"), (2, 2, 1))


def test_no_classes_are_too_few():
    with pytest.raises(InputError, match="without_classes: no classes; at least two are needed"):
        open_data(f"{__name__}:without_classes", None, None, 0)
