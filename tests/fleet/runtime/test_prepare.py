"""What is checked before any rank waits."""

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
from fleet.storage.checkpoint import write_state
from fleet.storage.identity import file_checksum, training_identity
from fleet.storage.lease import Lease, Process, Times
from fleet.storage.paths import RunPaths
from preprocess.base import CannotWrite, InputError
from tests.fleet.histories import history, record, results_of
from tests.fleet.runtime.runs import prepare
from tests.sources import Numbered, reads

ONE_NODE = (0, 0, 0)


class Asking:
    """Prepares a spec that may be changed before."""

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
        """The message with which this is refused."""
        with pytest.raises((UserError, InputError)) as caught:
            self(*arguments, **options)
        return str(caught.value)

    def leave_checkpoint(self, name="a", epochs=history(0.5), **state):
        """As if an earlier launch had come so far."""
        prepared = self()
        own_rows = training_identity(prepared.spec.by_name[name], prepared.spec, prepared.sample)
        write_state(
            prepared.paths.last(name),
            TrainingState({}, state.pop("identity", own_rows), epochs, **state),
        )


@pytest.fixture
def asking(tmp_path):
    return Asking(tmp_path)


def test_what_every_rank_needs_is_there_and_can_be_sent(asking):
    prepared = pickle.loads(pickle.dumps(asking()))
    assert (prepared.roles.preprocessors, prepared.roles.trainers) == ((0,), (1, 2))
    assert (str(prepared.sample.image), prepared.sample.classes) == ("4 x 4 x 1 uint8", 3)
    assert prepared.layout.samples == 60
    assert (prepared.rates, prepared.replayed) == (None, ())
    assert (prepared.pipeline("train").samples, prepared.pipeline("validation").samples) == (60, 20)


def test_networks_of_another_spec_in_the_folder_are_named(asking):
    asking.leave_checkpoint()
    assert asking().describe_unlisted == ""
    asking.content["models"][0]["name"] = "b"
    assert (
        f"{asking.run.root} also holds networks that this spec lacks: a;"
        in asking().describe_unlisted
    )
    assert asking(fresh=True).describe_unlisted == ""


