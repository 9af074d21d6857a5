"""Whole runs that lose checkpoints: killed, damaged, deleted, or without room."""

import dataclasses
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain import events as ev
from fleet.engines.softmax import SoftmaxRegression
from fleet.errors import ExitStatus, StorageError
from fleet.storage.event_log import read_run_state
from tests.fleet.runtime.one_run.runner import Runner, cases, counting, few, shaky
from tests.fleet.runtime.runs import Interruption, Signal
from tests.refusals import refused


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_quota_drops_old_checkpoints_and_can_be_raised(
    folders,
):
    runner = shaky(folders(), failures=0, retries=0, policy="global")
    runner.case.content["train"]["stopping"] = {"max_epochs": 4}
    runner.case.content["models"] = [{"family": "softmax", "name": name} for name in ("n0", "n1")]

    def within(**checkpoint):
        return Runner(
            dataclasses.replace(
                runner.case, content={**runner.case.content, "checkpoint": checkpoint}
            ),
            runner.folder,
        )

    complete = within()
    assert complete.launch(Interruption(40)) is ExitStatus.RESUMABLE
    size = complete.prepared.paths.last("n0").stat().st_size
    too_small = within(quota=5 * 816)  # the arrays alone
    with refused(StorageError, "cannot be written", "checkpoint.quota", "4.08 kB"):
        too_small.launch()
    ended = within(quota=5 * size + 10_000)
    assert ended.launch() is ExitStatus.OK
    assert [row.epochs for row in ended.results().values()] == [4, 4]
    assert ended.prepared.paths.all_previous() == []


@pytest.mark.long_but_first
@pytest.mark.parametrize("position", [0, 100, -1], ids=["head", "record", "arrays"])
def test_finished_network_with_damaged_checkpoint_stays(folders, position):
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    before, row = runner.history("n0"), str(runner.results()["n0"])
    path = runner.prepared.paths.last("n0")
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert runner.launch() is ExitStatus.OK
    assert (runner.history("n0"), str(runner.results()["n0"])) == (before, row)
    assert len(runner.events(ev.EpochEnded)) == 3
    # The arrays are not read.
    is_noticed = position != -1
    assert [event.finished for event in runner.events(ev.NetworkRolledBack)] == [True] * is_noticed


def test_history_of_a_finished_network_is_written_again(folders):
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    path = runner.prepared.paths.history("n0")
    history = path.read_bytes()
    path.write_bytes(b"".join(history.splitlines(keepends=True)[:-1]))  # as a killed launch left it
    assert runner.launch() is ExitStatus.OK
    assert path.read_bytes() == history


def test_deleted_checkpoint_is_reported_with_resume_epoch(folders, monkeypatch, capsys):
    signal = Signal()
    # in the third epoch, when two are saved
    monkeypatch.setattr(
        SoftmaxRegression,
        "step",
        counting(SoftmaxRegression.step, {2 * 3 + 1: lambda: setattr(signal, "has_come", True)}),
    )
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch(signal) is ExitStatus.RESUMABLE
    runner.prepared.paths.last("n0").unlink()
    runner.forget_unsaved_rows()
    remaining = len(runner.history("n0"))
    assert runner.launch() is ExitStatus.OK
    (event,) = runner.events(ev.NetworkRolledBack)
    assert (event.network, event.epochs) == ("n0", remaining)
    assert event.damage.startswith(f"{runner.prepared.paths.last('n0')} is missing")
    assert "WARNING: n0 continues after epoch" in capsys.readouterr().out
    runner.check_epochs()


@pytest.mark.long
def test_deleted_network_folder_is_reported(folders, capsys):
    runner = shaky(folders(), failures=0, retries=0, epochs=3, policy="baseline")
    assert runner.launch() is ExitStatus.OK
    assert not runner.events(ev.NetworkRolledBack)
    shutil.rmtree(runner.prepared.paths.last("n0").parent)
    assert runner.launch() is ExitStatus.OK
    assert "WARNING: n0 starts over: its checkpoint is missing; the log has 3 epochs of it" in (
        capsys.readouterr().out
    )
    assert len(runner.history("n0")) == 3
    assert runner.launch() is ExitStatus.OK
    assert len(runner.events(ev.NetworkRolledBack)) == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@few
@given(
    cases(),
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, 120),
            st.lists(
                st.tuples(
                    st.integers(0, 3),
                    st.sampled_from(["last", "previous", "best"]),
                    st.floats(0, 1),
                ),
                max_size=5,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_damaged_checkpoints_fall_back_to_whole_ones(folders, case, launches):
    runner = Runner(case, folders())
    for is_kill, moment, flips in launches:
        runner.launch(
            **({"turns": moment + 1} if is_kill else {"interruption": Interruption(moment)})
        )
        for number, file, share in flips:
            path = getattr(runner.prepared.paths, file)(f"n{number}")
            if path.exists():
                content = bytearray(path.read_bytes())
                content[int(share * (len(content) - 1))] ^= 1
                path.write_bytes(content)
        runner.forget_unsaved_rows()
    assert runner.launch() is ExitStatus.OK
    runner.check_epochs()
    for name, row in runner.results().items():
        history = runner.history(name)
        assert (
            len(history)
            == row.epochs
            == case.content["models"][int(name[1:])]["train"]["stopping"]["max_epochs"]
        )
        assert len(runner.prepared.paths.history(name).read_text().splitlines()) == 1 + len(history)
        assert read_run_state(runner.prepared.paths).find_unlogged(name, history) == ()
