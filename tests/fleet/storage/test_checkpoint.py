"""Checkpoints, and when a network has converged."""

import csv
import errno
import math
import os
import threading

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fleet.domain.network import Convergence, TrainingState, check_convergence, remaining_epochs
from fleet.errors import CheckpointError, InfrastructureError, StorageError
from fleet.spec import Checkpoint, Stopping
from fleet.storage import checkpoint
from fleet.storage import writer as writer_module
from fleet.storage.paths import RunPaths
from fleet.storage.verified_hdf5 import write_verified
from fleet.storage.writer import CheckpointWriter
from tests.examples import examples
from tests.fleet.histories import history, record
from tests.refusals import refused

# ---- convergence -------------------------------------------------------------------------------


def check(*values, monitor="val_accuracy", **stopping):
    return check_convergence(
        [record(epoch, **{monitor: value}) for epoch, value in enumerate(values, start=1)],
        Stopping(monitor=monitor, **stopping),
    )


@pytest.mark.parametrize(
    ("values", "stopping", "best_epoch", "reason"),
    [
        ((0.5, 0.7, 0.6), {}, 2, ""),
        ((0.5, 0.7, 0.6), {"max_epochs": 3}, 2, "3 epochs"),
        ((0.5, 0.7), {"stop_at": 0.7}, 2, "val_accuracy reached 0.7"),
        # 0.53 is better than 0.50 by more than 0.02
        ((0.50, 0.51, 0.52, 0.53), {"min_delta": 0.02}, 4, ""),
        (
            (2.0, 1.0, 1.5, 1.5),
            {"patience": 2, "monitor": "val_loss"},
            2,
            "no better val_loss for 2 epochs",
        ),
    ],
)
def test_check_convergence_returns_best_epoch_and_reason(values, stopping, best_epoch, reason):
    verdict = check(*values, **stopping)
    assert (verdict.best_epoch, verdict.best, verdict.reason) == (
        best_epoch,
        values[best_epoch - 1],
        reason,
    )


def test_check_convergence_without_epochs():
    verdict = check()
    assert (verdict.best_epoch, verdict.reason) == (0, "")
    assert math.isnan(verdict.best)


@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy"])
def test_best_epoch_is_not_nan(monitor):
    nan = math.nan
    assert check(nan, monitor=monitor).best_epoch == 1
    assert check(nan, nan, 0.5, nan, monitor=monitor).best_epoch == 3
    assert check(math.inf, 0.5, monitor="val_loss").best_epoch == 2


def test_best_epoch_breaks_ties_by_loss():
    losses = (33.7, 9.0, 2.4, 3.1)
    tied = [
        record(epoch, val_accuracy=0.9, val_loss=loss) for epoch, loss in enumerate(losses, start=1)
    ]
    assert check_convergence(tied, Stopping()).best_epoch == 3
    # Patience waits for a better accuracy, not for a better loss.
    assert (
        check_convergence(tied[:3], Stopping(patience=2)).reason
        == "no better val_accuracy for 2 epochs"
    )


def test_time_limit_ends_training_and_bounds_epochs():
    epochs = [record(epoch, val_accuracy=0.5, seconds=4.0) for epoch in (1, 2, 3)]
    assert check_convergence(epochs, Stopping(max_time=13)).reason == ""
    assert check_convergence(epochs, Stopping(max_time=12)).reason == "max_time: 12.0 s"
    assert check_convergence(epochs, Stopping(max_time=12, max_epochs=3)).reason.startswith("max")
    assert remaining_epochs(epochs, Stopping(max_time=13)) == (1, 1)
    assert remaining_epochs(epochs, Stopping(max_time=24)) == (3, 3)
    assert remaining_epochs(epochs, Stopping(max_time=24, max_epochs=5)) == (2, 2)
    assert remaining_epochs((), Stopping(max_time=1, max_epochs=5)) == (5, 5)


