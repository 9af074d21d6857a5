"""Commands to running launches, and reports from them."""

import itertools
import json
import sys
import threading
from types import SimpleNamespace

import pytest

from fleet import live_run
from fleet.__main__ import main
from fleet.domain.events import CommandReceived, EpochEnded, NetworkAdded
from fleet.domain.json_record import to_json
from fleet.domain.run import RunState
from fleet.errors import ExitStatus, UserError
from fleet.live_run import Running, command, follow, report_of
from fleet.monitor.view import NotebookView
from fleet.runtime.external.command_queue import CommandQueue
from fleet.spec import dump, parse
from fleet.spec.schema import ModelEntry
from fleet.storage.event_log import EventLog, RunTail
from fleet.storage.lease import Lease, Process, Times, is_held
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record
from tests.fleet.logs import write_sample_run
from tests.refusals import refused


@pytest.fixture
def paths(tmp_path):
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.marker.touch()
    return paths


@pytest.fixture
def lease_held(paths):
    """Hold the lease of the run's folder."""
    around = Process()
    with Lease(around, around.me, Times(renew=60)) as lease:
        lease.take(paths.lease)
        yield paths


def test_is_held_until_the_launch_releases_the_folder(paths):
    around = Process()
    assert not is_held(paths.lease)
    with Lease(around, around.me, Times(renew=60)) as lease:
        lease.take(paths.lease)
        assert is_held(paths.lease)
    assert not is_held(paths.lease)


def answer_in_thread(paths, answer):
    """Answer the first command in a thread; return a list that receives its content."""
    result = []

    def serve():
        mailbox = CommandQueue(paths.mailbox)
        while not (waiting := list(mailbox.commands())):
            pass
        result.append(waiting[0].content)
        mailbox.answer(waiting[0].name, answer)

    threading.Thread(target=serve, daemon=True).start()
    return result


def test_command_returns_the_networks_it_concerns(lease_held):
    result = answer_in_thread(lease_held, {"networks": ["cnn", "cnn.2"]})
    assert live_run.add(lease_held.root, {"family": "cnn"}) == ["cnn", "cnn.2"]
    assert result == [{"do": "add", "entry": {"family": "cnn"}}]


def test_command_raises_refusals_of_the_launch(lease_held):
    answer_in_thread(lease_held, {"error": "a has ended: 2 epochs", "is_over": True})
    with pytest.raises(UserError, match="a has ended: 2 epochs"):
        command(lease_held.root, {"do": "stop", "network": "a"})


def test_command_is_refused_without_a_running_launch(paths, tmp_path):
    with refused(UserError, paths.root, "no launch"):
        command(paths.root, {"do": "stop", "network": "a"})
    with refused(UserError, tmp_path / "nowhere"):
        command(tmp_path / "nowhere", {"do": "stop", "network": "a"})
    assert not paths.mailbox.exists()


@pytest.fixture
def shared(paths):
    """Hold the lease of a network, but not of the folder; return a function that releases it."""
    paths.spec.write_text(
        dump(parse({"models": [{"family": "softmax", "name": name} for name in "ab"]}).document)
    )
    around = Process()
    lease = Lease(around, around.me, Times(renew=60))
    lease.take(paths.network_lease("b"))
    yield paths, lease.release
    lease.release()


def test_command_is_refused_by_launches_that_share_a_run(shared):
    paths, release = shared
    with refused(UserError, paths.root, "several launches", "fleet harvest"):
        command(paths.root, {"do": "yield", "nodes": 1, "within_s": 60.0})
    release()
    with refused(UserError, paths.root, "no launch"):
        command(paths.root, {"do": "stop", "network": "a"})
    assert not paths.mailbox.exists()


def test_watch_follows_all_launches_that_share_a_run(shared, monkeypatch, capsys):
    paths, release = shared

    def log(launch, network, epoch):
        entry = EventLog(RunPaths(paths.root, launch).events)
        entry.add(EpochEnded(network, record(epoch)))
        entry.close()

    def work(seconds):
        """Continue one launch between two polls, and start another."""
        log("17", "a", 2)
        log("18", "b", 1)
        release()

    log("17", "a", 1)

    monkeypatch.setattr(live_run.time, "sleep", work)
    assert main(["watch", str(paths.root), "--json"]) == 0
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["network"], entry["epoch"]) for entry in seen] == [("a", 2), ("b", 1)]


