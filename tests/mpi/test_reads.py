"""Which rank reads which files: as few reads as possible."""

from collections import Counter

import numpy as np
import pytest

from preprocess.probe import PROBES
from tests.mpi.conftest import spec
from tests.sources import reads

SAMPLES, VALIDATION, EPOCHS = 61, 20, 3
MODELS = [{"family": "softmax", "name": name} for name in ("one", "other")]
MEASURED = SAMPLES  # a preprocessor measures its rate on the first 64 samples


def spread(part, count):
    """Return the samples of a split that rank 0 probes."""
    return [(part, index) for index in np.linspace(0, count - 1, PROBES).astype(int).tolist()]


# The first sample of a user's source tells whether it has several inputs.
LOOKED_AT = [
    ("opened", -1),
    ("train", 0),
    *spread("train", SAMPLES),
    *spread("validation", VALIDATION),
]


def run_noted(launch, tmp_path, **parts):
    folder = tmp_path / "reads"
    folder.mkdir()
    parts["data"] = {"options": {"folder": str(folder)}, **parts.get("data", {})}
    run = launch(3, spec(tmp_path, MODELS, SAMPLES, "noted", **parts))
    assert run.status == 0, run.output
    return reads(folder)


def test_reads_rank_0_probes_few_samples_and_others_none(launch, tmp_path):
    read = run_noted(launch, tmp_path)
    assert list(read) == [0]
    assert read[0][: len(LOOKED_AT)] == LOOKED_AT
    prepared = Counter(part for part, _ in read[0][len(LOOKED_AT) :])
    assert prepared["opened"] == 0
    assert prepared["validation"] == VALIDATION


@pytest.mark.long
def test_reads_of_stored_samples_happen_once(launch, tmp_path):
    read = run_noted(launch, tmp_path, data={"cache": "memory"})
    assert list(read) == [0]
    looked, prepared = read[0][: len(LOOKED_AT)], Counter(read[0][len(LOOKED_AT) :])
    assert looked == LOOKED_AT
    assert Counter(part for part, _ in prepared.elements()) == {
        "train": MEASURED + SAMPLES,
        "validation": VALIDATION,
    }


@pytest.mark.long
def test_reads_of_own_preprocessing_are_minimal(launch, tmp_path):
    read = run_noted(launch, tmp_path, schedule={"policy": "baseline"})
    assert read.pop(0) == LOOKED_AT
    assert sorted(read) == [1, 2]
    for own_rows in read.values():
        assert Counter(part for part, _ in own_rows) == {
            "train": EPOCHS * SAMPLES,
            "validation": VALIDATION,
        }
        assert {count for (part, _), count in Counter(own_rows).items() if part == "train"} == {
            EPOCHS
        }
