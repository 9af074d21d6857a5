"""Preparation of a launch: checks, the run's folder, replays."""

import errno
import pickle
import sys

import numpy as np
import pytest
import yaml

from fleet.domain.network import TrainingState
from fleet.errors import StorageError, UserError
from fleet.runtime.admission import Admission
from fleet.runtime.external.command_queue import CommandQueue
from fleet.runtime.rate_memory import RateMemory
from fleet.storage.checkpoint import write_state
from fleet.storage.identity import file_checksum, training_identity
from fleet.storage.lease import Lease, Process, Times
from fleet.storage.paths import RunPaths
from launch.errors import InputError
from preprocess.base import CannotWrite
from tests.fleet.histories import history, record, results_of
from tests.fleet.runtime.runs import prepare
from tests.sources import Numbered, reads

ONE_NODE = (0, 0, 0)


class Preparation:
    """Prepares a launch of a spec that tests can change."""

    def __init__(self, folder):
        self.run = RunPaths(folder / "run")
        self._path = folder / "spec.yaml"
        self.content = {
            "models": [{"family": "softmax", "name": "a"}],
            "output": str(self.run.root),
            "data": {
                "source": "tests.sources:numbered",
                "path": "60",
                "transforms": [],
                "cache": "none",
            },
            "train": {"batch": {"size": 8}},
            "resources": {"engine": "numpy"},
        }

    def __call__(self, node_of=ONE_NODE, gpus=None, **options):
        self._path.write_text(yaml.safe_dump(self.content))
        return prepare(self._path, node_of, gpus, **options)

    def refused(self, *arguments, **options):
        """Check that preparation is refused; return the message."""
        with pytest.raises((UserError, InputError)) as caught:
            self(*arguments, **options)
        return str(caught.value)

    def leave_checkpoint(self, name="a", epochs=history(0.5), **state):
        """Write a checkpoint like that of an earlier launch."""
        prepared = self()
        identity = training_identity(prepared.spec.by_name[name], prepared.spec, prepared.sample)
        write_state(
            prepared.paths.last(name),
            TrainingState({}, state.pop("identity", identity), epochs, **state),
        )


@pytest.fixture
def preparation(tmp_path):
    return Preparation(tmp_path)


def test_prepare_returns_a_picklable_launch(preparation):
    prepared = pickle.loads(pickle.dumps(preparation().for_other_ranks()))
    assert (prepared.roles.preprocessors, prepared.roles.trainers) == ((0,), (1, 2))
    assert (str(prepared.sample.input), prepared.sample.classes) == ("4 x 4 x 1 uint8", 3)
    assert prepared.layout.samples == 60
    assert (prepared.rates, prepared.replayed) == (None, ())
    assert (prepared.pipeline("train").samples, prepared.pipeline("validation").samples) == (60, 20)


def test_prepare_names_unlisted_networks_of_the_folder(preparation):
    preparation.leave_checkpoint()
    assert preparation().describe_unlisted == ""
    preparation.content["models"][0]["name"] = "b"
    assert (
        f"{preparation.run.root} also holds networks that this spec lacks: a;"
        in preparation().describe_unlisted
    )
    assert preparation(fresh=True).describe_unlisted == ""


@pytest.mark.parametrize(
    "data",
    [{}, {"order": "ring"}, {"cache": "auto"}, {"cache": "memory"}, {"cache": "file"}],
    ids=str,
)
def test_prepare_reads_each_sample_once(preparation, tmp_path, data):
    (tmp_path / "reads").mkdir()
    preparation.content["data"] |= {
        "source": "tests.sources:noted",
        "options": {"folder": str(tmp_path / "reads")},
        "transforms": ["decode", "tests.sources:noise"],
        **data,
    }
    preparation()
    every = [
        (part, index)
        for part, count in (("train", 60), ("validation", 20))
        for index in range(count)
    ]
    looked_at = [
        ("opened", -1),
        ("train", 0),  # which tells whether samples have several inputs
        *(
            (part, index)
            for part, count in (("train", 60), ("validation", 20))
            for index in np.linspace(0, count - 1, 8).astype(int).tolist()
        ),
    ]
    assert reads(tmp_path / "reads") == {
        0: looked_at + (every if data == {"cache": "file"} else [])
    }


