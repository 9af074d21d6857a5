"""Whole runs whose samples are augmented on the device; results equal those on the host."""

import numpy as np
import pytest
import yaml

from fleet.errors import ExitStatus, SpecError
from fleet.runtime.replay import largest_difference
from fleet.runtime.startup.data import open_inputs
from fleet.spec import load
from fleet.storage.checkpoint import find_newest
from preprocess.transforms.on_device import OnDevice
from tests.fleet.runtime.runs import launch, write
from tests.fleet.runtime.test_cached_samples import photos
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("quick")

FINISH = [{"random_crop": {"size": [12, 10], "padding": 3}}, {"flip": {"horizontal": True}}]
BEFORE = ["decode", {"resize": {"size": [16, 16]}}]
JITTER = {"color_jitter": {"brightness": 0.5}}


def spec(
    path, folder, finish, transforms=(*BEFORE, JITTER, *FINISH, "scale"), models=({},), **data
):
    return write(
        path,
        [
            {"family": "softmax", "name": f"net{index}", **model}
            for index, model in enumerate(models)
        ],
        data={
            "path": str(folder),
            "validation": None if "folds" in data else 0.25,
            "transforms": list(transforms),
            "augment_on": finish,
            "max_unreadable": 0.2,
            **data,
        },
        train={
            "batch": {"size": 5},
            "optimizer": {"name": "sgd", "learning_rate": 1e-6},
            "stopping": {"max_epochs": 3},
        },
        profile={"batches": 4, "timed": 2, "max_gpus": 1},
    )


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "settings",
    [
        {"cache": "none"},
        {"cache": "memory"},
        {"cache": "file"},
        {"order": "ring", "shards": 3},
        {"folds": 2},
        {"cache": "memory", "test": 0.2, "transforms": [*BEFORE, *FINISH]},
        {
            "cache": "none",
            "models": [{}, {"data": {"transforms": [*BEFORE, {"flip": {"vertical": True}}]}}],
        },
        {
            "cache": "memory",
            "models": [{}, {"data": {"transforms": [*BEFORE, JITTER, *FINISH]}}],
        },  # without a scale
    ],
    ids=str,
)
def test_augmentation_on_device_equals_replay_on_host(settings, tmp_path):
    folder = photos(tmp_path / "photos", size=(24, 20), count=16)
    (folder / "a" / "broken.jpg").write_bytes(b"no image")
    models = settings.pop("models", [{}, {"gpus": 2}])
    path = spec(tmp_path / "device", folder, "device", models=models, **settings)
    status, on_device = launch(path, 3)
    assert status is ExitStatus.OK
    for network in on_device.spec.networks:
        status, on_host = launch(
            spec(tmp_path / network.name, folder, "host", models=models, **settings),
            3,
            replay=str(on_device.paths.root),
            only=network.name,
        )
        assert status is ExitStatus.OK
        histories = [
            find_newest(prepared.paths, network.name, with_arrays=False).history
            for prepared in (on_device, on_host)
        ]
        assert len(histories[0]) == 3
        assert largest_difference(*histories) == 0


def test_augmentation_may_move_between_host_and_device(tmp_path):
    folder = photos(tmp_path / "photos", size=(24, 20), count=16)
    status, complete = launch(spec(tmp_path / "whole", folder, "host", cache="memory"), 2)
    assert status is ExitStatus.OK
    status, launches = ExitStatus.RESUMABLE, 0
    while status is ExitStatus.RESUMABLE:
        launches += 1
        assert launches < 60
        path = spec(tmp_path / "parts", folder, ("host", "device")[launches % 2], cache="memory")
        status, parts = launch(path, 2, after=2 * launches)
    assert launches > 1
    states = [find_newest(single.paths, "net0") for single in (complete, parts)]
    assert [single.val_loss for single in states[0].state.history] == [
        single.val_loss for single in states[1].state.history
    ]
    assert all(
        np.array_equal(array, states[1].state.arrays[name])
        for name, array in states[0].state.arrays.items()
    )


@pytest.mark.parametrize(
    ("transforms", "shared"), [([*BEFORE, *FINISH], False), ([*BEFORE, JITTER, *FINISH], True)]
)
def test_augmentation_epochs_are_not_kept_for_the_device(transforms, shared, tmp_path):
    folder = photos(tmp_path / "photos", size=(24, 20))
    for finish, is_kept in (("host", True), ("device", shared)):
        _, prepared = launch(spec(tmp_path / finish, folder, finish, transforms, cache="memory"), 2)
        assert bool(prepared.augmented_epochs) == is_kept


def test_augmentation_on_device_is_described(tmp_path):
    folder = photos(tmp_path / "photos", size=(24, 20))
    opened = open_inputs(load(spec(tmp_path, folder, "device")))
    assert opened.data.remark == (
        "data: on the device: random_crop, flip, scale; on the host, before: decode, resize, "
        "color_jitter"
    )
    assert [type(entry) for entry in opened.transforms].count(OnDevice) == 1
    assert open_inputs(load(spec(tmp_path, folder, "host"))).data.remark == ""


def test_augmentation_on_device_needs_a_transform_for_it(tmp_path):
    for transforms, last in (
        ([*BEFORE, *FINISH, JITTER, "scale"], "color_jitter"),
        (["scale"], "nothing"),
        ([*BEFORE, {"center_crop": {"size": [4, 4]}}, "scale"], "center_crop"),
    ):
        with refused(SpecError, "data.augment_on", last):
            load(spec(tmp_path, tmp_path, "device", transforms))
    path = _with_engine(spec(tmp_path, tmp_path, "device"), "examples.extending.my_engine:ENGINE")
    with refused(SpecError, "data.augment_on", "my_engine:ENGINE", "keras, torch, numpy, emulated"):
        load(path)


def _with_engine(path, engine):
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "resources": {"engine": engine}}))
    return path