def apply_and_report(run, event):
    """Apply an event; return its report."""
    run.apply(0.0, event)
    return report_of(event, run)


def test_replay_networks_skips_unreadable_lines(paths):
    paths.spec.write_text(
        dump(
            parse(
                {
                    "models": [
                        {
                            "family": "cnn",
                            "name": "b",
                            "space": {"kernel": [3, 5]},
                            "search": {"max_trials": 4},
                        }
                    ]
                }
            ).document
        )
    )
    log = EventLog(paths.events)
    log.add(CommandReceived("c", "add", ("late",), {"family": "cnn", "name": "late"}, 1))
    log.add(NetworkAdded("late", "", -1, {}, (1, None), 60))
    log.add(NetworkAdded("b-3", "b", 3, {}, (1, None), 9))
    log.close()
    with open(paths.events, "a") as file:
        file.write('{"event": "added", "network"')
    run = live_run.new_run_state(paths)
    live_run.replay_networks(run, [paths.events, paths.root / "none"])
    ends = [apply_and_report(run, EpochEnded(name, record(9))) for name in ("late", "b-3")]
    assert [(entry.number, entry.is_last) for entry in ends] == [(0, False), (3, True)]


def test_command_without_an_answer_is_withdrawn(lease_held, monkeypatch):
    monkeypatch.setattr(live_run, "PATIENCE_S", 0.1)
    with refused(UserError, lease_held.root, "0 s"):
        command(lease_held.root, {"do": "stop", "network": "a"})
    assert list(CommandQueue(lease_held.mailbox).commands()) == []


def test_report_has_the_monitored_value_and_all_metrics():
    spec = parse(
        {
            "models": [
                {"family": "cnn", "name": "a"},
                {
                    "family": "cnn",
                    "name": "b",
                    "space": {"kernel": [3, 5]},
                    "search": {"max_trials": 4},
                },
            ],
            "train": {"stopping": {"monitor": "val_loss"}},
        }
    )
    run = RunState(spec)
    assert (
        apply_and_report(
            run,
            CommandReceived(
                "c",
                "add",
                ("late",),
                {
                    "family": "cnn",
                    "name": "late",
                    "train": {"stopping": {"monitor": "val_accuracy"}},
                },
                2,
            ),
        )
        is None
    )
    for added in (
        NetworkAdded("late", "", -1, {}, (1, None), 60),
        NetworkAdded("b-3", "b", 3, {}, (1, None), 9),
    ):
        assert apply_and_report(run, added) is None
    ended = record(2, val_loss=0.25, val_accuracy=0.75)
    result = [apply_and_report(run, EpochEnded(name, ended)) for name in ("a", "late", "b-3")]
    assert [(entry.network, entry.number, entry.epoch, entry.value) for entry in result] == [
        ("a", 0, 2, 0.25),
        ("late", 1, 2, 0.75),
        ("b-3", 3, 2, 0.25),
    ]
    assert result[0].metrics == {
        "loss": 1.0,
        "accuracy": 0.5,
        "val_loss": 0.25,
        "val_accuracy": 0.75,
    }


@pytest.mark.parametrize(
    "entry", [[1], "cnn", None, 3, {"family": object()}, {"args": {"rate": float("nan")}}]
)
def test_add_refuses_other_objects(paths, entry):
    launch = Running(Launcher(), paths, 0, ExitStatus)
    for add in (launch.add, launch.add_all, lambda entry: live_run.add(paths.root, entry)):
        with pytest.raises(
            UserError, match=r"^add: (an entry is a mapping|the entry cannot be written as YAML)"
        ):
            add(entry)


def test_add_accepts_an_entry_of_the_api(lease_held):
    result = answer_in_thread(lease_held, {"networks": ["cnn"]})
    live_run.add(lease_held.root, ModelEntry(family="cnn", args={"filters": (8, 16)}))
    assert result == [{"do": "add", "entry": {"family": "cnn", "args": {"filters": [8, 16]}}}]


@pytest.mark.parametrize("do", ["stop", "pause", "resume"])
def test_running_refuses_names_that_are_not_strings(paths, do):
    with refused(UserError, f"{do}:", "[1]"):
        getattr(Running(Launcher(), paths, 0, ExitStatus), do)([1])