def test_best_epoch_ignores_epochs_before_data_changed():
    """Until the first epoch after the change has ended, the earlier ones count."""
    before = (*history(0.6, 0.9), record(3, val_accuracy=0.8, accepted="a.py data"))
    assert check_convergence(before, Stopping()).best_epoch == 2
    after = (*before, record(4, val_accuracy=0.3))
    assert check_convergence(after, Stopping(patience=2)) == Convergence(4, 0.3, "", 4)
    assert check_convergence(after, Stopping(stop_at=0.85)).reason == ""
    longer = (*after, record(5, val_accuracy=0.2), record(6, val_accuracy=0.1))
    assert (
        check_convergence(longer, Stopping(patience=2)).reason
        == "no better val_accuracy for 2 epochs"
    )
    assert check_convergence(longer, Stopping(max_epochs=6)).reason == "6 epochs"


@pytest.mark.parametrize(("val_accuracy", "best_epoch"), [(math.nan, 2), (0.5, 1)])
def test_best_epoch_breaks_ties_by_validation(val_accuracy, best_epoch):
    epochs = [
        record(1, accuracy=1.0, loss=0.2, val_accuracy=val_accuracy, val_loss=1.0),
        record(2, accuracy=1.0, loss=0.1, val_accuracy=val_accuracy, val_loss=2.0),
    ]
    assert check_convergence(epochs, Stopping(monitor="accuracy")).best_epoch == best_epoch


def test_best_epoch_breaks_no_ties_by_nan():
    tied = [
        record(epoch, val_loss=loss)
        for epoch, loss in enumerate((math.nan, 2.0, math.nan), start=1)
    ]
    assert check_convergence(tied, Stopping()).best_epoch == 2


@pytest.mark.parametrize(
    ("values", "stopping", "bounds"),
    [
        ((), {"max_epochs": 9}, (9, 9)),
        ((0.5,), {"max_epochs": 9}, (8, 8)),
        ((0.5,), {"max_epochs": 1}, (0, 0)),
        ((), {"max_epochs": 9, "patience": 3}, (4, 9)),
        ((0.5,), {"max_epochs": 9, "patience": 3}, (3, 8)),
        ((0.5, 0.4, 0.3), {"max_epochs": 9, "patience": 3}, (1, 6)),
        ((0.5, 0.4, 0.6), {"max_epochs": 9, "patience": 3}, (3, 6)),
        ((0.5,), {"max_epochs": 3, "patience": 5}, (2, 2)),
        ((0.5,), {"max_epochs": 9, "stop_at": 0.9}, (1, 8)),
        ((0.5, 0.9), {"max_epochs": 9, "stop_at": 0.9}, (0, 0)),
    ],
)
def test_remaining_epochs_follow_from_rule_and_history(values, stopping, bounds):
    assert remaining_epochs(history(*values), Stopping(**stopping)) == bounds


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=12),
    st.builds(
        Stopping,
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(1, 5)),
        st.just("val_accuracy"),
        st.sampled_from([0.0, 1.0]),
        st.one_of(st.none(), st.integers(0, 8)),
    ),
)
def test_remaining_epochs_bound_training(values, stopping):
    epochs = history(*values)
    end = next(done for done in range(1, 13) if check_convergence(epochs[:done], stopping).reason)
    for done in range(end):
        minimum, maximum = remaining_epochs(epochs[:done], stopping)
        assert 1 <= minimum <= end - done <= maximum


