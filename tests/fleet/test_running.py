"""A run that is going on, seen from outside."""

import json
import threading

import pytest

from fleet import running
from fleet.errors import UserError
from fleet.running import Reporter, command, follow
from fleet.runtime.outside.mailbox import Mailbox
from fleet.spec import parse
from fleet.storage.events import Commanded, EpochEnded, NetworkAdded
from fleet.storage.lease import Lease, Process, Times, is_held
from fleet.storage.lines import to_json
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.marker.touch()
    return paths


@pytest.fixture
def held(paths):
    """The run's folder, in which a launch is at work."""
    around = Process()
    with Lease(around, around.me, Times(renew=60)) as lease:
        lease.take(paths.lease)
        yield paths


def test_a_folder_is_held_until_its_launch_lets_go(paths):
    around = Process()
    assert not is_held(paths.lease)
    with Lease(around, around.me, Times(renew=60)) as lease:
        lease.take(paths.lease)
        assert is_held(paths.lease)
    assert not is_held(paths.lease)


def answering(paths, answer):
    """A launch that answers the first command in another thread; returns what it was."""
    found = []

    def serve():
        mailbox = Mailbox(paths.mailbox)
        while not (waiting := list(mailbox.commands())):
            pass
        found.append(waiting[0].content)
        mailbox.answer(waiting[0].name, answer)

    threading.Thread(target=serve, daemon=True).start()
    return found


def test_a_command_is_answered_with_the_networks_that_it_is_about(held):
    found = answering(held, {"networks": ["cnn", "cnn.2"]})
    assert running.add(held.root, {"family": "cnn"}) == ["cnn", "cnn.2"]
    assert found == [{"do": "add", "entry": {"family": "cnn"}}]


def test_what_the_launch_refuses_is_raised(held):
    answering(held, {"error": "a is over: 2 epochs", "is_over": True})
    with pytest.raises(UserError, match="a is over: 2 epochs"):
        command(held.root, {"do": "stop", "network": "a"})


def test_a_run_that_has_ended_refuses_and_so_does_what_is_no_run(paths, tmp_path):
    with pytest.raises(UserError, match="no launch is at work there"):
        command(paths.root, {"do": "stop", "network": "a"})
    with pytest.raises(UserError, match="no folder of a run"):
        command(tmp_path / "nowhere", {"do": "stop", "network": "a"})
    assert not paths.mailbox.exists()


def test_a_command_that_nobody_answers_is_taken_back(held):
    with pytest.raises(UserError, match="has not answered within 0 s; nothing was done"):
        command(held.root, {"do": "stop", "network": "a"}, patience_s=0.1)
    assert list(Mailbox(held.mailbox).commands()) == []


def test_a_report_has_the_monitored_value_and_all_metrics():
    spec = parse({"models": [{"family": "cnn", "name": "a"}, {"family": "cnn", "name": "b", "space": {"kernel": [3, 5]},
                                                              "search": {"most": 4}}],
                  "train": {"converge": {"monitor": "val_loss"}}})
    reporter = Reporter(spec)
    assert reporter.hear(Commanded("c", "add", ("late",), {"family": "cnn", "name": "late", "train": {
        "converge": {"monitor": "val_accuracy"}}}, 2)) is None
    assert reporter.hear(NetworkAdded("b-3", "b", 3, {}, (1, None), 9)) is None
    ended = record(2, val_loss=0.25, val_accuracy=0.75)
    found = [reporter.hear(EpochEnded(name, ended)) for name in ("a", "late", "b-3")]
    assert [(one.network, one.number, one.epoch, one.value) for one in found] == [
        ("a", 0, 2, 0.25), ("late", 1, 2, 0.75), ("b-3", 3, 2, 0.25)]
    assert found[0].metrics == {"loss": 1.0, "accuracy": 0.5, "val_loss": 0.25, "val_accuracy": 0.75}


def test_a_log_is_followed_line_by_whole_line_until_the_launch_is_over(paths, monkeypatch):
    lines = [json.dumps({"t_s": 0.0, **to_json(EpochEnded("a", record(epoch)))}) + "\n" for epoch in (1, 2, 3)]
    pieces = iter([lines[0], lines[1][:20], lines[1][20:] + "{\n" + lines[2]])

    def is_over():
        with open(paths.events, "a") as file:
            file.write(piece := next(pieces, ""))
        return not piece

    monkeypatch.setattr(running, "_LOOK_S", 0.0)
    assert [event.record.epoch for event in follow(paths, 0, is_over)] == [1, 2, 3]
