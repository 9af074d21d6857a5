"""TensorFlow in every rank: exchanges, splits, failures, exports. A launch takes seconds."""

import importlib.util
import json
from itertools import product

import numpy as np
import pytest

from fleet.domain.events import CacheChosen, RatesEstimated
from fleet.runtime.replay import largest_difference
from scheduler.ensemble.policies import POLICIES
from tests.mpi.conftest import Launcher, spec
from tests.places import ROOT
from tests.slots import max_networks_per_gpu
from tests.sources import numbered

pytestmark = pytest.mark.tensorflow

GOLDEN = ROOT / "tests/golden"
NAMES = ("one", "pair", "three", "penalised")
PLAIN = {"filters": [4], "dense": [8], "norm": "none"}


def networks(pinned):
    """Return a spec without batch normalization and dropout: splits change the order of sums."""
    sgd = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.001}
    cosine = {"name": "CosineDecay", "initial_learning_rate": 0.01, "decay_steps": 40}
    return [
        {"family": "cnn", "name": "one", "args": PLAIN, "train": {"optimizer": sgd}},
        {
            "family": "cnn",
            "name": "pair",
            "args": PLAIN,
            "gpus": 2 if pinned else 1,
            "train": {"optimizer": {"name": "adam", "learning_rate": cosine}, "batch": {"size": 7}},
        },
        {
            "family": "resnet",
            "name": "three",
            "args": {"blocks": [1, 1], "width": 4, "norm": "none"},
            "gpus": 3 if pinned else 1,
            "train": {"optimizer": {**sgd, "global_clipnorm": 1.0}},
        },
        {
            "build": "tests.keras_models:penalised",
            "name": "penalised",
            "gpus": 3 if pinned else 1,
            "train": {"optimizer": sgd},
        },
    ]


def keras_spec(tmp_path, models, **parts):
    content = spec(
        tmp_path,
        models,
        samples=50,
        train={"batch": {"size": 16}, "stopping": {"max_epochs": 2}},
        **{"schedule": {"policy": "baseline"}, **parts},
    )
    content["resources"] = {"engine": "keras", **parts.get("resources", {})}
    # `baseline` needs no rates, and with a rates file none are measured.
    rates = tmp_path / "rates.json"
    names = [model["name"] for model in models]
    rates.write_text(
        json.dumps(
            {
                "samples_per_epoch": 50,
                "gpus_per_node": 3,
                "models": [{"name": name, "rates": [100.0, 110.0, 115.0]} for name in names],
            }
        )
    )
    content["schedule"] = {**content["schedule"], "rates": str(rates)}
    return content


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Train the same networks alone, and in groups of one to three ranks with either exchange."""
    matches = {}
    for case in ("alone", "mpi", "horovod"):
        if case == "horovod" and importlib.util.find_spec("horovod") is None:
            continue
        tmp_path = tmp_path_factory.mktemp(case)
        launch = Launcher(tmp_path)
        content = keras_spec(
            tmp_path,
            networks(pinned=case != "alone"),
            resources={} if case == "alone" else {"exchange": case},
        )
        run = launch(1 if case == "alone" else 4, content, timeout=240)
        assert run.status == 0, run.output
        if case != "alone":
            messages = f"training on ranks (1, 2, 3) from stream epoch 0; gradient exchange: {case}"
            assert messages in run.paths.log(1).read_text()
        matches[case] = {name: run.history(name) for name in NAMES}
    return matches


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_keras_mpi_exchange_gives_losses_of_one_rank(histories, name):
    assert largest_difference(histories["alone"][name], histories["mpi"][name]) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_keras_horovod_gives_losses_of_mpi(histories, name):
    if "horovod" not in histories:
        pytest.skip("Horovod is not installed")
    assert largest_difference(histories["horovod"][name], histories["mpi"][name]) < 1e-4


@pytest.mark.long
def test_keras_step_matches_a_recorded_loss_curve(histories):
    golden = json.loads((GOLDEN / "losses_keras.json").read_text())
    losses = {
        name: [record.loss for record in history] for name, history in histories["alone"].items()
    }
    for name, curve in golden.items():
        assert losses[name] == pytest.approx(curve, rel=1e-3), json.dumps(losses)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (3, 2)])
def test_keras_horovod_bits_do_not_depend_on_steps_per_call(launch, ranks, seed):
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    done = launch(
        ranks,
        "",
        str(seed),
        program=(str(ROOT / "tests/mpi/horovod_steps.py"),),
        timeout=240,
        environment={"TF_NUM_INTRAOP_THREADS": "1"},
    )
    assert done.status == 0, done.output
    assert done.output.count("equal weights") == ranks


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Run under `global` with a preprocessor, batch normalization, a failure and an export."""
    tmp_path = tmp_path_factory.mktemp("shared")
    launch = Launcher(tmp_path)
    normalised = {"filters": [4], "dense": [8], "dropout": 0.2}
    models = [
        {"family": "cnn", "name": "normalised", "args": normalised, "gpus": 2},
        {"family": "cnn", "name": "plain", "args": PLAIN},
        {"build": "tests.keras_models:broken", "name": "broken"},
        {"build": "tests.keras_models:missing_on_rank", "name": "missing", "gpus": 2},
        {"build": "tests.keras_models:explodes_on_rank", "name": "explodes", "gpus": 2},
    ]
    content = keras_spec(tmp_path, models, schedule={"policy": "global"})
    run = launch(
        3, content, "--plain", program=(str(ROOT / "tests/mpi/rank0_modules.py"),), timeout=240
    )
    return launch, content, run


