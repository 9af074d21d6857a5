"""Tests of ``fleet report --at`` and ``fleet watch --from``."""

import json
import math
import shutil
import sys
from dataclasses import replace

import pytest

from fleet.__main__ import main
from fleet.domain import events as ev
from fleet.domain.plain_json import as_json
from fleet.errors import ExitStatus
from fleet.storage.event_log import read_events
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.examples import long_but_first
from tests.fleet.histories import record
from tests.fleet.logs import START, as_text
from tests.fleet.runtime.test_searching import ENTRY, Run

SOFTMAX = [{"family": "softmax", "name": name} for name in "ab"]

pytestmark = pytest.mark.usefixtures("quick")


def plain(folder):
    run = Run(folder, {}, models=SOFTMAX)
    assert run.launch() == 0
    return run.paths


def resumed(folder):
    run = Run(folder, {}, models=SOFTMAX, epochs=6)
    while run.launch(turns=60 + 20 * run.seed) is None:
        assert run.seed < 30
    assert run.seed > 1
    return run.paths


def searched(folder):
    run = Run(
        folder,
        {"sampler": "random", "max_trials": 5, "max_concurrent": 3},
        models=[{**ENTRY, "search": {"sampler": "random", "max_trials": 5, "max_concurrent": 3}}],
        prune={"rule": "asha", "factor": 2},
    )
    while run.launch(turns=100 + 100 * run.seed) is None:
        assert run.seed < 30
    return run.paths


def harvested(folder, second=("2", 1005.0, True)):
    """Make a run of two concurrent launches, of which the first is silent, and a third one."""
    run = Run(folder, {}, models=SOFTMAX, epochs=2)
    assert run.launch() == 0
    paths = run.paths
    paths.events.unlink()
    start = replace(START, bounds={"a": (1, None), "b": (1, None)})

    def write(launch, date, network, epochs, seconds, is_shared):
        log = [
            (0.0, replace(start, date=date, beside=is_shared)),
            (0.1, ev.NetworkLeased(network, 1, epochs - 1, 0)),
            (0.2, ev.RatesLoaded({"a": (10.0,), "b": (5.0,)})),
            (0.5, ev.GroupStarted(network, (0,), 0, 1)),
            (seconds, ev.EpochEnded(network, record(epochs, seconds=seconds - 1))),
            (seconds, ev.NetworkFinished(network, "done", epochs)),
            (seconds + 0.5, ev.GroupStopped(network, 0.1)),
        ]
        second = RunPaths(paths.root, launch).events
        second.parent.mkdir(exist_ok=True)
        second.write_text(as_text(log))

    write("1", 1000.0, "a", 1, 20.0, is_shared=False)
    name, date, is_shared = second
    write(name, date, "b", 1, 4.0, is_shared)
    write("3", 5000.0, "b", 2, 8.0, is_shared=False)
    return paths


class Twice:
    """A searcher that proposes the same values twice."""

    def __init__(self, space, seed, mode):
        """Ignore all arguments."""

    def ask(self, number):
        return {"train.optimizer.learning_rate": 0.01}

    def report(self, number, epoch, value):
        return "go_on"

    def tell(self, number, outcome, value):
        """Ignore results."""


def refused(folder):
    """Make a run with an invalid proposal, which a second launch reads from the log."""
    run = Run(folder, {"sampler": f"{__name__}:Twice", "max_trials": 2}, epochs=1)
    assert [run.launch(), run.launch()] == [ExitStatus.NETWORK_FAILED] * 2
    assert run.rows()["net-1"].parameters is None
    return run.paths


def raced(folder):
    """Make such a run in which both launches began before either held a network."""
    return harvested(folder, ("twin", 1000.004, False))


RUNS = pytest.mark.parametrize("make", long_but_first(searched, plain, resumed, harvested, raced))


def times(paths):
    """Return the time of each line of the logs, in seconds of the run."""
    result, now = {}, 0.0
    for log in paths.event_logs():
        lines = list(read_events(log))
        if log.parent == paths.root:
            clock, base = [], 0.0
            for t_s, event in lines:
                base = now if isinstance(event, ev.LaunchStarted) else base
                clock.append(now := base + t_s)
        else:  # as written above
            clock = [
                {"1": 0.0, "twin": 0.004, "2": 5.0, "3": 20.5}[log.stem] + t_s for t_s, _ in lines
            ]
        result[log] = clock
    return result


def cut(paths, folder, at):
    """Make the folder of a run with only the spec, the sample, and the log up to a time."""
    shutil.rmtree(folder, ignore_errors=True)
    short = RunPaths(folder / paths.root.name)
    (short.root / "events").mkdir(parents=True)
    for path in (paths.spec, paths.sample):
        shutil.copy(path, short.root / path.name)
    for log, clock in times(paths).items():
        lines = log.read_text().splitlines(keepends=True)
        if kept_lines := [line for line, t_s in zip(lines, clock, strict=True) if t_s <= at]:
            (short.root / log.relative_to(paths.root)).write_text("".join(kept_lines))
    return short


def report(paths, at, capsys, page):
    assert (
        main(["report", str(paths.root), "--at", f"{at:.9f}s", "--json", "--html", str(page)]) == 0
    )
    return json.loads(capsys.readouterr().out), page.read_text()


