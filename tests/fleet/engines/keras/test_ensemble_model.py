"""An ensemble of exported networks is one Keras model with their mean prediction."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.base import EngineContext
from fleet.errors import UserError
from fleet.spec import Resources, parse
from preprocess.sample import Affine, ArraySpec, SampleSpec
from preprocess.target import TargetSpec, class_target
from preprocess.target_kinds import KINDS
from tests.refusals import refused

pytestmark = pytest.mark.tensorflow

TARGETS = {
    "class": class_target(3),
    "multilabel": TargetSpec("multilabel", 3),
    "value": TargetSpec("value", 2),
}


def exported(folder, kind, **train):
    """Export two networks; return their files, some samples, and their outputs for these."""
    from fleet.engines.keras.engine import KerasEngine

    target = TARGETS[kind]
    sample = SampleSpec(
        ArraySpec((8, 8, 1), "uint8"), target.outputs, Affine(0.5, 0.5), target=target
    )
    spec = parse(
        {
            "models": [{"family": "cnn", "args": {"filters": [4]}}, {"family": "softmax"}],
            "train": train,
        }
    )
    engine, files, outputs = KerasEngine(EngineContext(sample, Resources(exchange="mpi"))), [], []
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    rows = (images, *target.split(np.zeros(5, target.wire)))
    for network in spec.networks:
        trainable = engine.build(network, SingleRankGroup())
        outputs.append(trainable.predict(*rows)[1])
        files.append(folder / network.name / "best.keras")
        files[-1].parent.mkdir()
        trainable.export(trainable.state(), files[-1])
    return files, images, outputs


def test_models_are_loaded_after_gpus_were_sought(monkeypatch, tmp_path):
    import keras

    from fleet.engines.keras import devices, ensemble_model

    calls = []
    monkeypatch.setattr(devices, "find_gpus", lambda: calls.append("find"))
    monkeypatch.setattr(keras.saving, "load_model", lambda file: calls.append("load"))
    ensemble_model._load(tmp_path / "best.keras")
    assert calls == ["find", "load"]


def test_ensemble_model_joins_sequential_models(tmp_path):
    import keras

    from fleet.engines.keras.ensemble_model import EnsembleModel

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save(file := tmp_path / "best.keras")
    samples = np.random.default_rng(0).random((4, 3), np.float32)
    predicted = EnsembleModel([file, file], [0.25, 0.75], "value").predict(samples)
    np.testing.assert_allclose(predicted, model.predict(samples, verbose=0), rtol=1e-5)


@pytest.mark.long_but_first
@pytest.mark.parametrize("kind", TARGETS)
def test_ensemble_model_predicts_the_weighted_mean(tmp_path, kind):
    from fleet.engines.keras.ensemble_model import EnsembleModel

    files, images, outputs = exported(tmp_path, kind)
    trainable, reference = (KINDS[kind].predictions(output) for output in outputs)
    mean = EnsembleModel(files, [0.25, 0.75], kind).predict(images)
    np.testing.assert_allclose(mean, 0.25 * trainable + 0.75 * reference, atol=1e-5)
    np.testing.assert_allclose(
        EnsembleModel(files[:1], [1.0], kind).predict(images), trainable, atol=1e-5
    )


def test_ensemble_model_allows_equal_names(tmp_path):
    from fleet.engines.keras.ensemble_model import EnsembleModel

    files, images, outputs = exported(tmp_path, "class")
    np.testing.assert_allclose(
        EnsembleModel([files[0], files[0]], [0.5, 0.5], "class").predict(images),
        KINDS["class"].predictions(outputs[0]),
        atol=1e-5,
    )


@pytest.mark.long
def test_saved_ensemble_loads_without_fleet(tmp_path):
    from fleet.engines.keras.ensemble_model import EnsembleModel

    files, images, _ = exported(tmp_path, "class", precision="mixed_bfloat16")
    ensemble = EnsembleModel(files, [0.25, 0.75], "class")
    ensemble.save(tmp_path / "ensemble.keras")
    np.save(tmp_path / "images.npy", images)
    program = (
        "import sys; sys.modules['fleet'] = None; import keras, numpy as np\n"
        "model = keras.saving.load_model('ensemble.keras')\n"
        "np.save('outputs.npy', model.predict(np.load('images.npy'), verbose=0))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)
    expected = ensemble.predict(images)
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, atol=1e-6)
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-5)


def test_ensemble_model_names_files_that_cannot_be_loaded(tmp_path):
    from fleet.engines.keras.ensemble_model import EnsembleModel

    (tmp_path / "best.keras").write_text("no network")
    with refused(UserError, "best.keras cannot be loaded"):
        EnsembleModel([tmp_path / "best.keras"], [1.0], "class")


def test_to_onnx_writes_a_file_or_names_missing_packages(tmp_path):
    from fleet.engines.keras.ensemble_model import to_onnx

    files, _, _ = exported(tmp_path, "class")
    if find_spec("tf2onnx") is None:
        with refused(UserError, "--onnx", "Keras needs the packages onnx and tf2onnx"):
            to_onnx(files[0], tmp_path / "best.onnx")
    else:
        to_onnx(files[0], tmp_path / "best.onnx")
        assert (tmp_path / "best.onnx").stat().st_size > 0


def test_ensemble_model_predicts_in_float64(tmp_path):
    from fleet.engines.keras.engine import KerasEngine
    from fleet.engines.keras.ensemble_model import EnsembleModel

    affine = Affine((1.7e9, 2.0), (100.0, 1.0), 1.0, precise=True)
    rows = np.array(affine.mean) + np.arange(10).reshape(5, 2)
    sample = SampleSpec(ArraySpec((2,), "float64"), 3, affine)
    (network,) = parse({"models": [{"family": "softmax", "args": {}}]}).networks
    trainable = KerasEngine(EngineContext(sample, Resources(exchange="mpi"))).build(
        network, SingleRankGroup()
    )
    outputs = trainable.predict(rows, np.zeros(5, np.int64))[1]
    trainable.export(trainable.state(), tmp_path / "best.keras")
    result = EnsembleModel([tmp_path / "best.keras"], [1.0], "class").predict(rows)
    np.testing.assert_allclose(result, KINDS["class"].predictions(outputs), atol=1e-6)
    assert len(np.unique(result, axis=0)) == 5
