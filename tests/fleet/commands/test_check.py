"""Tests of ``fleet check``: keys first, then the data, then all networks."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from fleet.__main__ import main
from fleet.checks import trials
from tests.places import ROOT
from tests.waiting import wait_until

# For the numpy engine, which uses a function's initial weights.
FUNCTIONS = """
import ctypes, os, sys, time
import numpy as np

def zeros(input_shape, classes):
    return np.zeros((17, classes))

def raises(input_shape, classes):
    raise ValueError("unknown depth")

def exits(input_shape, classes):
    sys.exit(3)

def interrupts(input_shape, classes):
    raise KeyboardInterrupt

def dies(input_shape, classes):
    print("good-bye")
    os._exit(0)

def crashes(input_shape, classes):
    os.abort()

def hangs(input_shape, classes):
    time.sleep(600)

def hangs_deaf(input_shape, classes):
    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # which keeps Python's lock
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def says_which(input_shape, classes):
    with open("tried", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return zeros(input_shape, classes)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "check_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def check(folder, capsys):
    """Return a function that checks a spec: status, output, mistakes by line of the spec."""

    def call(*models, options=(), **parts):
        content = {
            "data": {"source": "tests.sources:numbered", "path": "60", "transforms": ["scale"]},
            "train": {"batch": {"size": 8}, "build_timeout": 60.0},
            "resources": {"engine": "numpy"},
            "models": list(models),
            **parts,
        }
        # One entry per line, the first one in line 2.
        lines = ["models:", *(f"- {json.dumps(model)}" for model in content.pop("models"))]
        (folder / "spec.yaml").write_text("\n".join(lines) + "\n" + yaml.safe_dump(content))
        status = main(["check", "spec.yaml", *options])
        printed = capsys.readouterr()
        mistakes = {
            line.partition("spec.yaml:")[2].partition(": ")[0]: line
            for line in printed.err.splitlines()
            if not line.startswith("fleet check: ")
        }
        return status, printed, mistakes

    return call


def build(function, **more):
    return {"build": f"check_functions:{function}", "name": function, **more}


def test_check_prints_parameters_and_memory_of_a_valid_spec(check):
    status, printed, _ = check(build("zeros"), {"family": "softmax"})
    assert (status, printed.err) == (0, "")
    row = next(
        line.split() for line in printed.out.splitlines() if line.lstrip().startswith("zeros")
    )
    # 17 x 3 weights of 8 bytes with a velocity; for each of 8 rows 17 inputs, and 3 logits with
    # their gradient
    assert 51 * 16 + 8 * 8 * (17 + 2 * 3) == 2288
    assert row[:5] == ["zeros", "check_functions:zeros()", "51", "2.29", "kB"]


def test_check_lists_the_ends_of_many_classes(check, folder):
    labels = np.repeat(np.arange(50), np.arange(50) + 4)
    np.savez(folder / "many.npz", x=np.ones((len(labels), 2), np.float32), y=labels)
    data = {"source": "npz", "path": "many.npz", "validation": 0.2, "test": 0.2}
    status, printed, _ = check({"family": "softmax"}, options=["--quick"], data=data)
    assert status == 0
    assert "50 classes with 2 to " in printed.out
    assert "training samples; the 5 smallest and the 5 largest:" in printed.out
    rows = [line.split() for line in printed.out.splitlines()]
    names = [row[0] for row in rows if len(row) == 4 and row[0].isdigit()]
    assert names == [*"01234", "45", "46", "47", "48", "49"]


def test_check_says_what_standardizes_inputs_in_no_warning(check, folder):
    np.savez(folder / "rows.npz", x=np.eye(20, 3, dtype=np.float32), y=np.arange(20) % 2)
    data = {"source": "npz", "path": "rows.npz", "transforms": ["standardize"]}
    status, printed, _ = check({"family": "softmax"}, options=["--quick"], data=data)
    assert (status, printed.err) == (0, "")
    assert "standardize uses means and deviations of the training samples" in printed.out


def test_check_prints_warnings_and_passes(check, folder):
    np.savez(folder / "raw.npz", x=np.full((20, 4, 4, 1), 200, np.uint8), y=np.arange(20) % 2)
    data = {"source": "npz", "path": "raw.npz", "transforms": []}
    status, printed, _ = check({"family": "softmax"}, options=["--quick"], data=data)
    assert status == 0
    [line] = printed.err.splitlines()
    assert line.startswith("fleet check: WARNING: data: images have values up to 200")
    status, printed, _ = check({"family": "softmax"}, options=["--quick", "--json"], data=data)
    assert len(json.loads(printed.out)["warnings"]) == 1


def test_check_warns_about_channels_first_data(check, folder):
    labels = np.arange(20) % 2
    for name, shape in (("first", (3, 16, 17)), ("last", (16, 17, 3))):
        np.savez(folder / f"{name}.npz", x=np.ones((20, *shape), np.float32), y=labels)
    first, last = (
        check({"family": "softmax"}, data={"source": "npz", "path": f"{name}.npz"})
        for name in ("first", "last")
    )
    assert (first[0], last[0]) == (0, 0)
    assert "height 3 and width 16 with 17 channels" in first[1].err
    assert last[1].err == ""


def test_check_lists_all_networks_that_cannot_be_built(check, folder):
    status, printed, mistakes = check(
        build("raises"),
        build("exits"),
        build("interrupts"),
        build("dies"),
        build("crashes"),
        *(build(name, train={"build_timeout": 1.0}) for name in ("hangs", "hangs_deaf")),
        build("zeros"),
    )
    assert status == 2
    assert "zeros" in printed.out
    assert printed.err.startswith("fleet check: 7 mistakes in the spec\n")
    line = FUNCTIONS.splitlines().index("    time.sleep(600)") + 1
    assert f"it was in {folder}/check_functions.py, line {line}, in hangs" in mistakes["7"]
    assert "good-bye" in mistakes["5"]  # its last line
    message = {
        "2": "raises: ValueError: unknown depth",
        "3": "exits: it exited, by sys.exit(3)",
        "4": "interrupts: it raised KeyboardInterrupt",
        "5": "dies: it exited with status 0 and ended the process",
        "6": "crashes: it crashed: SIGABRT",
        "7": "hangs: building took longer than 1.0 s (train.build_timeout)",
        "8": "hangs_deaf: building took longer than 1.0 s",
    }
    assert {
        line: text for line, text in message.items() if text not in mistakes.get(line, "")
    } == {}
    assert list(mistakes) == list(message)


def test_check_stops_at_mistakes_in_keys(check, folder):
    status, printed, mistakes = check(
        build("says_which"),
        {"family": "softmax", "name": "unread", "train": {"batch": {"sise": 61}}},
        {"family": "softmax", "name": "adam", "train": {"optimizer": {"name": "adam"}}},
        {"family": "softmax", "colour": "red"},
        data={"source": "image_folder", "path": "no/such/folder"},
    )
    assert (status, printed.out) == (2, "")
    message = {
        "3": "unknown key 'sise'; did you mean train.batch.size?",
        "4": "the numpy engine has no optimizer 'adam'; it has sgd",
        "5": "unknown key 'colour'",
    }
    assert {
        line: text for line, text in message.items() if text not in mistakes.get(line, "")
    } == {}
    assert list(mistakes) == list(message)
    assert not (folder / "tried").exists()


def test_check_compares_networks_with_the_data_before_building(check, folder):
    status, printed, mistakes = check(
        build("says_which"),
        {"family": "softmax", "name": "large", "train": {"batch": {"size": 61}}},
    )
    assert (status, printed.out) == (2, "")
    assert list(mistakes) == ["3"]
    assert (
        "large: train.batch.size: 61 is more than the 60 training samples; at most 60"
        in mistakes["3"]
    )
    assert not (folder / "tried").exists()


def test_check_builds_all_networks_in_one_other_process(check, folder):
    assert check(build("says_which"), build("says_which", name="other"))[0] == 0
    pids = (folder / "tried").read_text().split()
    assert len(pids) == 2
    assert set(pids) == {pids[0]} != {str(os.getpid())}


def test_check_reports_a_shared_mistake_once(check):
    _, _, mistakes = check(
        {"family": "softmax", "grid": {"train.optimizer.learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}},
        train={"batch": {"size": 100}},
    )
    assert len(mistakes) == 1
    assert "softmax-0, softmax-1, softmax-2 and 2 more: train.batch.size: 100 is more" in next(
        iter(mistakes.values())
    )


def test_check_json_lists_mistakes(check):
    status, printed, _ = check(build("raises"), build("zeros"), options=["--json"])
    answer = json.loads(printed.out)
    assert status == 2
    assert [(mistake["line"], mistake["key"]) for mistake in answer["mistakes"]] == [(2, "raises")]
    assert [
        (network["name"], network["parameters"], bool(network["problem"]))
        for network in answer["networks"]
    ] == [("raises", 51, True), ("zeros", 51, False)]


def test_check_json_lists_mistakes_of_the_data(check):
    status, printed, _ = check(
        {"family": "softmax"}, options=["--json"], data={"path": "no/such/folder"}
    )
    (mistake,) = json.loads(printed.out)["mistakes"]
    assert (status, mistake["line"], mistake["key"]) == (2, 3, "data")
    assert printed.err == "fleet check: spec.yaml:3: data: no/such/folder: folder not found\n"


@pytest.mark.parametrize(
    ("options", "location"),
    [
        ({"inputs": ["weight", "b"]}, "data.options.inputs: "),
        ({"inputs": "b", "targets": ["y", "loss"]}, "data.options.targets: "),
    ],
)
def test_check_names_the_line_of_an_option(check, tmp_path, options, location):
    path = tmp_path / "a.npz"
    np.savez(path, weight=np.zeros((9, 2)), b=np.zeros((9, 2)), y=np.arange(9) % 3)
    data = {"source": "npz", "path": str(path), "options": options}
    status, printed, _ = check({"family": "softmax"}, data=data)
    assert status == 2
    assert location in printed.err


@pytest.mark.parametrize(
    ("data", "key", "wrong"),
    [
        ({"test": "elsewhere"}, "data.test", "elsewhere: builtin:digits has no other data"),
        (
            {"transforms": [{"decode": {"mode": "L"}}, {"random_crop": {"size": [90, 90]}}]},
            "data",
            "",
        ),
    ],
)
def test_check_names_a_key_of_the_data_once(data, key, wrong, check):
    status, printed, _ = check(
        {"family": "softmax"}, options=["--json"], data={"source": "builtin:digits", **data}
    )
    assert status == 2
    [mistake] = json.loads(printed.out)["mistakes"]
    assert mistake["key"] == key
    assert mistake["wrong"].startswith(wrong)
    assert not mistake["wrong"].startswith("data")


def test_check_locates_data_mistakes_of_an_entry(check):
    transforms = [
        {"decode": {"mode": "L"}},
        {"resize": {"size": [8, 8]}},
        {"random_crop": {"size": [90, 90]}},
    ]
    second = {"family": "softmax", "name": "b", "data": {"transforms": transforms}}
    status, printed, _ = check(
        {"family": "softmax"},
        second,
        options=["--json"],
        data={"source": "builtin:digits", "transforms": transforms[:2]},
    )
    assert status == 2
    [mistake] = json.loads(printed.out)["mistakes"]
    assert mistake["key"] == "models[1].data"


def test_check_reports_a_schedule_mistake_once(check):
    rate = {"name": "PiecewiseConstantDecay", "boundaries": [10, 20], "values": [0.1, 0.01]}
    _, printed, _ = check(
        {"family": "softmax"}, train={"batch": {"size": 8}, "optimizer": {"learning_rate": rate}}
    )
    assert printed.err.startswith("fleet check: 1 mistake in the spec\n")


def test_check_builds_nothing_with_invalid_data(check, folder):
    status, printed, _ = check(
        build("says_which"), data={"source": "tests.sources:numbered", "pth": "60"}
    )
    assert status == 2
    assert printed.err.count("spec.yaml:") == 1
    assert not (folder / "tried").exists()


def test_check_lists_networks_without_the_engines_library(check, folder):
    (folder / "missing_engine.py").write_text(
        "from fleet.spec.engines import EngineInfo\nENGINE = EngineInfo('missing', "
        "'missing_engine:make')\ndef make(setup):\n    import no_such_library\n"
    )
    status, printed, _ = check({"family": "softmax"}, resources={"engine": "missing_engine:ENGINE"})
    assert status == 0
    assert (
        "networks cannot be built here: ModuleNotFoundError: No module named 'no_such_library'"
        in printed.err
    )
    assert "51" in printed.out


def test_check_skips_networks_too_large_for_this_machine(check, folder, monkeypatch):
    monkeypatch.setattr(trials, "free_memory", lambda: 100)
    status, printed, _ = check(build("says_which"))
    assert status == 0
    assert (
        "says_which: not built: it needs 816 B, but this machine has 80 B of free memory"
        in printed.out
    )
    assert not (folder / "tried").exists()


@pytest.mark.long
def test_check_kills_a_build_that_hangs_in_c(folder):
    (folder / "spec.yaml").write_text(
        yaml.safe_dump(
            {
                "data": {"source": "tests.sources:numbered", "path": "60", "transforms": ["scale"]},
                "resources": {"engine": "numpy"},
                "train": {"batch": {"size": 8}},
                "models": [build("hangs_deaf")],
            }
        )
    )
    command = subprocess.Popen(
        [sys.executable, "-m", "fleet", "check", "spec.yaml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    result = wait_until(
        lambda: subprocess.run(
            ["pgrep", "-P", str(command.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
    )
    time.sleep(3.0)  # it imports NumPy, and hangs
    command.send_signal(signal.SIGUSR2)
    command.wait(10)
    wait_until(lambda: not os.path.exists(f"/proc/{result[0]}"), seconds=60)


# ---- with TensorFlow ---------------------------------------------------------------------------

MODELS = '''
import keras
from keras import layers

class Hidden(keras.Model):
    """A subclass whose __init__ takes what Keras cannot describe."""

    def __init__(self, sizes, classes):
        super().__init__()
        self.flat = layers.Flatten()
        self.hidden = [layers.Dense(size, "relu") for size in sizes]
        self.drop = layers.Dropout(0.5)
        self.last = layers.Dense(classes)

    def call(self, images, training=False):
        x = self.flat(images)
        for layer in self.hidden:
            x = layer(x)
        return self.last(self.drop(x, training=training))

class Raw(keras.Model):
    """A subclass that only its own code can run, and that says nothing of itself."""

    def __init__(self, classes):
        super().__init__()
        self.last = layers.Dense(classes)

    def call(self, images):
        import tensorflow as tf
        return self.last(tf.reshape(images, (tf.shape(images)[0], 16)))

class Explodes(layers.Layer):
    def call(self, inputs, training=None):
        if training:
            raise RuntimeError("not in training")
        return inputs

def subclass(input_shape, classes):
    return Hidden((5, 5), classes)

def raw(input_shape, classes):
    return Raw(classes)

def explodes(input_shape, classes):
    return keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), Explodes(), layers.Dense(classes)])

def vast(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(5_100_000),
                             layers.Dense(5_100_000), layers.Dense(classes)])

def vast_subclass(input_shape, classes):
    return Hidden((5_100_000, 5_100_000), classes)
'''


@pytest.mark.long
@pytest.mark.tensorflow
def test_check_tests_keras_networks(check, folder):
    (folder / "check_models.py").write_text(MODELS)
    names = ["subclass", "raw", "explodes", "vast", "vast_subclass"]
    status, printed, mistakes = check(
        *({"build": f"check_models:{name}", "name": name} for name in names),
        {
            "family": "cnn",
            "name": "fine",
            "args": {"filters": [4]},
            "train": {
                "optimizer": {
                    "learning_rate": {
                        "name": "CosineDecay",
                        "initial_learning_rate": 0.1,
                        "decay_steps": 9,
                    }
                }
            },
        },
        {
            "family": "cnn",
            "name": "rate",
            "args": {"filters": [4]},
            "train": {
                "optimizer": {
                    "learning_rate": {
                        "name": "PolynomialDecay",
                        "initial_learning_rate": -1,
                        "decay_steps": 9,
                    }
                }
            },
        },
        resources={},
    )
    assert status == 2, printed.err
    message = {
        "3": "raw: the network cannot be exported as best.keras: NotImplementedError: Object Raw",
        "4": "explodes: RuntimeError: ",
        "5": "vast: it has 26,010,107,100,003 parameters, so training takes at least 208 TB on "
        "each GPU",
        "6": "vast_subclass: it has 26,01",
        "8": "rate: the schedule PolynomialDecay",
    }
    assert {
        line: text for line, text in message.items() if text not in mistakes.get(line, "")
    } == {}
    assert list(mistakes) == list(message)
    assert str(17 * 5 + 6 * 5 + 6 * 3) in printed.out  # parameters of the subclass


def test_check_refuses_a_family_larger_than_any_gpu(check):
    status, _, mistakes = check(
        {"family": "cnn", "name": "vast", "args": {"dense": [5_000_000, 5_000_000]}}, resources={}
    )
    assert status == 2
    assert "vast: it has 25,0" in mistakes["2"]


@pytest.mark.tensorflow
@pytest.mark.long
def test_quick_check_takes_no_step(check, folder):
    (folder / "check_models.py").write_text(MODELS)
    assert check({"build": "check_models:explodes"}, resources={}, options=["--quick"])[0] == 0


UNLEARNABLE = (
    MODELS
    + """
import tensorflow as tf

class Broken(layers.Layer):
    def call(self, inputs):
        return inputs * float("nan")

class CutOff(layers.Layer):
    def call(self, inputs):
        return tf.stop_gradient(inputs)

def of_layer(layer, input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(classes),
                             layer])

def no_number(input_shape, classes):
    return of_layer(Broken(), input_shape, classes)

def cut_off(input_shape, classes):
    return of_layer(CutOff(), input_shape, classes)

def constant(targets, outputs):
    return tf.ones_like(outputs[:, 0])

def guessed(targets, outputs):
    return tf.cast(tf.not_equal(tf.argmax(outputs, 1), targets), tf.float32)

def of_one(outputs):
    return tf.reduce_sum(outputs, 1)

def of_roots(targets, outputs):
    return tf.sqrt(-1 - tf.square(outputs[:, 0]))
"""
)


@pytest.mark.long
@pytest.mark.tensorflow
def test_check_locates_settings_that_cannot_train(check, folder):
    (folder / "check_unlearnable.py").write_text(UNLEARNABLE)
    losses = ("constant", "guessed", "of_one", "of_roots")
    status, printed, mistakes = check(
        *(
            {"build": f"check_unlearnable:{name}", "name": name}
            for name in ("no_number", "cut_off")
        ),
        *(
            {"family": "softmax", "name": name, "train": {"loss": f"check_unlearnable:{name}"}}
            for name in losses
        ),
        {"family": "softmax", "name": "fine"},
        resources={},
        train={"batch": {"size": 8}, "stopping": {"monitor": "val_accuracy"}},
    )
    assert status == 2, printed.err
    message = {
        "2": "no_number: the untrained model returns NaN",
        "3": "cut_off: the outputs of the model depend on no trainable weight",
        "4": "constant does not depend on the outputs of the network",
        "5": "guessed does not depend on",
        "6": "of_one failed when called with (targets, outputs): TypeError",
        "7": "of_roots is nan for",
    }
    assert {
        line: text for line, text in message.items() if text not in mistakes.get(line, "")
    } == {}
    assert list(mistakes) == list(message)


# ---- classes ----------------------------------------------------------------------------------


def test_check_lists_classes_by_split(check, folder):
    status, printed, _ = check({"family": "softmax"})
    assert status == 0
    rows = [line.split() for line in printed.out.splitlines()]
    assert ["class", "training", "validation"] in rows
    assert ["a", "20", "7"] in rows
    status, printed, _ = check({"family": "softmax"}, options=["--json"])
    counts = {"train": dict.fromkeys("abc", 20), "validation": {"a": 7, "b": 7, "c": 6}}
    assert json.loads(printed.out)["class_counts"] == counts
