"""Fencing: a launch that was suspended and continues destroys no file of its successor."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.network import TrainingState
from fleet.errors import LeaseLost
from fleet.spec import Checkpoint
from fleet.storage import checkpoint, files
from fleet.storage.checkpoint import find_newest, read_state, write_history, write_state
from fleet.storage.fencing import fence_out, newest_written_generation
from fleet.storage.paths import RunPaths
from fleet.storage.writer import CheckpointWriter
from tests.examples import examples
from tests.fleet.histories import history
from tests.fleet.storage.test_lease import hold
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    return RunPaths(tmp_path / "run")


def lease(run, name):
    run.lease.mkdir(parents=True, exist_ok=True)
    holder_lease = hold(run.lease, name, job="7", system="slurm", restarts=int(name[-1]))
    return holder_lease.fence


def state(*accuracies):
    return TrainingState(
        {"weights": np.full(3, len(accuracies), float)}, "net", history(*accuracies)
    )


def save(run, fence, *accuracies):
    write_state(run.last("a"), state(*accuracies), run.previous("a"), fence)


def test_checkpoint_has_the_generation_of_its_launch(run):
    first = lease(run, "launch0")
    save(run, first, 0.5)
    save(run, lease(run, "launch1"), 0.5, 0.6)
    assert (read_state(run.previous("a")).generation, read_state(run.last("a")).generation) == (
        1,
        2,
    )
    assert newest_written_generation(run) == 2


def test_fenced_launch_writes_nothing_more(run):
    first = lease(run, "launch0")
    save(run, first, 0.5)
    second = lease(run, "launch1")
    with refused(LeaseLost, run.root):
        save(run, first, 0.5, 0.6)
    with pytest.raises(LeaseLost):
        write_history(run.history("a"), history(0.5), first)
    assert find_newest(run, "a").state.epoch == 1
    save(run, second, 0.5, 0.7)
    assert sorted(path.name for path in run.model("a").iterdir()) == ["last.h5", "previous.h5"]


def test_checkpoint_of_newer_generation_is_not_replaced(run):
    first = lease(run, "launch0")
    save(run, lease(run, "launch1"), 0.5)
    (run.lease / "00000002").unlink()
    (run.lease / "00000001").write_text((run.lease / "00000001").read_text().partition("taken")[0])
    first.check()
    with refused(LeaseLost, run.last("a"), "generation 2", "(1)"):
        save(run, first, 0.5)
    assert read_state(run.last("a")).generation == 2


MOMENTS = ("open", "replace", "fsync", "listdir")


@pytest.mark.parametrize("kind", ["last", "best", "history", "export", "epoch"])
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_stopped_launch_destroys_nothing_of_the_next(tmp_path_factory, kind, data):
    """The next launch takes over and writes two epochs during a system call of a write."""
    run = RunPaths(tmp_path_factory.mktemp("fencing") / "run")
    first = lease(run, "launch0")
    for count in range(1, 4):
        save(run, first, *[0.5] * count)
    write_state(run.best("a"), state(0.5), fence=first)
    name, skip = (
        data.draw(st.sampled_from(MOMENTS)),
        data.draw(st.integers(0, 12 if kind == "epoch" else 6)),
    )
    plain, calls = getattr(os, name), []

    def stopped(*arguments, **options):
        calls.append(name)
        if len(calls) == skip + 1:
            with ThreadPoolExecutor() as pool:  # folders are pinned per thread
                pool.submit(follow, run).result()
        return plain(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, stopped)
        with suppress(LeaseLost):
            write(run, kind, first)
    if len(calls) <= skip:
        follow(run)
    assert read_state(run.last("a")).history == history(*[0.9] * 5)
    assert read_state(run.previous("a")).history == history(*[0.9] * 4)
    assert read_state(run.best("a")).history == history(*[0.9] * 5)
    assert run.history("a").read_text().count("0.9") == 5
    assert run.exported("a", ".keras").read_text() == "of launch 2"
    with pytest.raises(LeaseLost):
        write(run, kind, first)
    assert run.foreign_files() == []


def write(run, kind, fence):
    """Write a file of the fourth epoch, as a rank of the first launch."""
    if kind == "last":
        save(run, fence, *[0.5] * 4)
    elif kind == "best":
        write_state(run.best("a"), state(*[0.5] * 4), fence=fence)
    elif kind == "history":
        write_history(run.history("a"), history(*[0.5] * 4), fence)
    elif kind == "epoch":
        writer = CheckpointWriter(run, Checkpoint(), fence)
        writer.save("a", state(*[0.5] * 4), is_best=True)
        writer.close()
    else:
        files.atomic_write_with(
            run.exported("a", ".keras"),
            lambda path: path.write_text("of launch 1"),
            check=checkpoint.write_check(fence, run.best("a")),
        )


def follow(run):
    """Take over the run as another launch, and train two epochs."""
    second = lease(run, "launch1")
    fence_out(run)
    assert find_newest(run, "a").state.epoch >= 3  # all saved epochs
    for count in (4, 5):
        save(run, second, *[0.9] * count)
    write_state(run.best("a"), state(*[0.9] * 5), fence=second)
    write_history(run.history("a"), history(*[0.9] * 5), second)
    files.atomic_write_with(
        run.exported("a", ".keras"), lambda path: path.write_text("of launch 2")
    )


@pytest.mark.parametrize("moment", range(12))
def test_fence_out_may_be_killed_at_any_moment(run, monkeypatch, moment):
    for name in ("a", "b"):
        write_state(run.last(name), state(0.5))
        write_state(run.best(name), state(0.5))
    calls, plain = [], {name: getattr(os, name) for name in ("rename", "rmdir", "mkdir")}

    class Killed(BaseException):
        pass

    def pluralize(name):
        def call(*arguments, **options):
            calls.append(name)
            if len(calls) == moment + 1:
                raise Killed
            return plain[name](*arguments, **options)

        return call

    for name in plain:
        monkeypatch.setattr(os, name, pluralize(name))
    try:
        fence_out(run)
    except Killed:
        monkeypatch.undo()
        fence_out(run)
    monkeypatch.undo()
    for name in ("a", "b"):
        assert (read_state(run.last(name)).epoch, read_state(run.best(name)).epoch) == (1, 1)
    assert sorted(path.name for path in run.models.iterdir()) == ["a", "b"]


def test_fence_out_of_a_run_without_networks(run):
    run.root.mkdir()
    fence_out(run)
    assert newest_written_generation(run) == 0


def test_fenced_writer_raises_at_its_next_save(run):
    writer = CheckpointWriter(run, Checkpoint(), lease(run, "launch0"))
    writer.save("a", state(0.5), is_best=True)
    writer.flush()
    assert read_state(run.last("a")).generation == 1
    lease(run, "launch1")
    writer.save("a", state(0.5, 0.6), is_best=True)
    with pytest.raises(LeaseLost):
        writer.close()
    assert read_state(run.last("a")).epoch == 1