@pytest.mark.parametrize(
    "data",
    [{}, {"order": "ring"}, {"cache": "auto"}, {"cache": "memory"}, {"cache": "file"}],
    ids=str,
)
def test_each_part_of_the_data_is_looked_at_once(asking, tmp_path, data):
    (tmp_path / "reads").mkdir()
    asking.content["data"] |= {
        "source": "tests.sources:noted",
        "options": {"folder": str(tmp_path / "reads")},
        "transforms": ["decode", "tests.sources:noise"],
        **data,
    }
    asking()
    every = [
        (part, index)
        for part, count in (("train", 60), ("validation", 20))
        for index in range(count)
    ]
    looked_at = [
        ("opened", -1),
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
def test_window_holds_as_many_epochs_as_fit(asking, free, epochs):
    asking.content["models"] += [
        {"family": "softmax", "name": "b", "train": {"stopping": {"max_epochs": 3}}}
    ]
    asking.content["train"]["stopping"] = {"max_epochs": 50}
    layout = asking(ranks={"shared_free": free}).layout
    assert layout.slots == epochs * layout.chunks


def test_the_folder_holds_the_spec_and_says_whose_it_is(asking):
    prepared = asking()
    assert yaml.safe_load(prepared.paths.spec.read_text())["models"] == asking.content["models"]
    assert prepared.paths.marker.exists()
    assert prepared.paths.foreign_files() == []


@pytest.mark.parametrize(
    ("part", "value", "words"),
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
def test_what_is_wrong_is_said_and_nothing_is_written(asking, part, value, words):
    asking.content[part] = value
    assert words in asking.refused()
    assert not asking.run.root.exists()


def test_all_that_is_wrong_with_the_networks_is_said_at_once(asking):
    asking.content["models"] = [
        {"family": "softmax", "name": "a", "train": {"batch": {"size": 100}}},
        {"family": "softmax", "name": "b", "gpus": 7},
    ]
    message = asking.refused()
    assert message.startswith("2 networks cannot be trained as specified:")
    assert "a: train.batch.size: 100" in message
    assert "b: gpus: needs at least 7 trainers" in message


def test_network_too_large_for_any_gpu_is_refused_first(asking):
    asking.content |= {
        "models": [
            {"family": "cnn", "name": "a", "args": {"filters": [4], "dense": [10**6, 10**6]}}
        ],
        "resources": {"engine": "keras"},
    }
    assert (
        "a: it has 1,000,021,000,059 parameters, so training takes at least 8 TB on each GPU to train"
        in asking.refused()
    )


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


def test_gpus_of_the_spec_count_before_those_that_are_shown(asking):
    asking.content["resources"]["gpus_per_node"] = 1
    assert asking(gpus=4).roles.preprocessors == (0, 1)


def test_baseline_trainers_prepare_samples_without_measuring(asking):
    asking.content["schedule"] = {"policy": "baseline"}
    prepared = asking()
    assert (prepared.roles.preprocessors, prepared.layout) == ((), None)
    assert [model.name for model in prepared.rates.models] == ["a"]


def test_decode_full_disk_is_no_user_error(asking, monkeypatch):
    def full(data, transforms, samples, path, advance):
        raise CannotWrite(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("fleet.runtime.inputs.decode_once", full)
    asking.content["data"]["cache"] = "file"
    asking.content["data"]["transforms"] = [{"resize": {"size": [4, 4]}}]
    with pytest.raises(
        StorageError, match=r"decoded.h5 cannot be written: No space left on device .* make room"
    ):
        asking()


# ---- the run's folder --------------------------------------------------------------------------


def test_a_folder_with_other_files_is_not_taken(asking):
    asking.run.root.mkdir()
    (asking.run.root / "thesis.tex").touch()
    assert "holds files that FLEET did not write" in asking.refused()
    assert "holds files that FLEET did not write" in asking.refused(fresh=True)
    assert (asking.run.root / "thesis.tex").exists()


def test_an_empty_folder_is_taken(asking):
    asking.run.root.mkdir()
    assert asking().paths.spec.exists()


def test_fresh_deletes_what_earlier_launches_have_written(asking):
    asking.leave_checkpoint()
    (asking.run.root / ".results.csv.123.tmp").touch()  # of a launch that was killed
    (asking.run.root / ".decoded.h5.123.tmp").touch()
    (asking.run.model("a") / ".123.tmp.last.h5").touch()
    RunPaths(asking.run.replay("a")).last("a").parent.mkdir(parents=True)
    RunPaths(asking.run.replay("a")).last("a").touch()
    asking(fresh=True)
    assert sorted(path.name for path in asking.run.root.rglob("*")) == [
        ".fleet-run",
        "data.npz",
        "sample.json",
        "spec.yaml",
    ]


def test_fresh_deletes_nothing_without_engine_library(asking, monkeypatch):
    asking.leave_checkpoint()
    monkeypatch.setitem(sys.modules, "torch", None)
    asking.content["resources"]["engine"] = "torch"
    assert "No module named 'torch'; the torch engine requires: pip install" in asking.refused(
        fresh=True
    )
    assert asking.run.last("a").exists()


def lease():
    """One that waits for nobody for long."""
    process = Process()
    return Lease(process, process.me, Times(renew=0.05, patience=0.1, poll=0.02))


def test_fresh_keeps_commands_sent_after_lease(asking):
    """Whoever has started it may add networks as soon as it holds the lease."""

    class Asked(Lease):
        def take(self, folder, floor=0):
            super().take(folder, floor)
            if folder == asking.run.lease:
                mailbox.put({"do": "add"})

    asking()
    mailbox, around = CommandQueue(asking.run.mailbox), Process()
    mailbox.put({"do": "stop"})  # for an earlier launch
    with Asked(around, around.me, Times(renew=60)) as lease:
        asking(fresh=True, lease=lease)
        assert [command.content for command in mailbox.commands()] == [{"do": "add"}]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_in_which_a_launch_is_at_work_is_left_alone(asking, fresh):
    asking.leave_checkpoint()
    with lease() as first, lease() as second:
        asking(fresh=fresh, lease=first)
        asking.run.events.touch()
        assert "another launch is running in this folder" in asking.refused(
            fresh=True, lease=second
        )
        assert asking.run.events.exists()
    with lease() as third:
        asking(fresh=True, lease=third)
    assert asking.run.foreign_files() == []


@pytest.mark.parametrize(
    "name", ["notes.txt", "models/a/plot.png", "models/a/old/last.h5", "spec.yaml.orig"]
)
def test_fresh_deletes_nothing_with_foreign_files(asking, name):
    asking.leave_checkpoint()
    (asking.run.root / name).parent.mkdir(exist_ok=True)
    (asking.run.root / name).touch()
    assert f"also holds files that FLEET did not write: {name}" in asking.refused(fresh=True)
    assert asking.run.last("a").exists()
    asking()  # going on is no harm


def test_a_link_to_a_folder_may_be_the_run_and_is_kept(asking, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    asking.run.root.symlink_to(tmp_path / "elsewhere")
    asking.leave_checkpoint()
    asking(fresh=True)
    assert asking.run.root.is_symlink()
    assert not asking.run.last("a").exists()


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
def test_a_checkpoint_of_other_settings_is_not_taken_up(asking, change):
    asking.leave_checkpoint()
    for part, value in change.items():
        asking.content[part] = (
            {**asking.content[part], **value} if isinstance(value, dict) else value
        )
    assert "holds a checkpoint of a that was trained with other settings" in asking.refused()
    asking(fresh=True)


def test_checkpoint_accepts_new_epochs_policy_and_data_path(asking):
    asking.leave_checkpoint()
    asking.content |= {"schedule": {"policy": "baseline"}}
    asking.content["train"]["stopping"] = {"max_epochs": 100}
    asking()


# ---- replaying ---------------------------------------------------------------------------------


def replay(asking, only="a"):
    return asking(replay=str(asking.run.root), only=only)


def test_replay_trains_one_network_beside_the_run(asking):
    asking.leave_checkpoint(epochs=(record(1, stream_epoch=3), record(2, stream_epoch=5)))
    prepared = replay(asking)
    (network,) = prepared.spec.networks
    assert (prepared.paths.root, [record.stream_epoch for record in prepared.replayed]) == (
        asking.run.replay("a"),
        [3, 5],
    )
    assert (network.train.stopping.max_epochs, network.max_gpus, prepared.layout) == (2, 1, None)


def test_replay_uses_recorded_per_gpu_batch(asking):
    asking.content["train"]["batch"] = {"size": 8, "when_scaled": "per_gpu"}
    asking.content["train"]["optimizer"] = {"learning_rate": 0.25}
    asking.leave_checkpoint(epochs=(record(1, gpus=2), record(2, gpus=2)))
    train = replay(asking).spec.networks[0].train
    assert (train.batch.size, train.batch.when_scaled, train.optimizer.learning_rate) == (
        16,
        "fixed",
        0.5,
    )
    asking.leave_checkpoint(epochs=(record(1, gpus=2), record(2, gpus=1)))
    assert "cannot be replayed: its batch depended on the number of GPUs" in asking.refused(
        replay=str(asking.run.root), only="a"
    )


@pytest.mark.parametrize(
    ("had", "ranks", "gets"), [((2, 2), 3, 2), ((2, 2), 1, 1), ((2, 1), 3, 1), ((3,), 2, 1)]
)
def test_replay_uses_recorded_group_size_if_possible(asking, had, ranks, gets):
    asking.leave_checkpoint(
        epochs=tuple(record(epoch, gpus=gpus) for epoch, gpus in enumerate(had, start=1))
    )
    (network,) = asking(replay=str(asking.run.root), only="a", node_of=(0,) * ranks).spec.networks
    assert (network.min_gpus, network.max_gpus) == (gets, gets)


def test_a_replay_of_what_is_not_there_is_refused(asking):
    asking()
    assert "--only b: the spec has no network of this name; it has a" in asking.refused(
        replay=str(asking.run.root), only="b"
    )
    assert "a has no checkpoint in this run" in asking.refused(
        replay=str(asking.run.root), only="a"
    )
    asking.run.last("a").parent.mkdir(parents=True)
    asking.run.last("a").touch()
    assert "last.h5 cannot be read" in asking.refused(replay=str(asking.run.root), only="a")
    asking.leave_checkpoint(epochs=())
    assert "a has not finished an epoch in this run" in asking.refused(
        replay=str(asking.run.root), only="a"
    )


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_replay_with_other_settings_than_the_runs_is_refused(asking, gpus):
    asking.leave_checkpoint(epochs=(record(1, gpus=gpus),))
    asking.content["train"]["batch"] = {"size": 4}
    assert "was trained with other settings than in this spec" in asking.refused(
        replay=str(asking.run.root), only="a"
    )


def of_values(asking):
    asking.content["data"] = {
        "source": "tests.fleet.runtime.test_kinds:made",
        "path": "value",
        "transforms": [],
    }
    asking.content["resources"]["engine"] = "keras"  # which has more than one loss
    asking.content["models"][0]["train"] = {"loss": "huber"}
    asking.content["models"].append({"family": "softmax", "name": "b"})


def test_losses_not_comparable_are_refused_with_data(
    asking,
):
    of_values(asking)
    assert "val_loss is not the same for all networks, so it cannot compare them: huber for a" in (
        asking.refused()
    )
    asking.content["train"] |= {"metrics": ["mae"], "stopping": {"monitor": "val_mae"}}
    assert asking().spec.networks[0].train.stopping.monitor == "val_mae"


def test_added_network_needs_criteria_of_the_run(asking):
    of_values(asking)
    asking.content["models"] = asking.content["models"][:1]
    prepared = asking()
    admission = Admission(prepared, results_of(prepared.spec, prepared.paths), {}, {}, learns=False)
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


def test_added_network_unfit_for_data_fails_with_reason(asking):
    prepared = asking()
    admission = Admission(prepared, results_of(prepared.spec, prepared.paths), {}, {}, learns=False)
    [late] = admission.parse_entry(
        {"family": "softmax", "name": "late", "train": {"batch": {"size": 61}}}
    )[2]
    assert admission.admit(late).added.wrong == (
        "train.batch.size: 61 is more than the 60 training samples; at most 60"
    )


def test_a_replay_from_a_file_that_is_another_by_now_is_refused(asking, tmp_path):
    file = tmp_path / "first.keras"
    file.write_bytes(b"weights")
    asking.content["resources"]["engine"] = "keras"
    asking.content["train"]["start"] = str(file)
    asking.leave_checkpoint(epochs=(record(1, start=file_checksum(file)),))
    replay(asking)
    file.write_bytes(b"others")
    assert "the initial weights of a, has changed since this run" in asking.refused(
        replay=str(asking.run.root), only="a"
    )
    asking(replay=str(asking.run.root), only="a", accept_changes=True)