@pytest.mark.parametrize(("free", "epochs"), [(10**9, 50 + 3), (20 * 60 * 16, 10), (0, 3)])
def test_prepare_plans_a_window_of_as_many_epochs_as_fit(preparation, free, epochs):
    preparation.content["models"] += [
        {"family": "softmax", "name": "b", "train": {"stopping": {"max_epochs": 3}}}
    ]
    preparation.content["train"]["stopping"] = {"max_epochs": 50}
    layout = preparation(ranks={"shared_free": free}).layout
    assert layout.slots == epochs * layout.chunks


def test_prepare_writes_spec_and_marker(preparation):
    prepared = preparation()
    assert (
        yaml.safe_load(prepared.paths.spec.read_text())["models"] == preparation.content["models"]
    )
    assert prepared.paths.marker.exists()
    assert prepared.paths.foreign_files() == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data", {"source": "tests.sources:nothing"}, "has no 'nothing'"),
        ("data", {"source": "image_folder", "path": "/no/such/folder"}, "/no/such/folder"),
        (
            "train",
            {"batch": {"size": 61}},
            "train.batch.size: 61 is more than the 60 training samples",
        ),
        (
            "data",
            {"source": "tests.fleet.runtime.test_prepare:alone", "path": "60", "validation": None},
            "a: train.stopping.monitor: val_accuracy needs validation data",
        ),
        (
            "models",
            [{"family": "softmax", "name": "a", "gpus": [3, 4]}],
            "needs at least 3 trainers, but there are 2",
        ),
        (
            "data",
            {"source": "tests.fleet.runtime.test_prepare:of_one_class", "path": "60"},
            "only one class",
        ),
        (
            "data",
            {"source": "tests.fleet.runtime.test_prepare:locked", "path": "60"},
            "cannot be sent to the other ranks",
        ),
        (
            "data",
            {"source": "tests.fleet.runtime.test_prepare:uneven", "path": "60"},
            "add a resize or a crop",
        ),
        (
            "data",
            {"source": "tests.sources:numbered", "path": "60", "window": "100B"},
            "data.shared_memory: 100 B is too small",
        ),
        ("resources", {"engine": "numpy", "preprocessors": 3}, "would leave no trainer"),
        ("output", "/dev/null", "output: /dev/null is a file"),
        ("output", "/proc/no", "output: /proc/no cannot be written"),
    ],
)
def test_prepare_refuses_wrong_input_and_writes_nothing(preparation, key, value, words):
    preparation.content[key] = value
    assert words in preparation.refused()
    assert not preparation.run.root.exists()


def test_prepare_reports_all_problems_of_networks(preparation):
    preparation.content["models"] = [
        {"family": "softmax", "name": "a", "train": {"batch": {"size": 100}}},
        {"family": "softmax", "name": "b", "gpus": 7},
    ]
    message = preparation.refused()
    assert message.startswith("2 networks cannot be trained as specified:")
    assert "a: train.batch.size: 100" in message
    assert "b: gpus: needs at least 7 trainers" in message


def test_prepare_refuses_networks_too_large_for_a_gpu(preparation):
    preparation.content |= {
        "models": [
            {"family": "cnn", "name": "a", "args": {"filters": [4], "dense": [10**6, 10**6]}}
        ],
        "resources": {"engine": "keras"},
    }
    message = preparation.refused()
    assert "a: it has 1,000,021,000,059 parameters" in message
    assert "at least 8 TB on each GPU" in message


def alone(path):
    return Numbered(int(path), seed=1)


def of_one_class(path):
    source = Numbered(int(path), seed=1)
    source.classes, source.labels = ("only",), np.zeros(len(source), np.int64)
    return source


