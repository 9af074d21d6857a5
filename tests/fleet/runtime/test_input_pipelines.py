"""Whole runs whose entries have different transforms or targets; results equal those alone."""

import numpy as np
import pytest

from fleet.errors import ExitStatus, UserError
from fleet.prediction.sample_file import read_sample
from fleet.runtime.replay import largest_difference
from fleet.runtime.startup.data import open_inputs
from fleet.spec import load, parse
from fleet.storage.checkpoint import find_newest
from preprocess.base import RandomAccess, UnreadableSample
from preprocess.target import TargetSpec
from tests.fleet.runtime.runs import launch, launch_in_parts, prepare
from tests.fleet.runtime.runs import write as write_spec
from tests.refusals import refused

SHARED = [{"center_crop": {"size": [8, 8]}}]
FLIPPED = [*SHARED, {"flip": {"horizontal": True}}, {"random_crop": {"size": [6, 6]}}]
WIDE = [*SHARED, {"resize": {"size": [4, 4]}}, {"scale": {"mean": 0.5, "std": 0.5}}]

pytestmark = pytest.mark.usefixtures("quick")


class Images(RandomAccess):
    """Small images whose brightness is their class or value. Some cannot be read."""

    classes = ("dark", "grey", "bright")

    def __init__(self, count, seed, bad=(), masks=False, uneven=False):
        random = np.random.default_rng(seed)
        self.labels, self._bad, self._uneven = np.arange(count) % 3, bad, uneven
        self._images = (
            random.integers(0, 40, (count, 10, 12, 1)) + 70 * self.labels[:, None, None, None]
        ).astype(np.uint8)
        if masks:
            self.target = TargetSpec("mask", 2)

    def read(self, index):
        if index in self._bad:
            raise UnreadableSample(self.name(index), "gone")
        return self._images[index, :9] if self._uneven and index % 2 == 0 else self._images[index]

    def read_target(self, index):
        return (self.read(index)[:, :, 0] > 100).astype(np.uint8)

    def name(self, index):
        return f"image {index}"


def images(path, target=None):
    """Return training and validation samples; words in the path select their kind."""
    masks, uneven = ("masks" in (path or ""), "uneven" in (path or ""))
    return Images(50, 1, (7,), masks, uneven), Images(20, 2, (), masks)


NETWORKS = {
    "plain": {"transforms": SHARED},
    "flipped": {"transforms": FLIPPED},
    "wide": {"transforms": WIDE},
    "value": {"transforms": SHARED, "target": "value"},
}


def write(folder, names, top=None, gpus=1, size=8, networks=NETWORKS, **sections):
    models = [
        {
            "family": "softmax",
            "name": name,
            "gpus": gpus,
            "data": networks[name],
            "train": {"optimizer": {"learning_rate": 1e-7}} if name != "wide" else {},
        }
        for name in names
    ]
    return write_spec(
        folder,
        models,
        profile={"batches": 4, "timed": 2, "max_gpus": 2},
        data={
            "source": f"{__name__}:images_by_path",
            "path": "",
            "validation": None,
            "max_unreadable": 0.5,
            **(top or {}),
        },
        train={
            "batch": {"size": size},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "stopping": {"max_epochs": 3},
        },
        **sections,
    )


def images_by_path(path):
    """Return a source without a ``target`` argument."""
    return images(path)


def history(prepared, name):
    return find_newest(prepared.paths, name, with_arrays=False).history


def assert_as_alone(prepared, name, folder, **settings):
    """Train a network again, on the same stream epochs, as the only one of its spec."""
    path = write(folder, [name], **settings)
    _, alone = launch(path, 2, replay=str(prepared.paths.root), only=name)
    assert not alone.inputs.pipelines
    assert largest_difference(history(prepared, name), history(alone, name)) == 0, name


@pytest.mark.long_but_first
@pytest.mark.parametrize("cache", ["none", "memory"])
def test_pipelines_sharing_decoded_samples_equal_own(cache, tmp_path, capsys):
    names = list(NETWORKS)
    status, prepared = launch(write(tmp_path / "all", names, {"cache": cache}), 3)
    assert status is ExitStatus.OK
    assert {
        prepared.sample.for_pipeline(network.pipeline).input.shape
        for network in prepared.spec.networks
    } == {
        (8, 8, 1),
        (6, 6, 1),
        (4, 4, 1),
    }
    for network in prepared.spec.networks:  # as `fleet predict` reads it
        stored, sample = (
            read_sample(prepared.paths, network.pipeline),
            prepared.sample.for_pipeline(network.pipeline),
        )
        assert (stored.input, stored.target.outputs) == (sample.input, sample.classes)
    for name in names:
        assert history(prepared, name)[-1].samples == 49
        assert_as_alone(prepared, name, tmp_path / name)


def test_pipelines_groups_of_one_and_two_have_equal_results(tmp_path):
    names = ["flipped", "value"]
    _, two = launch(write(tmp_path / "two", names, gpus=2), 3)
    for name in names:
        assert {record.gpus for record in history(two, name)} == {2}
        _, entry = launch(write(tmp_path / name, [name]), 2, replay=str(two.paths.root), only=name)
        assert {record.gpus for record in history(entry, name)} == {1}
        assert largest_difference(history(two, name), history(entry, name)) < 1e-9


@pytest.mark.long_but_first
@pytest.mark.parametrize("top", [{"order": "ring", "shards": 5}, {"folds": 2}, {"cache": "file"}])
def test_pipelines_replay_prepares_shared_samples_alone(top, tmp_path):
    names = ["flipped", "plain"] if "cache" in top else ["flipped", "value"]
    status, first = launch(write(tmp_path / "first", names, top), 2)
    assert status is ExitStatus.OK
    for network in first.spec.networks:
        _, again = launch(
            tmp_path / "first" / "spec.yaml", 2, replay=str(first.paths.root), only=network.name
        )
        assert (
            largest_difference(*(history(single, network.name) for single in (first, again))) == 0
        )