class EarlyStopping:
    """Early stopping with a state, as in textbooks: the reference for the one without a state."""

    def __init__(self, stopping):
        self.stopping = stopping
        self.sign = 1 if stopping.monitor.endswith("accuracy") else -1
        self.best = self.best_epoch = self.waited = self.epochs = self.loss = 0

    def see(self, value, loss):
        self.epochs += 1
        if self.epochs == 1 or self.sign * (value - self.best) > self.stopping.min_delta:
            self.best = value
            self.best_epoch = self.epochs
            self.waited = 0
            self.loss = loss
            return
        self.waited += 1
        if value == self.best and loss < self.loss:
            self.best_epoch = self.epochs
            self.loss = loss

    @property
    def is_over(self):
        target, patience = self.stopping.stop_at, self.stopping.patience
        return (
            self.epochs >= self.stopping.max_epochs
            or (patience is not None and self.waited >= patience)
            or (target is not None and self.sign * (self.best - target) >= 0)
        )


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=12),
    st.builds(
        Stopping,
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(1, 5)),
        st.sampled_from(["val_loss", "val_accuracy", "loss", "accuracy"]),
        st.sampled_from([0.0, 1.0, 2.5]),
        st.one_of(st.none(), st.integers(0, 8)),
    ),
)
def test_resumed_network_stops_at_same_epoch(values, stopping):
    oracle, epochs = EarlyStopping(stopping), []
    for epoch, (value, loss) in enumerate(values, start=1):
        epochs.append(record(epoch, **{"val_loss": loss, stopping.monitor: value}))
        oracle.see(value, epochs[-1].val_loss)
        verdict = check_convergence(epochs, stopping)  # a resumed run only has the history
        assert (verdict.best_epoch, verdict.best, bool(verdict.reason)) == (
            oracle.best_epoch,
            oracle.best,
            oracle.is_over,
        )


# ---- files -------------------------------------------------------------------------------------

arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint32, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
states = st.builds(
    TrainingState,
    arrays=st.dictionaries(
        st.sampled_from(["weights", "model/0000/conv/kernel", "a b", "é"]), arrays
    ),
    identity=st.text("0123abc", max_size=16),
    position=st.integers(0, 10**12),
    stream_epoch=st.integers(-1, 99),
    history=st.lists(st.builds(record, st.integers(1, 99), *4 * [st.floats()]), max_size=3).map(
        tuple
    ),
    sums=st.tuples(*3 * [st.floats()]),
    final=st.text(max_size=20),
)


@settings(max_examples=examples(60), deadline=None)
@given(states)
def test_read_state_returns_what_was_written(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("checkpoints") / "last.h5"
    checkpoint.write_state(path, state)
    read = checkpoint.read_state(path)
    assert repr(read) == repr(state)  # as text, because NaN differs from NaN; without arrays
    assert set(read.arrays) == set(state.arrays)
    for name, array in state.arrays.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array)
    assert repr(checkpoint.read_state(path, with_arrays=False)) == repr(state)
    assert checkpoint.read_state(path, with_arrays=False).arrays == {}


STATE = TrainingState(
    arrays={"weights": np.arange(2000.0)}, identity="i", history=history(0.5, 0.6)
)


def test_read_state_returns_a_thousand_epochs(tmp_path):
    state = TrainingState(
        arrays={}, identity="i", history=history(*np.linspace(0, 1, 1000).tolist())
    )
    checkpoint.write_state(tmp_path / "last.h5", state)
    assert checkpoint.read_state(tmp_path / "last.h5") == state


@pytest.mark.parametrize(
    "record",
    [
        [],
        None,
        3,
        {},
        {"history": 3},
        {"history": [3], "sums": [0, 0, 0]},
        {"history": [], "sums": 3, "identity": "i"},
        {"history": [], "identity": "i"},
        {"history": [], "sums": [], "identity": "i", "more": 1},
    ],
)
def test_read_state_refuses_records_of_another_format(tmp_path, record):
    path = tmp_path / "last.h5"
    write_verified(path, {}, record)
    with refused(CheckpointError, path):
        checkpoint.read_state(path)


def test_read_state_accepts_old_checkpoint_without_seconds(tmp_path):
    record = {
        "identity": "i",
        "history": [],
        "stream_epoch": 2,
        "position": 8,
        "path": [],
        "sums": [1, 2, 8],
        "final": "",
    }
    write_verified(tmp_path / "last.h5", {}, record)
    state = checkpoint.read_state(tmp_path / "last.h5")
    assert (state.position, state.seconds, state.waited_s) == (8, 0.0, 0.0)


def test_read_state_refuses_other_files(tmp_path):
    (tmp_path / "text.h5").write_text("hello")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for name in ("none.h5", "text.h5", "other.h5", "."):
        with refused(CheckpointError, tmp_path / name):
            checkpoint.read_state(tmp_path / name)


