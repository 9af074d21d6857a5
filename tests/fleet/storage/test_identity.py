"""Identities of networks, for checkpoints and for the cache of rates."""

from dataclasses import replace

import pytest

from fleet.storage.identity import (
    Machine,
    code_of,
    hash_all_sources,
    speed_identity,
    training_identity,
    trial_identity,
)
from preprocess.sample import Affine, ArraySpec, RecordSpec, SampleSpec
from tests.fleet.histories import SAMPLE, spec

MODEL = {"family": "cnn", "name": "net", "args": {"filters": [4]}}


def identities(model=None, sample=SAMPLE, hardware="cpu", ranks_per_core=1.0, codes=None, **parts):
    """Return the training identity and the speed identity of a network."""
    document = spec({**MODEL, **(model or {})}, **{"resources": {"engine": "keras"}, **parts})
    (network,) = document.networks
    return training_identity(network, document, sample), speed_identity(
        network, document.resources, sample, Machine(hardware, ranks_per_core), codes or {}
    )


SAME = identities()


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"args": {"filters": [4], "kernel": 3}}},  # the default, written out
        {"model": {"gpus": [1, 4]}},
        {"train": {"stopping": {"max_epochs": 7, "patience": 2}}},
        {"output": "elsewhere"},
        {"data": {"path": "elsewhere"}},
        {"data": {"shared_memory": "1GB"}},
        {"schedule": {"policy": "baseline"}},
        {"profile": {"batches": 5, "timed": 2}},
        {"checkpoint": {"every": "1h"}},
    ],
)
def test_identities_ignore_irrelevant_settings(change):
    assert identities(**change) == SAME


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"args": {"filters": [8]}}},
        {"train": {"batch": {"size": 8}}},
        {"train": {"batch": {"when_scaled": "per_gpu"}}},
        {"train": {"optimizer": {"name": "adam"}}},
        {"train": {"precision": "mixed_bfloat16"}},
        {"train": {"xla": True}},
        {"sample": replace(SAMPLE, input=ArraySpec((8, 4, 1), "uint8"))},
        {"sample": replace(SAMPLE, classes=4)},
        {"sample": replace(SAMPLE, affine=Affine(0.5, 0.25))},
    ],
    ids=str,
)
def test_identities_cover_speed_and_training(change):
    checkpoint, speed = identities(**change)
    assert checkpoint != SAME[0]
    assert speed != SAME[1]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"model": {"name": "other"}},  # other first weights
        {"train": {"optimizer": {"learning_rate": 0.5}}},
        {"train": {"optimizer": {"momentum": 0.5}}},
        {"data": {"transforms": ["decode", {"rotate": {"degrees": 10}}]}},
        {"data": {"source": "hdf5"}},
        {"data": {"validation": 0.3}},
    ],
    ids=str,
)
def test_speed_identity_ignores_training_only_settings(change):
    checkpoint, speed = identities(**change)
    assert checkpoint != SAME[0]
    assert speed == SAME[1]


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": "gpu"},
        {"ranks_per_core": 2.5},
        {"train": {"deterministic": True}},
        {"resources": {"exchange": "mpi"}},
    ],
)
def test_training_identity_ignores_speed_only_settings(change):
    checkpoint, speed = identities(**change)
    assert checkpoint == SAME[0]
    assert speed != SAME[1]


def test_identities_cover_the_engine():
    model = {"family": "softmax", "args": {}}
    keras, numpy = (
        identities(model, resources={"engine": engine}) for engine in ("keras", "numpy")
    )
    assert keras[0] != numpy[0]
    assert keras[1] != numpy[1]


def test_trial_identity_covers_settings_gpus_and_code(tmp_path, monkeypatch):
    def trial(train=None, **model):
        document = spec({"build": "mended:build", "name": "net", **model}, train=train or {})
        return trial_identity(document.networks[0], document, SAMPLE)

    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "mended.py"
    source.write_text("def build(input_shape, classes): raise ValueError\n")
    first = trial()
    assert trial() == first
    changed = {trial(gpus=2), trial({"batch": {"size": 8}}), trial(args={"depth": 4})}
    source.write_text("def build(input_shape, classes): return None\n")
    assert len({first, *changed, trial()}) == 5


def test_training_identity_is_that_of_earlier_versions():
    colour = SampleSpec(ArraySpec((32, 32, 3), "uint8"), 3, Affine((0.5, 0.1, 0.2), 0.25))
    assert identities()[0] == "bb935d41a2410224"
    assert identities(sample=colour) == identities(
        sample=replace(colour, stored=ArraySpec((40, 40, 3), "uint8"))
    )


def test_speed_identity_covers_the_build_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "speeds.py"
    model, speeds = {"family": None, "args": {}, "build": "speeds:build"}, []
    for text in ("def build(): return 1\n", "def build(): return 2\n", "def build(): return 1\n"):
        module.write_text(text)
        codes = hash_all_sources(spec({"build": "speeds:build"}), tmp_path)
        speeds.append(identities(model=model, codes=codes)[1])
    assert speeds[0] == speeds[2] != speeds[1]


def test_code_of_a_network_covers_collate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = spec(
        {"build": "json:loads"},
        data={"collate": "join_graphs:join"},
        resources={"engine": "torch"},
    )
    sample = replace(SAMPLE, input=RecordSpec.of({"nodes": ArraySpec((4,), "float32")}))
    sample = replace(sample, input=replace(sample.input, collate="join_graphs:join"))
    machine = Machine("cpu", 1.0)
    identities = []
    for text in ("join = list\n", "join = tuple\n"):
        (tmp_path / "join_graphs.py").write_text(text)
        codes = hash_all_sources(document, tmp_path)
        [network] = document.networks
        identities.append(
            (
                code_of(network, document, codes)["join_graphs.py"],
                trial_identity(network, document, sample, tmp_path),
                speed_identity(network, document.resources, sample, machine, codes),
            )
        )
    for before, after in zip(*identities, strict=True):
        assert before != after