def test_keras_failing_networks_do_not_affect_others(shared):
    _, _, run = shared
    assert run.status == 3, run.output
    rows = run.results()
    assert {name: row.status for name, row in rows.items()} == {
        "normalised": "finished",
        "plain": "finished",
        "broken": "failed",
        "missing": "failed",
        "explodes": "failed",
    }
    assert "unknown layer" in rows["broken"].reason
    assert "not on this node" in rows["missing"].reason
    assert "only on the second rank" in rows["explodes"].reason


@pytest.mark.long
def test_keras_replay_gives_the_same_losses(shared):
    launch, content, run = shared
    again = launch(1, content, "--replay", str(run.paths.root), "--only", "plain", timeout=120)
    assert again.status == 0, again.output
    assert run.differs("plain") < 1e-4


@pytest.mark.long
def test_keras_deterministic_group_is_replayed_exactly(launch, tmp_path):
    model = {
        "family": "cnn",
        "name": "normalised",
        "args": {"filters": [8, 8], "dense": [8], "dropout": 0.2},
        "gpus": 2,
        "train": {"deterministic": True},
    }
    content = keras_spec(tmp_path, [model], schedule={"policy": "global"})
    run = launch(3, content, "--plain", timeout=240)
    assert run.status == 0, run.output
    again = launch(3, content, "--replay", str(run.paths.root), "--only", "normalised", timeout=120)
    assert again.status == 0, again.output
    assert "val_accuracy: bitwise equal in all of 2 epochs" in again.output
    assert "trained on groups of 2, replayed on 2, with train.deterministic" in again.output
    assert run.differs("normalised") == 0.0


@pytest.mark.long
def test_keras_device_augmentation_replays_host_results(launch, tmp_path):
    model = {
        "family": "cnn",
        "name": "pair",
        "args": PLAIN,
        "gpus": 2,
        "train": {"deterministic": True},
    }
    content = keras_spec(
        tmp_path,
        [model],
        schedule={"policy": "global"},
        data={
            "cache": "memory",
            "augment_on": "device",
            "transforms": [
                {"random_crop": {"size": [4, 4], "padding": 2}},
                {"flip": {"vertical": True}},
            ],
        },
    )
    run = launch(3, content, "--plain", timeout=240)
    assert run.status == 0, run.output
    assert "data: on the device: random_crop, flip; on the host, before: reading" in run.output
    content["data"]["augment_on"] = "host"
    again = launch(3, content, "--replay", str(run.paths.root), "--only", "pair", timeout=120)
    assert again.status == 0, again.output
    assert run.differs("pair") == 0.0


@pytest.mark.long
def test_keras_schedules_change_no_result_with_cache(launch, tmp_path):
    """Run each policy with GPUs that trainers share, and once with a GPU per trainer."""
    models = [
        {
            "family": "cnn",
            "name": f"n{number}",
            "args": PLAIN,
            "train": {
                "stopping": {"max_epochs": 1 + number % 3},
                "batch": {"size": (8, 16)[number % 2]},
            },
        }
        for number in range(5)
    ]
    runs = []
    for policy, slots in (("global", 1), *product(POLICIES, (2,))):
        content = spec(
            tmp_path,
            models,
            samples=120,
            output=str(tmp_path / f"{policy}-{slots}"),
            schedule={"policy": policy},
            data={"cache": "auto"},
            resources={
                "engine": "keras",
                "gpus_per_node": 2,
                "networks_per_gpu": slots,
                "preprocessors": 1,
            },
        )
        runs.append(launch(1 + 2 * slots, content, timeout=240))
        assert runs[-1].status == 0, runs[-1].output
        assert max_networks_per_gpu(runs[-1].paths.events) == slots
        assert bool(runs[-1].events(RatesEstimated)) == POLICIES[policy].needs_rates
        assert [event.cache for event in runs[-1].events(CacheChosen)] == ["memory"]
    for second in runs[1:]:
        for model in models:
            name = model["name"]
            assert largest_difference(runs[0].history(name), second.history(name)) < 1e-4


@pytest.mark.parametrize("name", ["normalised", "plain"])
def test_keras_export_gives_recorded_accuracy(shared, name):
    import keras

    _, _, run = shared
    _, validation = numbered("50")
    images = np.stack([validation.read(index) for index in range(len(validation))])
    model = keras.saving.load_model(run.paths.exported(name, ".keras"))
    accuracy = float(np.mean(model.predict(images, verbose=0).argmax(axis=1) == validation.labels))
    assert accuracy == pytest.approx(run.results()[name].val_accuracy, abs=1e-6)


def test_tensorboard_events_hold_every_epoch(shared):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, _, run = shared
    events = EventAccumulator(str(run.paths.tensorboard("plain"))).Reload()
    losses = [scalar.value for scalar in events.Scalars("train/loss")]
    assert losses == pytest.approx([record.loss for record in run.history("plain")], rel=1e-6)
