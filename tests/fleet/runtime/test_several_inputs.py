"""Whole runs on samples of several inputs: every stream, store and number of ranks."""

import numpy as np
import pytest

from fleet.errors import ExitStatus
from fleet.storage.checkpoint import find_newest
from fleet.stream.order import Epoch, RingOrder, StrictOrder
from preprocess.base import RandomAccess
from preprocess.record_pipeline import make_pipeline
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.test_samples import (
    SEED,
    SHARDS,
    STREAMS,
    VALIDATION,
    Recorder,
    expected,
)

MOVES = [{"random_crop": {"size": [6, 6]}}, {"flip": {"horizontal": True}}]
SMALL = {"small": {"cache": "none", "shared_memory": 40_000}}  # a few chunks of records
TRANSFORMS = {
    "photo": [*MOVES, {"scale": {"mean": 0.5, "std": 0.5}}],
    "depth": MOVES,
    "facts": ["standardize"],
}

pytestmark = pytest.mark.usefixtures("quick")


class Photos(RandomAccess):
    """Photos with depth, facts and tokens; the facts of one sample have another shape."""

    def __init__(self, count, seed, bad=()):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 3, count)
        self.classes = ("a", "b", "c")
        self._photos = rng.integers(0, 256, (count, 8, 8, 3), np.uint8)
        self._facts = rng.normal(5, 3, (count, 2)).astype(np.float32)
        self._facts[:, 0] += 9 * self.labels
        self._bad = bad

    def read(self, index):
        photo, facts = self._photos[index], self._facts[index]
        return {
            "photo": photo,
            "depth": photo[:, :, :1],
            "facts": facts[:1] if index in self._bad else facts,
            "tokens": photo[0, 0].astype(np.int64) % 5,
        }

    def name(self, index):
        return f"photo {index}"


def photos(path):
    """Return training samples, one of them unreadable, and validation samples on request."""
    train = Photos(100, 1, bad=(7,))
    return (train, Photos(20, 2)) if path == "own" else train


def write_run(folder, stream, validation, **resources):
    folder.mkdir(exist_ok=True)
    return write(
        folder,
        [{"family": "softmax", "name": "net", "gpus": 1}],
        data={
            "source": f"{__name__}:photos",
            "path": validation,
            "max_unreadable": 0.5,
            "transforms": TRANSFORMS,
            "together": ["photo", "depth"],
            **(STREAMS | SMALL)[stream],
            **VALIDATION[validation],
        },
        train={
            "batch": {"size": 12},
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "stopping": {"max_epochs": 2, "monitor": "loss"},
        },
        schedule={"policy": "baseline" if "own" in stream else "adaptive"},
        profile={"batches": 4, "timed": 2, "max_gpus": 2},
        resources={"engine": "numpy", **resources},
    )


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("stream", "validation"),
    [
        ("none", "share"),
        ("small", "none"),
        ("ring", "own"),
        ("memory", "folds"),
        ("own none", "folds"),
        ("own memory", "share"),
    ],
)
def test_records_of_networks_are_those_of_their_epochs(stream, validation, tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch)
    resources = {} if "own" in stream else {"preprocessors": "auto"}
    status, prepared = launch(write_run(tmp_path, stream, validation, **resources), 3)
    assert status is ExitStatus.OK
    pipeline = make_pipeline(
        prepared.inputs.data.train, prepared.inputs.transforms, SEED, prepared.sample
    )
    epochs = recorder.epochs()
    assert len(epochs) >= 2 * len(prepared.spec.networks)
    for (name, number, path), checksums in epochs.items():
        if path:
            order = RingOrder(pipeline, -(-pipeline.samples // SHARDS), SEED)
        else:
            order = StrictOrder(pipeline, 64)
        plan = order.plan_epoch(Epoch(number, path))
        keeps = np.ones(len(plan.indices), bool)
        fold = prepared.spec.by_name[name].fold
        if fold is not None:
            keeps = prepared.inputs.folds[plan.indices] != fold
        assert checksums == expected(pipeline, plan.indices[keeps], plan.productions[keeps])


def history(prepared):
    records = find_newest(prepared.paths, "net", with_arrays=False).history
    return [(record.loss, record.val_loss) for record in records]


def test_results_of_records_do_not_depend_on_ranks_or_caches(tmp_path):
    results = []
    for cache, ranks in (("none", 1), ("memory", 1), ("memory", 2), ("none", 3)):
        path = write_run(
            tmp_path / f"{cache}{ranks}", cache, "own", preprocessors=min(1, ranks - 1)
        )
        status, prepared = launch(path, ranks)
        assert status is ExitStatus.OK
        results.append(history(prepared))
    assert results[0][-1][1] < results[0][0][0]
    assert all(single == pytest.approx(results[0], rel=1e-5) for single in results)
