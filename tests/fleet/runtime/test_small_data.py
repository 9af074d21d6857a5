"""Linear models on small public data sets, with known results."""

import csv
import zlib

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.storage.results import read_results
from preprocess.base import RandomAccess
from tests.fleet.runtime.runs import launch, write

# ten lines about the sea, ten about the kitchen
LINES = """
the boat left the harbour with the tide
a gull followed the boat over the sea
waves broke on the rocks below the lighthouse
the sailor mended the sail on deck
fog lay on the sea and the harbour was still
the lighthouse warned the boat of rocks
the tide brought sea weed to the harbour
gull and sailor watched the waves
the deck was wet from waves and fog
a sail rose over the sea
the cook chopped onion and garlic
butter melted in the pan with onion
the oven was hot and the bread rose
a pinch of salt for the soup
the cook stirred the soup in the pot
garlic and butter on warm bread
the pot boiled over on the stove
flour and butter make the dough
the stove warmed the kitchen and the pan
salt and flour stood in the kitchen
""".strip().splitlines()

pytestmark = pytest.mark.usefixtures("quick")


def train_linear_model(folder, data, rate, epochs):
    """Train a linear model; return its row of results and the prepared launch."""
    status, prepared = launch(
        write(
            folder,
            seed=1,
            data=data,
            schedule={"policy": "baseline"},
            resources={"engine": "numpy"},
            train={
                "batch": {"size": 16},
                "optimizer": {"name": "sgd", "learning_rate": rate, "momentum": 0.9},
                "stopping": {"max_epochs": epochs},
            },
        ),
        1,
    )
    assert status is ExitStatus.OK
    [row] = read_results(prepared.paths.root)
    return row, prepared


def test_diabetes_as_a_table(tmp_path):
    """A linear model explains half of the variance (Efron et al., Least Angle Regression, 2004)."""
    diabetes = pytest.importorskip("sklearn.datasets").load_diabetes()
    deviation = diabetes.target.std()
    with open(tmp_path / "diabetes.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*diabetes.feature_names, "progression"])
        writer.writerows(
            [*(20 * row), value / deviation]
            for row, value in zip(diabetes.data, diabetes.target, strict=True)
        )
    row, prepared = train_linear_model(
        tmp_path,
        {
            "source": "table",
            "path": str(tmp_path / "diabetes.csv"),
            "validation": 0.2,
            "options": {"targets": "progression"},
            "transforms": [],
        },
        0.02,
        40,
    )
    assert (prepared.sample.input.shape, prepared.sample.target.kind) == ((10,), "value")
    assert row.val_loss < 0.65  # of a variance of 1
    assert np.isnan(row.val_accuracy)


def test_digits_as_arrays(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    np.savez(tmp_path / "digits.npz", x=digits.images.astype(np.float32) / 16, y=digits.target)
    row, prepared = train_linear_model(
        tmp_path,
        {
            "source": "npz",
            "path": str(tmp_path / "digits.npz"),
            "validation": 0.2,
            "target": "class",
            "transforms": [],
        },
        0.1,
        15,
    )
    assert (prepared.sample.input.shape, prepared.sample.classes) == ((8, 8), 10)
    assert row.val_accuracy > 0.93


class Lines(RandomAccess):
    """Lines of text as counts of hashed words, (64,) float32, of two classes."""

    classes = ("sea", "kitchen")

    def __init__(self, indices):
        self._indices = indices
        self.labels = np.array([index // 10 for index in indices])

    def read(self, index):
        counts = np.zeros(64, np.float32)
        for word in LINES[self._indices[index]].split():
            counts[zlib.crc32(word.encode()) % 64] += 1
        return counts

    def name(self, index):
        return LINES[self._indices[index]]


def lines(path):
    """Return training samples, and the last two of each class for validation."""
    return Lines([*range(8), *range(10, 18)]), Lines([8, 9, 18, 19])


def test_twenty_lines_of_text_as_hashed_features(tmp_path):
    row, prepared = train_linear_model(
        tmp_path, {"source": f"{__name__}:lines", "transforms": []}, 0.1, 30
    )
    assert prepared.sample.input.shape == (64,)
    assert (row.accuracy, row.val_accuracy) == (1, 1)