def test_write_state_refuses_object_arrays(tmp_path):
    """Object arrays, which NumPy would pickle, cannot be written."""
    with pytest.raises((TypeError, CheckpointError)):
        checkpoint.write_state(
            tmp_path / "last.h5", TrainingState(arrays={"a": np.array([object()])}, identity="i")
        )
    assert os.listdir(tmp_path) == []


def test_write_history_writes_a_table(tmp_path):
    checkpoint.write_history(tmp_path / "history.csv", history(0.5, 0.75))
    with open(tmp_path / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["val_accuracy"], row["gpus"]) for row in rows] == [
        ("1", "0.5", "1"),
        ("2", "0.75", "1"),
    ]


@pytest.mark.parametrize("written", [(), (0.5,), (0.5, 0.75)])
def test_complete_history_adds_epochs_that_the_table_lacks(tmp_path, written):
    path = tmp_path / "history.csv"
    if written:
        checkpoint.write_history(path, history(*written))
    before = path.stat().st_ino if written else 0
    checkpoint.complete_history(path, history(0.5, 0.75))
    assert len(checkpoint.read_history(path)) == 2
    assert (path.stat().st_ino == before) == (len(written) == 2)  # a current one is not written


# ---- the writer --------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def test_flush_writes_last_best_and_history(paths):
    writer = CheckpointWriter(paths, Checkpoint())
    better, worse = TrainingState({}, "i", history(0.6)), TrainingState({}, "i", history(0.6, 0.5))
    writer.save("net", better, is_best=True)
    writer.save("net", worse, is_best=False)
    writer.flush()
    assert (checkpoint.read_state(paths.best("net")), checkpoint.read_state(paths.last("net"))) == (
        better,
        worse,
    )
    assert len(paths.history("net").read_text().splitlines()) == 3


def test_best_is_written_before_last(paths, monkeypatch):
    written = []
    monkeypatch.setattr(
        writer_module, "write_state", lambda path, state, *more, **options: written.append(path)
    )
    writer = CheckpointWriter(paths, Checkpoint())
    writer.save("net", STATE, is_best=True)
    writer.flush()
    assert written == [paths.best("net"), paths.last("net")]


def test_keep_last_deletes_the_best(paths):
    writer = CheckpointWriter(paths, Checkpoint())
    writer.save("net", TrainingState({}, "i", history(0.7)), is_best=True)
    writer.close()
    writer = CheckpointWriter(paths, Checkpoint(keep="last"))
    writer.save("net", TrainingState({}, "i", history(0.7, 0.8)), is_best=True)
    writer.close()
    assert not paths.best("net").exists()
    assert checkpoint.find_best(paths, "net", Stopping(max_epochs=2), "last").state.epoch == 2


def test_writer_waits_for_the_checkpoint_before(paths, monkeypatch):
    disk = threading.Event()
    monkeypatch.setattr(
        writer_module, "write_state", lambda path, state, previous, fence=None: disk.wait(10)
    )
    writer = CheckpointWriter(paths, Checkpoint())
    writer.save("net", STATE, is_best=False)  # does not wait for the disk
    second = threading.Thread(target=writer.save, args=("net", STATE, False))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    disk.set()
    second.join()
    writer.flush()
    assert writer.blocked_s > 0.05


def test_close_writes_everything_and_ends_thread(paths):
    before = set(threading.enumerate())
    writer = CheckpointWriter(paths, Checkpoint())
    (thread,) = set(threading.enumerate()) - before
    writer.save("net", STATE, is_best=False)
    writer.close()
    assert checkpoint.read_state(paths.last("net")).history == STATE.history
    thread.join(10)
    assert not thread.is_alive()


def test_storage_error_is_raised_in_training_thread(paths):
    paths.root.write_text("a file where the folder should be")
    writer = CheckpointWriter(paths, Checkpoint())
    writer.save("net", STATE, is_best=False)
    with refused(StorageError, "last.h5", os.strerror(errno.ENOTDIR)):
        writer.flush()
    writer.flush()  # reported once


