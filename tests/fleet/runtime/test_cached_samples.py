"""A network has the same results alone and with others, however samples are cached."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from fleet.errors import ExitStatus, UserError
from fleet.runtime.replay import largest_difference
from fleet.runtime.startup.data import decode, open_inputs
from fleet.runtime.startup.input_pipelines import InputPipeline
from fleet.spec import load
from fleet.storage.checkpoint import find_newest
from tests.fleet.runtime.runs import launch, write
from tests.preprocess.samples import encode, pattern, smooth
from tests.refusals import refused

SIDE = 128
ENTRIES = {
    "small": ["decode", {"resize": {"size": [8, 8]}}, {"flip": {"horizontal": True}}],
    "large": ["decode", {"resize": {"size": [24, 24]}}, "scale"],
    "random": ["decode", {"random_resized_crop": {"size": 12, "scale": [0.5, 1.0]}}],
    "cropped": ["decode", {"center_crop": {"size": [96, 96]}}, {"resize": {"size": [12, 12]}}],
    "whole": ["decode"],
    "grey": [{"decode": {"mode": "L"}}, {"resize": {"size": [8, 8]}}],
}
CACHES = ("none", "memory", "file")

pytestmark = pytest.mark.usefixtures("quick")


def photos(folder, kind="RGB", size=(SIDE, SIDE), count=12):
    """Folders of JPEG files of two classes."""
    for number in range(count):
        image = Image.fromarray(smooth(*size) // 2 + pattern(*size, seed=number) // 2).convert(kind)
        index = folder / "ab"[number % 2] / f"{number}.jpg"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_bytes(encode(image, "JPEG", quality=90))
    return folder


def spec(path, names, folder, cache="none", policy="adaptive", **data):
    """A spec of a network for each entry that is named."""
    return write(
        path,
        [
            {"family": "softmax", "name": name, "data": {"transforms": ENTRIES[name]}}
            for name in names
        ],
        data={
            "path": str(folder),
            "validation": None if "folds" in data else 0.25,
            "cache": cache,
            "max_unreadable": 0.2,
            **data,
        },
        train={
            "batch": {"size": 3},
            "optimizer": {"name": "sgd", "learning_rate": 1e-6},
            "stopping": {"max_epochs": 3},
        },
        profile={"batches": 4, "timed": 2, "max_gpus": 1},
        schedule={"policy": policy},
        resources={"engine": "numpy", "preprocessors": 0 if policy == "baseline" else 1},
    )


def load_samples(path, epoch=2):
    """Return (network, split) -> inputs and targets; check that stream and source agree."""
    spec = load(path)
    inputs, results = open_inputs(spec).keeping(spec.data.cache), {}
    if spec.data.cache == "file":
        inputs = decode(inputs, spec, path.parent / "decoded.h5")
    stream = InputPipeline(inputs.data, inputs.transforms, inputs.samples, 0)
    for split in ("train", "validation"):
        shared, is_training = stream.pipeline(split, spec.seed), split == "train"
        rows = np.arange(shared.samples)
        for network in spec.networks:
            input_pipeline = inputs.pipelines.get(network.pipeline, stream)
            pipeline = input_pipeline.pipeline(split, spec.seed)
            results[network.name, split] = images, targets = _loaded(
                pipeline, rows, epoch, is_training
            )
            if input_pipeline is stream or input_pipeline.matches_stream:
                continue
            if spec.data.cache == "memory" and is_training:
                stored = shared.empty_stored(len(rows))
                assert not shared.load_stored(rows, *stored)
            else:
                stored = _loaded(shared, rows, epoch, is_training)
            augmented = pipeline.empty(len(rows))
            assert not pipeline.augment_stored(*stored, rows, epoch, *augmented, is_training)
            assert np.array_equal(augmented[0], images)
            assert np.array_equal(augmented[1], targets)
    return results


def _loaded(pipeline, rows, epoch, training):
    images, targets = pipeline.empty(len(rows))
    assert not pipeline.load(rows, epoch, images, targets, training)
    return images, targets


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    ("kind", "size", "decoder"),
    [
        ("RGB", (128, 128), "simplejpeg"),
        ("L", (131, 117), "Pillow"),
        ("CMYK", (131, 117), "simplejpeg"),
    ],
)
def test_samples_equal_for_all_pipelines_and_caches(kind, size, decoder, tmp_path, monkeypatch):
    if decoder == "Pillow":
        monkeypatch.setattr("preprocess.decode.simplejpeg", None)
    folder = photos(tmp_path / "photos", kind, size)
    together = [([name], cache) for name in ENTRIES for cache in ("memory", "file")]
    together += [(names, cache) for names in pairwise([*ENTRIES, "small"]) for cache in CACHES]
    alone = {}
    for name in ENTRIES:
        alone |= load_samples(spec(tmp_path / name, [name], folder))
    for names, cache in [
        *(together if kind == "RGB" else ()),
        *((tuple(ENTRIES), cache) for cache in CACHES),
    ]:
        path = spec(tmp_path / "-".join([*names, cache]), names, folder, cache)
        for key, (images, targets) in load_samples(path).items():
            assert np.array_equal(images, alone[key][0]), (names, cache, key)
            assert np.array_equal(targets, alone[key][1])


def test_image_is_decoded_once_per_size(tmp_path, monkeypatch):
    from preprocess.transforms import decoding

    folder, sizes = photos(tmp_path / "photos"), []

    def noting(*arguments):
        image = decoder(*arguments)
        sizes.append(image.shape[0])
        return image

    decoder = decoding.decode
    inputs = open_inputs(
        load(spec(tmp_path / "run", ["small", "large", "whole", "cropped"], folder))
    )
    monkeypatch.setattr(decoding, "decode", noting)
    InputPipeline(inputs.data, inputs.transforms, inputs.samples, 0).pipeline("train", 5).prepare(0)
    assert sorted(sizes) == [16, 32, 128]
    assert inputs.data.remark.startswith(
        "data: read once for all 4 networks, prepared for whole: decode; small: decode, resize; "
        "large: decode, resize; cropped: decode, center_crop, resize; by network: whole: nothing "
        "more, 2 classes; "
    )


def test_varying_sizes_before_random_transform_are_refused(tmp_path):
    folder = photos(tmp_path / "photos")
    photos(folder, size=(SIDE, SIDE + 8), count=4)
    for cache, policy, instead in (
        ("none", "adaptive", "schedule.policy: baseline"),
        ("file", "baseline", "data.cache: none"),
    ):
        with refused(UserError, "models[1].data", "add a resize or a crop", instead):
            open_inputs(load(spec(tmp_path / cache, ["small", "random"], folder, cache, policy)))


@pytest.mark.long_but_first
@pytest.mark.parametrize("names", [["large"], ["random"], ["small", "large", "random"]])
def test_results_under_baseline_do_not_depend_on_the_cache(names, tmp_path):
    folder = photos(tmp_path / "photos")
    (folder / "a" / "broken.jpg").write_bytes(b"no image")
    results = {}
    for cache in CACHES:
        path = spec(tmp_path / cache, names, folder, cache, "baseline")
        status, prepared = launch(path, 2)
        assert status is ExitStatus.OK
        for name in names:
            history = find_newest(prepared.paths, name, with_arrays=False).history
            results.setdefault(name, []).append(
                [
                    (record.loss, record.accuracy, record.val_loss, record.samples)
                    for record in history
                ]
            )
    for name in names:
        assert results[name][0] == results[name][1] == results[name][2]


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "data",
    [
        {"cache": "none"},
        {"cache": "memory"},
        {"cache": "file"},
        {"order": "ring", "shards": 3},
        {"folds": 2},
    ],
)
def test_shared_stream_gives_network_results_of_its_own(data, tmp_path):
    folder, names = photos(tmp_path / "photos"), ["small", "large", "random"]
    status, together = launch(spec(tmp_path / "together", names, folder, **data), 3)
    assert status is ExitStatus.OK
    for network in together.spec.networks:
        name = network.name.partition("-")[0]
        _, alone = launch(
            spec(tmp_path / network.name, [name], folder, **data),
            2,
            replay=str(together.paths.root),
            only=network.name,
        )
        assert not alone.inputs.pipelines
        assert (
            largest_difference(
                *(
                    find_newest(single.paths, network.name, with_arrays=False).history
                    for single in (together, alone)
                )
            )
            == 0
        )
