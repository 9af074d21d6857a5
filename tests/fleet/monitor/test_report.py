"""What a run's log says, and the page that shows it."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from html.parser import HTMLParser

import pytest

from fleet.__main__ import main
from fleet.monitor.account import account
from fleet.monitor.html import _ticks, render
from fleet.monitor.report import read_report
from fleet.spec import parse
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results
from fleet.storage.state import EpochRecord

START = {"event": "start", "policy": "baseline", "devices": [0, 1], "gpus_per_node": 2, "samples": 100,
         "stream": "free", "options": {"alpha": 0.8, "delta": "15%", "peak_limited": True, "seed": 0},
         "bounds": {"a": [1, None], "b<1>": [1, None]}, "time_scale": 1.0}


def epoch(t, network, number, seconds, waited=0.0):
    record = EpochRecord(number, number - 1, loss=1 / number, accuracy=0.5, val_loss=0.7, val_accuracy=0.4 + number / 9,
                         learning_rate=0.1, samples=100, gpus=1, seconds=seconds, waited_s=waited)
    return {"t_s": t, "event": "epoch", "network": network, **asdict(record), "blocked_s": 0.25}


def at(t, event, network, **fields):
    return {"t_s": t, "event": event, "network": network, **fields}


# a trains two epochs of 10 s on device 0, b one of 20 s on device 1; groups form in half a second, and end in 0.1.
EVENTS = [
    {"t_s": 0.0, **START},
    at(1.0, "plan", "", scheduling_s=0.01),
    at(1.0, "group", "a", devices=[0], stream_epoch=0), at(1.0, "group", "b<1>", devices=[1], stream_epoch=0),
    epoch(11.5, "a", 1, 10.0), epoch(21.5, "b<1>", 1, 20.0, waited=5.0), at(21.5, "final", "b<1>", reason="1 epoch"),
    at(21.6, "stopped", "b<1>", checkpoint_s=0.1), epoch(22.0, "a", 2, 10.0), at(22.0, "final", "a", reason="2 epochs"),
    at(22.1, "stopped", "a", checkpoint_s=0.1), {"t_s": 23.0, "event": "end", "status": 0},
]


def with_rates(a, b, **changes):
    return [{**EVENTS[0], **changes}, at(0.0, "rates", "", rates={"a": [a], "b<1>": [b]}), *EVENTS[1:]]


def test_who_trained_when_and_where_the_time_went():
    told = account(EVENTS)
    assert [(stint.name, stint.devices, stint.start_s, stint.end_s, stint.epochs) for stint in told.stints] == [
        ("a", (0,), 1.0, 22.1, 2), ("b<1>", (1,), 1.0, 21.6, 1)]
    spent = asdict(told.spent)
    assert spent == pytest.approx({"training": 35, "data": 5, "checkpointing": 0.95, "moving": 41.7 - 40.95,
                                   "waiting": 46 - 41.7 - 0.02, "scheduling": 0.02, "profiling": 0})
    assert sum(spent.values()) == pytest.approx(2 * 23)
    assert told.spent.blocked_share == pytest.approx(0.95 / 35)


def test_costs_are_what_moves_took_and_the_simulation_pays_them():
    told = account(with_rates(10.0, 5.0))
    assert (told.costs.regroup_s, told.epoch_s) == pytest.approx((0.5, 0.5))
    assert told.measured_s == pytest.approx(21.1)  # from the first group to the last
    assert told.simulated_s == pytest.approx(0.51 + 2 * (10 + 0.5))


def test_where_the_policy_was_told_no_rates_those_that_networks_showed_count():
    told = account(EVENTS)
    assert told.simulated_s == pytest.approx(0.51 + 2 * (10 + 0.5))


def test_a_log_of_before_deltas_had_units_is_replayed_as_it_was_meant():
    def simulated(delta):
        options = {**START["options"], "delta": delta}
        return account(with_rates(10.0, 5.0, policy="global", options=options)).simulated_s

    assert simulated("6") == simulated("6/s") < simulated("4") == simulated("4/s")  # the rates are 5 samples/s apart
    assert simulated("60%") == simulated("6/s")


def test_a_scale_of_time_changes_nothing_but_the_scale():
    slow, fast = account(with_rates(10.0, 5.0)), account(with_rates(5.0, 2.5, time_scale=0.5))
    assert (fast.measured_s, fast.simulated_s) == pytest.approx((slow.measured_s, slow.simulated_s))


def test_launches_follow_each_other_and_what_a_killed_one_saved_counts():
    killed = EVENTS[:5]  # up to the first epoch of a, at 11.5 s
    resumed = [{"t_s": 0.0, **START}, epoch(0.0, "b<1>", 1, 9.0),
               at(2.0, "group", "a", devices=[1], stream_epoch=2), epoch(12.0, "a", 2, 9.0),
               at(12.0, "final", "a", reason=""), at(12.5, "stopped", "a", checkpoint_s=0.1)]
    told = account([*killed, *resumed])
    assert told.launches == 2
    assert told.seconds == pytest.approx(11.5 + 12.5)
    assert [(stint.name, stint.end_s, stint.epochs) for stint in told.stints] == [
        ("a", 11.5, 1), ("b<1>", 11.5, 1), ("a", 24.0, 1)]


def test_a_group_that_changed_has_a_bar_for_each_shape():
    events = [{"t_s": 0.0, **START}, at(0.0, "group", "a", devices=[0], stream_epoch=0), epoch(10.0, "a", 1, 9.9),
              at(12.0, "regroup", "a", before=[0], devices=[0, 1], position=20, seconds=0.2),
              {**epoch(16.0, "a", 2, 6.0), "gpus": 2}, at(16.0, "stopped", "a", checkpoint_s=0.0)]
    told = account(events)
    assert [(stint.devices, stint.end_s, stint.epochs) for stint in told.stints] == [((0,), 12.0, 1), ((0, 1), 16.0, 1)]
    assert told.costs.regroup_s == pytest.approx((0.1 + 0.2) / 2)
    assert told.spent.training == pytest.approx(9.9 + 2 + 2 * 4)  # the second epoch: 2 s on one device, 4 s on two


@pytest.mark.parametrize("events", [[], [{"t_s": 0.0, **START}], EVENTS[:4]])
def test_a_run_that_has_hardly_begun_has_nothing_to_simulate(events):
    told = account(events)
    assert told is None or told.replay is None


@pytest.fixture
def run(tmp_path):
    """A run's folder."""
    paths = RunPaths(tmp_path / "run")
    spec = parse({"models": [{"family": "softmax", "name": "a"}, {"family": "softmax", "name": "b"}]})
    results = Results(spec, paths, 100)
    results.finish("a", "2 epochs")
    table = paths.results.read_text().replace("b,", "b<1>,")  # a name that HTML would take for a tag
    paths.results.write_text(table)
    paths.events.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return paths


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_everything_and_fetches_nothing(run):
    page = render(read_report(run))
    reader = _Reader()
    reader.feed(page)
    assert {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe"} == set()
    assert not any({"src", "href"} & set(attributes) for _, attributes in reader.tags)
    assert "<1>" not in page.replace("&lt;1&gt;", "")
    for said in ("1 of 2", "b<1>", "training loss", "waiting for data", "simulated, with the costs below"):
        assert said in reader.text
    pictures = page.split("<svg")[1:]
    assert len(pictures) == 5  # two charts, two timelines, a bar
    for picture in pictures:
        ElementTree.fromstring("<svg" + picture[:picture.index("</svg>")] + "</svg>")


def test_the_command_writes_the_page_and_prints_the_numbers(run, capsys):
    assert main(["report", str(run.root)]) == 0
    assert "makespan 21.1 s, simulated 21.5 s: 0.98" in capsys.readouterr().out
    assert run.report.read_text().startswith("<!doctype html>")
    assert main(["report", str(run.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["measured_s"], found["gpus"]) == (pytest.approx(21.1), 2)
    assert {row["name"]: row["status"] for row in found["networks"]} == {"a": "finished", "b<1>": "waiting"}


def test_a_run_in_whose_folder_nothing_may_be_written_is_shown_too(run, capsys):
    run.report.mkdir()
    (run.report / "in the way").touch()
    assert main(["report", str(run.root)]) == 0
    out, err = capsys.readouterr()
    assert "makespan 21.1 s" in out
    assert "shows it" not in out
    assert "cannot be written" in err
    assert main(["report", str(run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


@pytest.mark.parametrize("lacks", ["results.csv", "events.jsonl", "launches"])
def test_what_is_no_run_is_one_line_and_status_2(run, lacks, capsys):
    if lacks == "launches":
        run.events.write_text("")
    else:
        (run.root / lacks).unlink()
    assert main(["report", str(run.root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1e-9, 3e-9), (-4.0, 17.0), (0.001, 1e6), (5.0, 5.0)])
def test_ticks_are_round_and_span_the_values(low, high):
    first, last, step = _ticks(low, high)
    assert first <= low
    assert last >= high
    assert last > first
    assert 1 <= round((last - first) / step) <= 8