def test_optional_file_is_written_again_after_a_refusal(paths):
    refusals = [OSError(errno.EIO, "Input/output error")]

    def write(file):
        file.write(b"outputs")
        if refusals:
            raise refusals.pop()

    path = paths.predictions("net", "validation")
    CheckpointWriter(paths, Checkpoint()).write_optional(path, 7, write)
    assert path.read_bytes() == b"outputs"


def test_other_error_is_raised_at_next_save(paths, monkeypatch):
    def break_down(path, state, previous, fence=None):
        raise MemoryError("no room")

    monkeypatch.setattr(writer_module, "write_state", break_down)
    writer = CheckpointWriter(paths, Checkpoint())
    writer.save("net", STATE, is_best=False)
    writer._jobs.join()
    with refused(InfrastructureError, "no room"):
        writer.save("net", STATE, is_best=False)


def test_export_takes_best_state_and_removes_previous(paths):
    writer, exported = CheckpointWriter(paths, Checkpoint()), []
    for epochs in (1, 2, 3):
        writer.save(
            "net",
            TrainingState({"w": np.full(3, epochs)}, "i", history(0.5, 0.7, 0.6)[:epochs]),
            epochs == 2,
        )
    assert (
        writer.export(
            "net", Stopping(max_epochs=3), lambda arrays, path: exported.append((arrays, path))
        )
        == ""
    )
    ((arrays, path),) = exported
    assert (arrays["w"].tolist(), path.parent, path.suffix) == (
        [2, 2, 2],
        paths.model("net"),
        ".keras",
    )
    assert not paths.previous("net").exists()
    writer.close()


def test_replacement_of_lost_best_respects_quota(paths):
    writer = CheckpointWriter(paths, Checkpoint())
    for epochs in (1, 2):
        writer.save(
            "net",
            TrainingState({"w": np.zeros(1000)}, "i", history(0.7, 0.6)[:epochs]),
            epochs == 1,
        )
    writer.close()
    damage(paths.best("net"))
    size = paths.last("net").stat().st_size
    writer = CheckpointWriter(paths, Checkpoint(quota=2 * size + 5000))  # for the existing two
    with refused(StorageError, "best.h5", "checkpoint.quota"):
        writer.export("net", Stopping(max_epochs=2), lambda arrays, path: None)
    writer.close()


# ---- damage ------------------------------------------------------------------------------------


@pytest.fixture
def saved(paths):
    """Save three epochs of a network, one after another."""
    writer = CheckpointWriter(paths, Checkpoint())
    for epochs in (1, 2, 3):
        writer.save(
            "net",
            TrainingState({"w": np.arange(4.0) * epochs}, "i", history(0.5, 0.7, 0.6)[:epochs]),
            epochs != 3,
        )
    writer.close()
    return paths


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


MISSING = "last.h5 is missing, though 3 epochs had been saved"


@pytest.mark.parametrize(
    ("damage_file", "names", "epoch", "message"),
    [
        (damage, [], 3, ""),
        (damage, ["last"], 2, "last.h5 cannot be read"),
        (lambda path: path.write_bytes(b""), ["last"], 2, "last.h5 cannot be read"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            ["last"],
            2,
            "last.h5 cannot be read",
        ),
        (damage, ["last", "previous"], 2, "previous.h5 cannot be read"),
        (damage, ["last", "previous", "best"], 0, "previous.h5"),
        (os.unlink, ["last"], 2, MISSING),
        (os.unlink, ["last", "previous"], 2, MISSING),
        (
            os.unlink,
            ["last", "previous", "best"],
            0,
            "no other checkpoint is left, though 3 epochs had been saved",
        ),
    ],
)
def test_find_newest_reports_damage_once(saved, damage_file, names, epoch, message):
    intact = {
        "last": saved.last("net"),
        "previous": saved.previous("net"),
        "best": saved.best("net"),
    }
    for name in names:
        damage_file(intact.pop(name))
    lookup = checkpoint.find_newest(saved, "net")
    assert message in lookup.damage if message else not lookup.damage
    assert checkpoint.find_newest(saved, "another").damage == ""  # it has trained nothing
    if epoch:
        assert (lookup.path, lookup.state.epoch) == (next(iter(intact.values())), epoch)
        assert lookup.state.arrays["w"].tolist() == (epoch * np.arange(4)).tolist()
        # if only the best is left, the table has more epochs
        assert lookup.history == history(0.5, 0.7, 0.6)[: 3 if len(intact) == 1 else epoch]
    if message:
        checkpoint.promote_previous(saved, "net", lookup)
        assert not saved.previous("net").exists()
    again = checkpoint.find_newest(saved, "net")
    path = saved.last("net") if epoch else checkpoint.CheckpointLookup(None).path
    assert (again.damage, again.path) == ("", path)
    assert (again.state and again.state.epoch) == (epoch or None)
    assert len(saved.history("net").read_text().splitlines()) == 1 + epoch
    if epoch:  # the best is exported
        best = checkpoint.find_best(saved, "net", Stopping(max_epochs=3), "best+last")
        assert (best.state.epoch, best.damage) == (2, "")