def locked(path):
    source = Numbered(int(path), seed=1)
    source.lock = lambda: None
    return source


def uneven(path):
    wide = Numbered(20, seed=2)
    wide._images = wide._images.repeat(2, axis=2)
    return Numbered(int(path), seed=1), wide


def test_prepare_prefers_gpus_of_the_spec(preparation):
    preparation.content["resources"]["gpus_per_node"] = 1
    assert preparation(gpus=4).roles.preprocessors == (0, 1)


def test_baseline_trainers_prepare_samples_without_measuring(preparation):
    preparation.content["schedule"] = {"policy": "baseline"}
    prepared = preparation()
    assert (prepared.roles.preprocessors, prepared.layout) == ((), None)
    assert [model.name for model in prepared.rates.models] == ["a"]


def test_decode_full_disk_is_no_user_error(preparation, monkeypatch):
    def full(data, transforms, samples, path, advance):
        raise CannotWrite(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("fleet.runtime.startup.data.decode_once", full)
    preparation.content["data"]["cache"] = "file"
    preparation.content["data"]["transforms"] = [{"resize": {"size": [4, 4]}}]
    with pytest.raises(
        StorageError, match=r"decoded.h5 cannot be written: No space left on device .* make room"
    ):
        preparation()


# ---- the run's folder --------------------------------------------------------------------------


def test_folder_with_foreign_files_is_refused(preparation):
    preparation.run.root.mkdir()
    (preparation.run.root / "thesis.tex").touch()
    assert "holds files that FLEET did not write" in preparation.refused()
    assert "holds files that FLEET did not write" in preparation.refused(fresh=True)
    assert (preparation.run.root / "thesis.tex").exists()


def test_folder_may_be_empty(preparation):
    preparation.run.root.mkdir()
    assert preparation().paths.spec.exists()


def test_fresh_deletes_what_earlier_launches_have_written(preparation):
    preparation.leave_checkpoint()
    (preparation.run.root / ".results.csv.123.tmp").touch()  # of a launch that was killed
    (preparation.run.root / ".decoded.h5.123.tmp").touch()
    (preparation.run.model("a") / ".123.tmp.last.h5").touch()
    RunPaths(preparation.run.replay("a")).last("a").parent.mkdir(parents=True)
    RunPaths(preparation.run.replay("a")).last("a").touch()
    preparation(fresh=True)
    assert sorted(path.name for path in preparation.run.root.rglob("*")) == [
        ".fleet-run",
        "data.npz",
        "sample.json",
        "spec.yaml",
    ]


def test_fresh_deletes_nothing_without_engine_library(preparation, monkeypatch):
    preparation.leave_checkpoint()
    monkeypatch.setitem(sys.modules, "torch", None)
    preparation.content["resources"]["engine"] = "torch"
    assert "No module named 'torch'; the torch engine requires: pip install" in preparation.refused(
        fresh=True
    )
    assert preparation.run.last("a").exists()


def lease():
    """Return a lease with short timeouts."""
    process = Process()
    return Lease(process, process.me, Times(renew=0.05, patience=0.1, poll=0.02))


def test_fresh_keeps_commands_sent_after_lease(preparation):
    """Users may add networks as soon as the launch holds the lease."""

    class LeaseWithCommand(Lease):
        def take(self, folder, floor=0):
            super().take(folder, floor)
            if folder == preparation.run.lease:
                mailbox.put({"do": "add"})

    preparation()
    mailbox, around = CommandQueue(preparation.run.mailbox), Process()
    mailbox.put({"do": "stop"})  # for an earlier launch
    with LeaseWithCommand(around, around.me, Times(renew=60)) as lease:
        preparation(fresh=True, lease=lease)
        assert [command.content for command in mailbox.commands()] == [{"do": "add"}]


@pytest.mark.parametrize("fresh", [False, True])
def test_folder_of_a_running_launch_is_refused(preparation, fresh):
    preparation.leave_checkpoint()
    with lease() as first, lease() as second:
        preparation(fresh=fresh, lease=first)
        preparation.run.events.touch()
        assert "another launch is running in this folder" in preparation.refused(
            fresh=True, lease=second
        )
        assert preparation.run.events.exists()
    with lease() as third:
        preparation(fresh=True, lease=third)
    assert preparation.run.foreign_files() == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "models/a/plot.png", "models/a/old/last.h5", "spec.yaml.orig"]
)
def test_fresh_deletes_nothing_with_foreign_files(preparation, name):
    preparation.leave_checkpoint()
    (preparation.run.root / name).parent.mkdir(exist_ok=True)
    (preparation.run.root / name).touch()
    assert f"also holds files that FLEET did not write: {name}" in preparation.refused(fresh=True)
    assert preparation.run.last("a").exists()
    preparation()  # continuing deletes nothing