def test_pipelines_interrupted_run_has_equal_results(tmp_path):
    parts = launch_in_parts(write(tmp_path / "parts", ["flipped", "value"], size=3), 3, checks=4)
    for name in ("flipped", "value"):
        assert_as_alone(parts, name, tmp_path / name, size=3)


def test_pipelines_without_stream_are_prepared_by_trainers(tmp_path, capsys):
    names = ["flipped", "value"]
    _, alone = launch(
        write(
            tmp_path / "alone",
            names,
            schedule={"policy": "baseline"},
            resources={"engine": "numpy"},
        ),
        2,
    )
    assert "each trainer prepares its own samples" in alone.inputs.data.remark
    for name in names:
        assert_as_alone(alone, name, tmp_path / name)


def test_pipeline_checkpoint_survives_other_entries_pipelines(
    tmp_path,
):
    folder = tmp_path / "run"
    path = write(folder, ["plain"], networks={"plain": {}}, top={"transforms": SHARED})
    _, before = launch(path, 2)
    path = write(
        folder, ["plain", "value"], networks={**NETWORKS, "plain": {}}, top={"transforms": SHARED}
    )
    _, after = launch(path, 2)
    assert next(iter(after.inputs.pipelines)) == ""
    assert history(before, "plain") == history(after, "plain")


def test_pipelines_are_described_in_one_line(tmp_path):
    opened = open_inputs(load(write(tmp_path, ["plain", "flipped", "value"])))
    assert opened.data.remark == (
        "data: prepared once for all 3 networks: center_crop; by network: plain: nothing more, 3 "
        "classes; flipped: flip, random_crop, 3 classes; value: nothing more, 1 value"
    )
    same = open_inputs(
        load(write(tmp_path, ["plain", "plain2"], networks={"plain": {}, "plain2": {}}))
    )
    assert not same.pipelines
    assert not same.data.remark


def test_pipelines_with_document_settings_share_everything(tmp_path):
    networks = {"a": {"transforms": SHARED}, "b": {}}
    spec = load(write(tmp_path, ["a", "b"], {"transforms": SHARED}, networks=networks))
    assert [network.pipeline for network in spec.networks] == ["", ""]
    assert list(spec.data_by_pipeline) == [""]


def test_pipelines_share_random_transforms_for_other_targets(tmp_path):
    networks = {"a": {"transforms": FLIPPED}, "b": {"transforms": FLIPPED, "target": "value"}}
    _, prepared = launch(write(tmp_path / "both", ["a", "b"], networks=networks), 3)
    assert prepared.sample.input.shape == (6, 6, 1)
    for name in networks:
        assert_as_alone(prepared, name, tmp_path / name, networks=networks)


def test_pipelines_of_all_targets_have_equal_splits(tmp_path):
    path = write(
        tmp_path,
        ["plain", "value"],
        {"validation": 0.2, "source": f"{__name__}:undivided", "test": 0.1},
    )
    opened = open_inputs(load(path))
    plain, value = (pipeline.data.splits() for pipeline in opened.pipelines.values())
    for split in ("train", "validation", "test"):
        names = [
            [source.name(index) for index in range(len(source))]
            for source in (plain[split], value[split])
        ]
        assert names[0] == names[1]
        assert np.array_equal(np.asarray(value[split].targets).ravel(), plain[split].labels)
    # the same share of each class in both
    assert np.bincount(plain["validation"].labels).min() >= 3


def undivided(path):
    return images(path)[0]


@pytest.mark.parametrize(
    ("names", "top", "networks", "words"),
    [
        (
            ["plain", "wide"],
            {"path": "uneven"},
            {"plain": {"transforms": []}, "wide": {"transforms": WIDE}},
            ["data: all samples must have one shape", "add a resize or a crop"],
        ),
        (
            ["plain", "value"],
            {"cache": "file"},
            NETWORKS,
            ["models[1].data", "data.cache: file", "one target per sample"],
        ),
        (
            ["plain", "bad"],
            {},
            {**NETWORKS, "bad": {"transforms": [*SHARED, {"random_crop": {"size": [90, 9]}}]}},
            ["models[1].data", "90"],
        ),
    ],
)
def test_pipelines_that_cannot_be_shared_are_refused(names, top, networks, words, tmp_path):
    with refused(UserError, *words):
        prepare(str(write(tmp_path, names, top, networks=networks)), [0, 0], None)


def test_pipelines_of_masks_may_differ_in_transforms_only(tmp_path):
    networks = {
        "a": {"transforms": SHARED},
        "b": {"transforms": FLIPPED},
        "c": {"target": {"kind": "mask", "outputs": 3}},
    }
    status, prepared = launch(
        write(tmp_path / "run", ["a", "b"], {"path": "masks"}, networks=networks), 3
    )
    assert status is ExitStatus.OK
    for name in "ab":
        assert_as_alone(prepared, name, tmp_path / name, top={"path": "masks"}, networks=networks)
    with refused(UserError, "models[1].data", "a mask is transformed with its image"):
        prepare(
            str(write(tmp_path / "other", ["a", "c"], {"path": "other"}, networks=networks)),
            [0, 0],
            None,
        )


def test_pipelines_settings_of_entries_are_checked():
    from fleet.errors import SpecError

    with refused(SpecError, "models[0].data", "folds"):
        parse({"models": [{"family": "softmax", "data": {"folds": 3}}]})
    with refused(SpecError, "models[0].data.transforms", "random_crop"):
        parse({"models": [{"family": "softmax", "data": {"transforms": ["random_cop"]}}]})
