"""A network ends at its time limit, within an epoch, on any number of ranks."""

import signal

import pytest

from fleet.domain import events as ev
from fleet.storage.checkpoint import read_state
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import spec
from tests.waiting import wait_until

MODELS = [
    {"family": "softmax", "name": "one"},
    {"family": "softmax", "name": "pair", "gpus": 2},
]


def limited(tmp_path, max_time, models):
    """Return a spec whose epochs take five seconds or more."""
    train = {"stopping": {"max_epochs": 500, "max_time": max_time}, "batch": {"size": 4}}
    return spec(tmp_path, models, samples=5000, source="slow", train=train)


@pytest.mark.long
def test_time_limit_ends_epochs_early(launch, tmp_path):
    run = launch(3, limited(tmp_path, "2s", MODELS))
    assert run.status == 0, run.output
    for name, result in run.results().items():
        assert (result.status, result.reason) == ("finished", "max_time: 2.0 s")
        *earlier, last = run.history(name)
        assert last.cut_at >= last.samples > 0
        assert not any(record.cut_at for record in earlier)
        assert sum(record.seconds for record in (*earlier, last)) >= 2
        assert last.val_loss > 0


@pytest.mark.long
def test_longer_time_limit_counts_earlier_launches(launch, tmp_path):
    assert launch(2, limited(tmp_path, "1s", MODELS[:1])).status == 0
    same = launch(2, limited(tmp_path, "1s", MODELS[:1]))
    assert (same.status, len(same.history("one"))) == (0, 1)
    run = launch(2, limited(tmp_path, "2.5s", MODELS[:1]))
    assert run.status == 0, run.output
    first, second = run.history("one")
    assert first.seconds >= 1
    assert 2.5 - first.seconds <= second.seconds < 2.5


@pytest.mark.long
def test_time_limit_counts_a_begun_epoch(launch, tmp_path):
    content = limited(tmp_path, "4s", MODELS[:1])
    process = launch.start(2, content)
    paths = RunPaths(tmp_path / "run")
    wait_until(lambda: events_of(paths.events, ev.FirstStep), process)
    process.send_signal(signal.SIGUSR2)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    saved = read_state(paths.last("one"), with_arrays=False)
    run = launch(2, content)
    assert run.status == 0, run.output
    [record] = run.history("one")
    assert record.cut_at > saved.position > 0
    assert record.seconds >= max(4, saved.seconds)


@pytest.mark.long
def test_replay_leaves_out_the_epoch_at_the_limit(launch, tmp_path):
    content = limited(tmp_path, "2s", MODELS[:1])
    content["data"]["path"] = "600"
    run = launch(2, content)
    assert run.status == 0, run.output
    *earlier, last = run.history("one")
    replay = launch(1, content, "--replay", str(run.paths.root), "--only", "one")
    assert replay.status == 0, replay.output
    replayed = read_state(RunPaths(run.paths.replay("one")).last("one"), with_arrays=False)
    assert len(replayed.history) == len(earlier) + (not last.cut_at)