class Launcher:
    """A process whose end tests set."""

    status = None

    def poll(self):
        return self.status


def test_running_reports_only_its_own_launch_after_fresh(paths, monkeypatch):
    paths.spec.write_text(dump(parse({"models": [{"family": "softmax", "name": "a"}]}).document))
    old, new = (
        [
            json.dumps({"t_s": t_s, **to_json(EpochEnded("a", record(epoch)))}) + "\n"
            for epoch in epochs
        ]
        for t_s, epochs in ((0.0, (1, 2, 3)), (1.0, (1, 2)))
    )
    paths.events.write_text("".join(old))
    launcher = Launcher()

    def go_on(seconds):
        paths.events.write_text("".join(new))
        launcher.status = 0

    monkeypatch.setattr(live_run.time, "sleep", go_on)
    entry = Running(launcher, paths, 0, lambda status: status, old[0].encode())
    assert [report.epoch for report in entry.reports()] == [1, 2]
    paths.events.write_text("".join(old))  # as if the launch failed before it deleted the log
    assert list(entry.reports()) == []


def test_follow_yields_whole_lines_until_the_launch_ends(paths, monkeypatch):
    lines = [
        json.dumps({"t_s": 0.0, **to_json(EpochEnded("a", record(epoch)))}) + "\n"
        for epoch in (1, 2, 3)
    ]
    pieces = iter([lines[0], lines[1][:20], lines[1][20:] + "{\n" + lines[2]])

    def is_over():
        with open(paths.events, "a") as file:
            file.write(piece := next(pieces, ""))
        return not piece

    monkeypatch.setattr(live_run, "_POLL_S", 0.0)
    assert [dated.event.record.epoch for dated in follow(RunTail(paths), is_over)] == [1, 2, 3]


class Cell:
    """The output of a notebook cell, which records its contents."""

    def __init__(self):
        self.contents = []

    def update(self, content, raw=False):
        self.contents.append(content)


def test_show_table_ends_with_the_results_in_a_notebook(tmp_path, monkeypatch):
    paths, cell, launcher, polls = write_sample_run(tmp_path), Cell(), Launcher(), []
    paths.spec.write_text(
        "models: [{family: softmax, name: a}, {family: softmax, name: b}]\n"
        "data: {source: image_folder, path: images}\n"
    )
    log = paths.events.read_text().replace("b<1>", "b").splitlines(keepends=True)
    paths.events.write_text("".join(log[:5]))

    def go_on(seconds):
        polls.append(seconds)
        if len(polls) == 3:
            paths.events.write_text("".join(log))
            launcher.status = 0

    monkeypatch.setattr(live_run.time, "sleep", go_on)
    monkeypatch.setattr(NotebookView, "make_display", lambda: cell)
    now = itertools.count()
    monkeypatch.setattr("fleet.monitor.view.time", SimpleNamespace(monotonic=lambda: next(now)))
    entry = Running(launcher, paths, 0, ExitStatus)
    entry.show_table()
    entry._shows.join(20)
    table, *_, last = cell.contents
    assert [column.header for column in table.columns][:3] == ["network", "devices", "epochs"]
    assert table.row_count == 2
    assert '<tr data-network="a">' in last["text/html"]


@pytest.mark.parametrize("status", [ExitStatus.RESUMABLE, ExitStatus.OK])
def test_interrupted_cell_says_what_resumes_it(tmp_path, monkeypatch, capsys, status):
    paths = write_sample_run(tmp_path)
    monkeypatch.setattr(live_run, "wait", lambda process, explained, stop: int(status))
    running = Running(Launcher(), paths, 0, ExitStatus)
    running._shows = SimpleNamespace(join=lambda seconds: None)
    assert running.wait() is status
    advice = "stopped with everything saved; run the cell again to resume it"
    assert (advice in capsys.readouterr().out) == (status is ExitStatus.RESUMABLE)


@pytest.mark.parametrize(
    ("shell", "expected"),
    [(SimpleNamespace(kernel=1), True), (SimpleNamespace(), False), (None, False)],
)
def test_is_notebook_recognizes_the_kernel(shell, expected, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not NotebookView.is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert NotebookView.is_notebook() is expected