def files(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@RUNS
def test_report_at_uses_the_log_up_to_then_and_writes_nothing(make, tmp_path, capsys):
    paths = make(tmp_path)
    capsys.readouterr()
    before, moments = (
        files(paths.root),
        sorted({t_s for clock in times(paths).values() for t_s in clock}),
    )
    for path in range(1, 8):
        at = moments[len(moments) * path // 8] + 1e-7
        short = cut(paths, tmp_path / "cut", at)
        full = report(paths, at, capsys, tmp_path / "page.html")
        assert full == report(short, at, capsys, tmp_path / "page.html")
        assert full == report(short, math.ceil(moments[-1]) + 10, capsys, tmp_path / "page.html")
    assert files(paths.root) == before


@pytest.mark.parametrize("make", long_but_first(resumed, plain, searched, refused))
def test_report_at_the_end_equals_the_table(make, tmp_path, capsys):
    paths = make(tmp_path)
    capsys.readouterr()
    result, _ = report(paths, 1e6, capsys, tmp_path / "page.html")
    rows = json.loads(json.dumps(as_json(read_results(paths.root))))
    unneeded = {"repeats": 0, "violates": "", "energy_kj": None}  # left out where unused
    assert [{**row, "metrics": {}} for row in rows] == [
        {**unneeded, **row, "metrics": {}} for row in result["networks"]
    ]
    assert main(["report", str(paths.root), "--json"]) == 0
    now = json.loads(capsys.readouterr().out)
    assert {key: now[key] for key in result if key != "ensembles"} == result


def test_report_at_zero_has_waiting_networks(tmp_path, capsys):
    paths = plain(tmp_path)
    paths.results.unlink()
    capsys.readouterr()
    result, page = report(paths, 0.0, capsys, tmp_path / "page.html")
    assert [(row["name"], row["status"]) for row in result["networks"]] == [
        ("a", "waiting"),
        ("b", "waiting"),
    ]
    assert (result["launches"], result["seconds"], result["gpus"]) == (0, 0.0, 0)
    assert page.startswith("<!doctype html>")
    assert main(["report", str(paths.root), "--at", "0s"]) == 0
    assert "waiting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["report", "RUN", "--at", "soon"],
            "--at: 'soon' should be written like 90s, 10min, 2h or 1:30:00",
        ),
        (["report", "RUN", "--at", "-3s"], "--at: expected one argument, as in --at 350s"),
        (["report", "RUN", "--at", "nan"], "should be written like 90s"),
        (["watch", "RUN", "--from", "x"], "should be written like 90s"),
        (["watch", "RUN", "--from", "0s", "--speed", "0"], "should be a number above 0"),
        (["watch", "RUN", "--from", "0s", "--speed", "-1"], "--speed"),
        (["watch", "RUN", "--from", "0s", "--speed", "fast"], "should be a number"),
        (["watch", "RUN", "--speed", "2"], "needs --from"),
        (["report", "RUN", "--at", "3s"], "it is no run"),
    ],
)
def test_invalid_times_are_one_line_and_status_2(arguments, message, tmp_path, capsys):
    assert main([str(tmp_path) if word == "RUN" else word for word in arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_watch_replays_a_run_at_the_given_speed(tmp_path, capsys, monkeypatch):
    paths, slept = harvested(tmp_path), []
    capsys.readouterr()
    monkeypatch.setattr("fleet.commands.live.watch.time.sleep", slept.append)
    monkeypatch.setattr("fleet.commands.live.watch.time.monotonic", lambda: sum(slept))
    assert main(["watch", str(paths.root), "--from", "8s", "--speed", "10"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[:3] for line in output if "epoch" in line and "loss" in line] == [
        ["b", "epoch", "1/2:"],
        ["a", "epoch", "1/2:"],
        ["b", "epoch", "2/2:"],
    ]
    assert sum(slept) == pytest.approx(
        (20.5 + 8.5 - 8) / 10
    )  # of the third launch, which begins when the first one has ended
    assert main(["watch", str(paths.root), "--from", "0s", "--json", "--speed", "1000"]) == 0
    assert [json.loads(line)["network"] for line in capsys.readouterr().out.splitlines()] == [
        "b",
        "a",
        "b",
    ]


def test_watch_ends_silently_on_a_broken_pipe(tmp_path, capsys, monkeypatch):
    paths = harvested(tmp_path)
    capsys.readouterr()

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("fleet.commands.live.watch.time.sleep", interrupted)
    assert main(["watch", str(paths.root), "--from", "0s"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.long_but_first
@pytest.mark.parametrize(
    "words", [["report", "--at", "1s"], ["watch", "--from", "0s", "--speed", "1e6"]]
)
def test_report_finds_modules_next_to_the_spec(words, tmp_path, capsys, monkeypatch):
    (tmp_path / "policy_beside.py").write_text(
        "from scheduler.ensemble.policies import POLICIES\nPOLICY = POLICIES['baseline']\n"
    )
    elsewhere, path = tmp_path / "elsewhere", list(sys.path)
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "path", [*path])
    run = Run(tmp_path, {}, models=SOFTMAX, schedule={"policy": "policy_beside:POLICY"})
    assert run.launch() == 0
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.delitem(sys.modules, "policy_beside")
    monkeypatch.chdir(elsewhere)
    assert main([words[0], str(run.paths.root), *words[1:]]) == 0, capsys.readouterr().err


@pytest.mark.long_but_first
@pytest.mark.parametrize("content", ["3", "[]", "{}", "{"])
def test_damaged_sample_file_is_named_in_one_line(content, tmp_path, capsys):
    paths = harvested(tmp_path)
    paths.sample.write_text(content)
    capsys.readouterr()
    assert main(["report", str(paths.root), "--at", "1s"]) == 2
    assert f"{paths.sample} cannot be read" in capsys.readouterr().err


def test_watch_refuses_runs_without_a_log(tmp_path, capsys):
    paths = harvested(tmp_path)
    for log in paths.event_logs():
        log.unlink()
    capsys.readouterr()
    assert main(["watch", str(paths.root), "--from", "0s"]) == 2
    assert "has no events.jsonl, so it cannot be replayed" in capsys.readouterr().err