def test_folder_may_be_a_symbolic_link(preparation, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    preparation.run.root.symlink_to(tmp_path / "elsewhere")
    preparation.leave_checkpoint()
    preparation(fresh=True)
    assert preparation.run.root.is_symlink()
    assert not preparation.run.last("a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 9},
        {"train": {"batch": {"size": 4}}},
        {
            "models": [
                {"family": "softmax", "name": "a", "train": {"optimizer": {"learning_rate": 0.5}}}
            ]
        },
        {"data": {"transforms": [{"flip": {"horizontal": True}}]}},
    ],
)
def test_checkpoint_of_other_settings_is_refused(preparation, change):
    preparation.leave_checkpoint()
    for part, value in change.items():
        preparation.content[part] = (
            {**preparation.content[part], **value} if isinstance(value, dict) else value
        )
    assert "holds a checkpoint of a that was trained with other settings" in preparation.refused()
    preparation(fresh=True)


def test_checkpoint_accepts_new_epochs_policy_and_data_path(preparation):
    preparation.leave_checkpoint()
    preparation.content |= {"schedule": {"policy": "baseline"}}
    preparation.content["train"]["stopping"] = {"max_epochs": 100}
    preparation()


# ---- replaying ---------------------------------------------------------------------------------


def replay(preparation, only="a"):
    return preparation(replay=str(preparation.run.root), only=only)


def test_replay_trains_one_network_beside_the_run(preparation):
    preparation.leave_checkpoint(epochs=(record(1, stream_epoch=3), record(2, stream_epoch=5)))
    prepared = replay(preparation)
    (network,) = prepared.spec.networks
    assert (prepared.paths.root, [record.stream_epoch for record in prepared.replayed]) == (
        preparation.run.replay("a"),
        [3, 5],
    )
    assert (network.train.stopping.max_epochs, network.max_gpus, prepared.layout) == (2, 1, None)


def test_replay_uses_recorded_per_gpu_batch(preparation):
    preparation.content["train"]["batch"] = {"size": 8, "when_scaled": "per_gpu"}
    preparation.content["train"]["optimizer"] = {"learning_rate": 0.25}
    preparation.leave_checkpoint(epochs=(record(1, gpus=2), record(2, gpus=2)))
    train = replay(preparation).spec.networks[0].train
    assert (train.batch.size, train.batch.when_scaled, train.optimizer.learning_rate) == (
        16,
        "fixed",
        0.5,
    )
    preparation.leave_checkpoint(epochs=(record(1, gpus=2), record(2, gpus=1)))
    assert "cannot be replayed: its batch depended on the number of GPUs" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )


@pytest.mark.parametrize(
    ("had", "ranks", "gets"), [((2, 2), 3, 2), ((2, 2), 1, 1), ((2, 1), 3, 1), ((3,), 2, 1)]
)
def test_replay_uses_recorded_group_size_if_possible(preparation, had, ranks, gets):
    preparation.leave_checkpoint(
        epochs=tuple(record(epoch, gpus=gpus) for epoch, gpus in enumerate(had, start=1))
    )
    (network,) = preparation(
        replay=str(preparation.run.root), only="a", node_of=(0,) * ranks
    ).spec.networks
    assert (network.min_gpus, network.max_gpus) == (gets, gets)