def test_find_newest_prefers_the_best_to_an_earlier_previous(paths):
    writer = CheckpointWriter(paths, Checkpoint())
    for epochs in (1, 2):
        writer.save("net", TrainingState({"w": np.ones(1)}, "i", history(0.5, 0.7)[:epochs]), True)
    writer.close()
    paths.last("net").unlink()
    damage(paths.previous("net"))  # in its arrays, which a lookup of records does not read
    for with_arrays in (False, True):
        lookup = checkpoint.find_newest(paths, "net", with_arrays)
        assert (lookup.path, lookup.state.epoch) == (paths.best("net"), 2)


@pytest.mark.parametrize("table", [b"", b"epoch,loss\n1,0.5\n", b"\xff\n", None])
def test_find_newest_ignores_an_invalid_table_of_epochs(saved, table):
    damage(saved.last("net"))
    saved.previous("net").unlink()
    if table is None:
        checkpoint.write_history(
            saved.history("net"),
            tuple(record(epoch, stream_epoch=9 * epoch) for epoch in (1, 2, 3)),
        )
    else:
        saved.history("net").write_bytes(table)
    assert checkpoint.find_newest(saved, "net").history == history(0.5, 0.7)


def test_find_newest_raises_if_file_system_refuses(saved, monkeypatch):
    monkeypatch.setattr(
        checkpoint, "read_state", lambda path, with_arrays: refuse(path, errno.ESTALE)
    )
    with refused(CheckpointError, os.strerror(errno.ESTALE)):
        checkpoint.find_newest(saved, "net")


def test_find_newest_skips_checkpoint_lost_by_disk(saved, monkeypatch):
    read = checkpoint.read_state
    monkeypatch.setattr(
        checkpoint,
        "read_state",
        lambda path, with_arrays: (
            refuse(path, errno.EIO) if path == saved.last("net") else read(path, with_arrays)
        ),
    )
    assert checkpoint.find_newest(saved, "net").state.epoch == 2


def refuse(path, number):
    raise CheckpointError(f"{path}: {os.strerror(number)}") from OSError(
        number, os.strerror(number)
    )


@pytest.mark.parametrize("damage_file", [damage, os.unlink])
def test_find_best_replaces_a_lost_best_by_the_last_epoch(saved, damage_file):
    damage_file(saved.best("net"))
    lookup = checkpoint.find_best(saved, "net", Stopping(max_epochs=3), "best+last")
    assert lookup.state.epoch == 3
    assert "best.h5 cannot be read" in lookup.damage
    assert lookup.damage.endswith("epoch 3, the last, replaces epoch 2, the best")


def test_find_best_ignores_best_outside_history(saved):
    """After a checkpoint is lost, the network is trained on other epochs of the stream."""
    checkpoint.write_state(
        saved.last("net"),
        TrainingState({}, "i", (record(1), record(2, stream_epoch=7, val_accuracy=0.8))),
    )
    lookup = checkpoint.find_best(saved, "net", Stopping(max_epochs=2), "best+last")
    assert "best.h5 is not of epoch 2" in lookup.damage
    assert lookup.state.history[1].stream_epoch == 7