def test_replay_refuses_missing_networks_and_checkpoints(preparation):
    preparation()
    assert "--only b: the spec has no network of this name; it has a" in preparation.refused(
        replay=str(preparation.run.root), only="b"
    )
    assert "a has no checkpoint in this run" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )
    preparation.run.last("a").parent.mkdir(parents=True)
    preparation.run.last("a").touch()
    assert "last.h5 cannot be read" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )
    preparation.leave_checkpoint(epochs=())
    assert "a has not finished an epoch in this run" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )


@pytest.mark.parametrize("gpus", [1, 2])
def test_replay_refuses_other_settings(preparation, gpus):
    preparation.leave_checkpoint(epochs=(record(1, gpus=gpus),))
    preparation.content["train"]["batch"] = {"size": 4}
    assert "was trained with other settings than in this spec" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )


def of_values(preparation):
    preparation.content["data"] = {
        "source": "tests.fleet.runtime.test_targets:synthetic_images",
        "path": "value",
        "transforms": [],
    }
    preparation.content["resources"]["engine"] = "keras"  # which has more than one loss
    preparation.content["models"][0]["train"] = {"loss": "huber"}
    preparation.content["models"].append({"family": "softmax", "name": "b"})


def test_losses_not_comparable_are_refused_with_data(
    preparation,
):
    of_values(preparation)
    assert "val_loss is not the same for all networks, so it cannot compare them: huber for a" in (
        preparation.refused()
    )
    preparation.content["train"] |= {"metrics": ["mae"], "stopping": {"monitor": "val_mae"}}
    assert preparation().spec.networks[0].train.stopping.monitor == "val_mae"


def test_added_network_needs_criteria_of_the_run(preparation):
    of_values(preparation)
    preparation.content["models"] = preparation.content["models"][:1]
    prepared = preparation()
    admission = Admission(
        prepared, results_of(prepared.spec, prepared.paths), RateMemory(prepared, [])
    )
    with pytest.raises(
        UserError,
        match="val_loss is not the same for all networks.*huber for a.*mean_absolute_error",
    ):
        admission.parse_entry({"family": "softmax", "name": "c", "train": {"loss": "mae"}})
    assert [
        entry.name
        for entry in admission.parse_entry(
            {"family": "softmax", "name": "c", "train": {"loss": "huber"}}
        )[2]
    ] == ["c"]


def test_added_network_unfit_for_data_fails_with_reason(preparation):
    prepared = preparation()
    admission = Admission(
        prepared, results_of(prepared.spec, prepared.paths), RateMemory(prepared, [])
    )
    [late] = admission.parse_entry(
        {"family": "softmax", "name": "late", "train": {"batch": {"size": 61}}}
    )[2]
    assert admission.admit(late).added.wrong == (
        "train.batch.size: 61 is more than the 60 training samples; at most 60"
    )


def test_replay_refuses_changed_initial_weights(preparation, tmp_path):
    file = tmp_path / "first.keras"
    file.write_bytes(b"weights")
    preparation.content["resources"]["engine"] = "keras"
    preparation.content["train"]["start"] = str(file)
    preparation.leave_checkpoint(epochs=(record(1, start=file_checksum(file)),))
    replay(preparation)
    file.write_bytes(b"others")
    assert "the initial weights of a, has changed since this run" in preparation.refused(
        replay=str(preparation.run.root), only="a"
    )
    preparation(replay=str(preparation.run.root), only="a", accept_changes=True)


def test_elastic_search_is_measured_between_trials(preparation):
    preparation.content["schedule"] = {"policy": "elastic"}
    preparation.content["models"] = [
        {
            "family": "softmax",
            "name": "s",
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1}},
            "search": {"sampler": "random", "max_trials": 2},
            "train": {"batch": {"size": [2, 8]}},
        }
    ]
    assert not RateMemory(preparation(), []).learns
