"""Tests of the reports of searches: improvements, pruning and descent."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest

from fleet.domain.events import (
    CommandReceived,
    EpochEnded,
    LaunchStarted,
    NetworkAdded,
    NetworkVerdict,
    SearcherCalled,
)
from fleet.domain.network import EpochRecord, NetworkStatus, Outcome
from fleet.domain.plain_json import as_json
from fleet.domain.run import RunState
from fleet.domain.timeline import LoggedEvent
from fleet.monitor.charts import make_charts
from fleet.monitor.html import render
from fleet.monitor.report import read_report
from fleet.monitor.search_summary import (
    Improvement,
    SearchReport,
    SearchTrial,
    front_table,
    make_search_reports,
    rungs_table,
    trials_table,
)
from fleet.spec import load, parse
from fleet.spec.dimensions import Range
from fleet.spec.entries import proposed_network
from fleet.storage.leaderboard import leaderboard
from fleet.storage.paths import RunPaths
from fleet.storage.results import Results, Status
from tests.fleet.histories import results_of
from tests.fleet.logs import START, as_text

RATE = "train.optimizer.learning_rate"
SPEC = f"""
models:
  - family: softmax
    name: net
    space: {{{RATE}: {{low: 1.0e-4, high: 0.1, log: true}}, train.batch.size: [4, 8]}}
    search: {{sampler: random, max_trials: 5}}
prune: {{rule: asha}}
data: {{source: image_folder, path: images}}
"""
# net-2 is pruned after one epoch; net-3 is a child of net-1, and net-4 is invalid.
VALUES = {0: (0.3, 0.4, 0.5), 1: (0.6, 0.2), 2: (0.1,), 3: (0.7, 0.9), 4: ()}
PARENTS = {3: 1}


def record(epoch, value):
    return EpochRecord(
        epoch,
        epoch - 1,
        loss=1.0,
        accuracy=0.5,
        val_loss=1 - value,
        val_accuracy=value,
        learning_rate=0.1,
        samples=100,
        gpus=1,
        seconds=1.0,
        waited_s=0.0,
    )


def log_of_a_search():
    at_s, log = 0.0, [LoggedEvent(0.0, START)]
    for number, values in VALUES.items():
        name, parent = f"net-{number}", PARENTS.get(number)
        drawn = {RATE: 10.0 ** -(number + 1) if number < 4 else 7.0, "train.batch.size": 4}
        wrong = "ask(4): outside" if number == 4 else ""
        log.append(
            LoggedEvent(
                at_s, SearcherCalled("net", "ask", number, answer=drawn, network=name, wrong=wrong)
            )
        )
        log.append(
            LoggedEvent(
                at_s,
                NetworkAdded(
                    name,
                    "net",
                    number,
                    drawn,
                    (1, None),
                    60,
                    wrong=wrong,
                    **({} if parent is None else {"parent": f"net-{parent}", "parent_epoch": 2}),
                ),
            )
        )
        for epoch, value in enumerate(values, 1):
            at_s += 2.0
            log.append(LoggedEvent(at_s, EpochEnded(name, record(epoch, value))))
        if number == 2:
            log.append(LoggedEvent(at_s, NetworkVerdict(name, 1, "stop", ("asha",))))
    return log


@pytest.fixture
def searched(tmp_path):
    """Make the folder of a run with a search."""
    return write_search(tmp_path, SPEC)


def write_search(tmp_path, content):
    """Write the folder of a run with a search."""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.spec.write_text(content)
    spec = load(str(paths.spec))
    results = results_of(spec, paths)
    for number, values in VALUES.items():
        network = proposed_network(spec, 0, number, {RATE: 0.01, "train.batch.size": 4})
        history = tuple(record(epoch, value) for epoch, value in enumerate(values, 1))
        results.add(network, None)
        results.run.set_status(
            network.name,
            NetworkStatus(
                history,
                {2: Outcome("pruned", is_pruned=True), 4: Outcome("outside", is_failure=True)}.get(
                    number, Outcome("done")
                ),
            ),
        )
    results.write()
    paths.events.write_text(as_text(log_of_a_search()))
    return paths


def test_search_report_improvements_and_ancestry(searched):
    search = read_report(searched).searches[0]
    assert (search.entry, search.monitor, search.is_larger_better) == ("net", "val_accuracy", True)
    assert [
        (improvement.seconds, improvement.network, improvement.epoch, improvement.value)
        for improvement in search.improvements
    ] == [
        (2.0, "net-0", 1, 0.3),
        (4.0, "net-0", 2, 0.4),
        (6.0, "net-0", 3, 0.5),
        (8.0, "net-1", 1, 0.6),
        (14.0, "net-3", 1, 0.7),
        (16.0, "net-3", 2, 0.9),
    ]
    assert search.line_of_descent == ("net-3", "net-1")
    assert search.summary == (
        "5 networks: 3 finished, 1 pruned, 1 failed. The best val_accuracy is 0.9, of net-3, "
        "from net-1 after epoch 2."
    )
    assert [trial.begins for trial in search.trials] == [0, 0, 0, 2, 0]


def test_rung_reports(searched):
    headers, rows = rungs_table(read_report(searched).rungs)
    assert [dict(zip(headers, row, strict=True)) for row in rows] == [
        {
            "epochs": 1,
            "reached": 4,
            "continued": 3,
            "paused": 0,
            "pruned": 1,
            "by": "asha",
            "networks": "net-2",
        }
    ]


def test_resumed_network_is_in_no_rung_report(searched):
    paused = [
        LoggedEvent(20.0, NetworkVerdict("net-0", 1, verdict, ("asha",)))
        for verdict in ("pause", "go_on")
    ]
    searched.events.write_text(as_text([*log_of_a_search(), *paused]))
    assert [list(rung.pruned) for rung in read_report(searched).rungs] == [["net-2"]]


def test_search_report_of_a_loss_minimizes(searched):
    searched.spec.write_text(SPEC + "train: {stopping: {monitor: val_loss}}\n")
    search = read_report(searched).searches[0]
    assert (search.monitor, search.is_larger_better) == ("val_loss", False)
    assert search.improvements[-1].value == pytest.approx(0.1)


def test_search_report_as_dict(searched):
    numbers = json.loads(json.dumps(as_json(read_report(searched).as_dict())))
    search = numbers["searches"][0]
    assert search["line_of_descent"] == ["net-3", "net-1"]
    assert search["networks"][3] == {
        "name": "net-3",
        "number": 3,
        "values": {RATE: 1e-4, "train.batch.size": 4},
        "status": "finished",
        "epochs": 2,
        "value": 0.9,
        "parent": "net-1",
        "parent_epoch": 2,
    }
    assert search["best_so_far"][0] == {
        "seconds": 2.0,
        "network": "net-0",
        "epoch": 1,
        "value": 0.3,
    }
    assert numbers["rungs"] == [
        {"epochs": 1, "came": 4, "went_on": 3, "paused": [], "pruned": {"net-2": ["asha"]}}
    ]


def test_page_has_charts_and_tables_of_searches(searched):
    report = read_report(searched)
    page, charts = render(report), make_charts(report)
    assert "networks were added during the run" in page
    assert "Pruning by epoch" in page
    search, names = charts["searches"][0], charts["networks"]
    assert (search["monitor"], [key["name"] for key in search["keys"]]) == (
        "val_accuracy",
        ["learning_rate", "batch.size"],
    )
    assert [(names[index], *improvement) for index, *improvement in search["improvements"]][-1] == (
        "net-3",
        16.0,
        0.9,
        2,
    )
    assert [(names[index], *improvement) for index, *improvement in search["trials"]][-1] == (
        "net-2",
        "pruned",
        0.1,
        [0.001, 0],
    )
    assert "net-3, finished, val_accuracy 0.9, from net-1 after epoch 2" in [
        label for *_, label in search["descent"]["rows"]
    ]
    for chart in ("best", "parallel", "keys", "descent"):
        assert f'id="search-0-{chart}"' in page
    assert '<tr data-network="net-2"><td>net-2</td><td>pruned</td><td class=number>0.1</td>' in page


def test_page_of_a_search_without_values(searched):
    log = [moment for moment in log_of_a_search() if not isinstance(moment.event, EpochEnded)]
    searched.events.write_text(as_text(log))
    assert "None of its networks has a value yet." in render(read_report(searched))


def test_added_networks_are_reported_by_differences(searched):
    def entry(name, **of_optimizer):
        return {
            "family": "softmax",
            "name": name,
            "train": {"optimizer": {"name": "sgd", **of_optimizer}},
        }

    log = log_of_a_search()
    for number, (name, value) in enumerate({"mine": 0.7, "other": 0.95}.items()):
        log += [
            LoggedEvent(
                20.0,
                CommandReceived(
                    f"c{number}", "add", (name,), entry(name, learning_rate=10.0**-number)
                ),
            ),
            LoggedEvent(20.0, NetworkAdded(name, "", -1, {}, (1, None), 60)),
            LoggedEvent(21.0 + number, EpochEnded(name, record(1, value))),
        ]
    searched.events.write_text(as_text(log))
    report = read_report(searched)
    assert [search.title for search in report.searches] == [
        "Search of net",
        "Networks added by commands",
    ]
    outside = report.searches[1]
    assert [
        (trial.network, trial.number, dict(trial.values), trial.value) for trial in outside.trials
    ] == [
        ("mine", 0, {RATE: 1.0}, 0.7),
        ("other", 1, {RATE: 0.1}, 0.95),
    ]
    assert (outside.monitor, outside.improvements[-1].network) == ("val_accuracy", "other")
    assert outside.space == {RATE: Range(0.1, 1.0)}
    page = render(report)
    assert "Networks added by commands" in page
    assert [key["name"] for key in make_charts(report)["searches"][1]["keys"]] == ["learning_rate"]


def test_page_shows_added_networks_without_a_search(searched):
    searched.spec.write_text(
        "models: []\nkeep_open: 1min\ndata: {source: image_folder, path: images}\n"
    )
    added = [
        LoggedEvent(0.0, START),
        LoggedEvent(1.0, NetworkAdded("mine", "", -1, {}, (1, None), 60)),
        LoggedEvent(2.0, EpochEnded("mine", record(1, 0.6))),
    ]
    searched.events.write_text(as_text(added))
    [outside] = read_report(searched).searches
    assert (outside.improvements[-1].value, outside.space) == (0.6, {})


def many(number, **changes):
    """Return a search of many networks with spread values; the better half has finished."""
    trials = tuple(
        SearchTrial(
            f"net-{index}",
            index,
            {RATE: 10 ** -(1 + 3 * (index * 7919 % number) / number)},
            Status.FINISHED if 2 * index < number else Status.PRUNED,
            1,
            1 - index / number,
            **changes,
        )
        for index in range(number)
    )
    best = Improvement(1.0, "net-0", 1, 1.0)
    return SearchReport(
        "net", "accuracy", True, {RATE: Range(1e-4, 0.1, log=True, integer=False)}, trials, (best,)
    )


def test_search_without_proposals_names_its_sampler(searched):
    calls = [
        LoggedEvent(float(number), SearcherCalled("net", "ask", 0, answer=None))
        for number in range(3)
    ]
    began = [logged for logged in log_of_a_search() if isinstance(logged.event, LaunchStarted)]
    searched.events.write_text(as_text([*began, *calls]))
    report = read_report(searched)
    assert [search.summary for search in report.searches] == [
        "The search of net has no networks: its sampler random never proposed one."
    ]
    assert report.searches[0].summary in render(report)


def test_pending_searcher_is_not_reported_as_empty(searched):
    began = [logged for logged in log_of_a_search() if isinstance(logged.event, LaunchStarted)]
    searched.events.write_text(
        as_text([*began, LoggedEvent(1.0, SearcherCalled("net", "ask", 0, answer={}))])
    )
    assert not read_report(searched).searches


# ---- several objectives ------------------------------------------------------------------------


def test_pareto_front_is_reported(searched):
    objectives = "objectives: [{value: val_accuracy}, {value: epochs}, {value: rate}]"
    searched.spec.write_text(SPEC.replace("max_trials: 5", f"max_trials: 5, {objectives}"))
    events = [
        LoggedEvent(
            30.0,
            SearcherCalled(
                "net", "tell", number, outcome="finished", value=value, network=f"net-{number}"
            ),
        )
        for number, value in ((0, (0.5, 3.0, 10.0)), (1, (0.6, 2.0, 9.0)), (3, (0.9, 2.0, 8.0)))
    ]
    searched.events.write_text(as_text([*log_of_a_search(), *events]))
    search = read_report(searched).searches[0]
    assert search.objectives == (
        ("val_accuracy", "maximize"),
        ("epochs", "minimize"),
        ("rate", "maximize"),
    )
    assert [trial.network for trial in search.pareto_front] == ["net-3", "net-1", "net-0"]
    headers, rows = front_table(search)
    assert headers[:5] == ["network", "status", "val_accuracy (max)", "epochs (min)", "rate (max)"]
    assert rows[0][:5] == ["net-3", "finished", "0.9", "2", "8"]
    numbers = json.loads(json.dumps(as_json(search.as_dict())))
    assert numbers["front"] == ["net-3", "net-1", "net-0"]
    assert numbers["networks"][1]["objectives"] == {"val_accuracy": 0.6, "epochs": 2.0, "rate": 9.0}
    assert numbers["networks"][2]["objectives"] == {
        "val_accuracy": 0.1,
        "epochs": 1.0,
        "rate": None,
    }
    assert "Pareto front" in render(read_report(searched))


# ---- repeats ------------------------------------------------------------------------------------


def repeated_run(values):
    """Return the spec and the state of a search with repeats, and the values of their epochs."""
    spec = parse(
        {
            "models": [
                {
                    "family": "softmax",
                    "name": "net",
                    "space": {RATE: [0.01, 0.1]},
                    "search": {"max_trials": 2, "repeats": 2},
                }
            ],
            "train": {"stopping": {"monitor": "val_accuracy"}},
        }
    )
    run = RunState(spec)
    for position, (name, of_network) in enumerate(values.items()):
        number = int(name[4])
        repeat = int(name[-1])
        rate = {RATE: [0.01, 0.1][number]}
        added = NetworkAdded(name, "net", number, rate, (1, None), 9, repeat=repeat)
        run.apply(float(position), added)
        for epoch, value in enumerate(of_network, 1):
            run.apply(float(position), EpochEnded(name, record(epoch, value)))
    return spec, run


def report_of(spec, run):
    """Return the report of a search with repeats, and the table of results."""
    networks = [
        proposed_network(spec, 0, added.number, {RATE: 0.1}, added.repeat)
        for added in run.added.values()
    ]
    rows = Results(replace(spec, networks=tuple(networks)), RunPaths(Path("run")), run).rows()
    [search] = make_search_reports(spec, run, rows)
    return search, rows


@pytest.fixture(scope="module")
def repeated():
    """A search of two trials, each with two repeats, the better mean in the second."""
    values = {
        "net-0-repeat0": [0.9],
        "net-0-repeat1": [0.3],
        "net-1-repeat0": [0.7],
        "net-1-repeat1": [0.8],
    }
    return report_of(*repeated_run(values))


def test_search_report_has_the_mean_and_spread_of_repeats(repeated):
    search, rows = repeated
    assert [trial.network for trial in search.ranked] == ["net-1", "net-0"]
    best = search.ranked[0]
    assert best.value == pytest.approx(0.75)
    assert best.spread == pytest.approx(stdev([0.7, 0.8]))
    assert [repeat.network for repeat in best.repeats] == ["net-1-repeat1", "net-1-repeat0"]
    assert [row.name for row in rows[:3]] == ["net-1", "net-1-repeat1", "net-1-repeat0"]
    assert (rows[0].repeats, rows[1].repeats) == (2, 0)


def test_search_report_of_repeats_names_the_best_network(repeated):
    search, _ = repeated
    assert [(best.network, best.value) for best in search.improvements] == [
        ("net-0", pytest.approx(0.6)),
        ("net-1", pytest.approx(0.75)),
    ]
    content = search.as_dict()
    assert content["best_network"] == "net-1-repeat1"
    assert content["line_of_descent"] == ["net-1-repeat1"]
    assert [network["name"] for network in content["networks"]] == ["net-0", "net-1"]
    assert [repeat["name"] for repeat in content["networks"][1]["repeats"]] == [
        "net-1-repeat1",
        "net-1-repeat0",
    ]
    assert "best mean val_accuracy is 0.75, of net-1; its best network is net-1-repeat1" in (
        search.summary
    )


def test_report_of_repeats_that_a_command_added(searched):
    names = ("mine-repeat0", "mine-repeat1")
    entry = {"family": "softmax", "name": "mine", "repeats": 2}
    log = [
        *log_of_a_search(),
        LoggedEvent(20.0, CommandReceived("c0", "add", names, entry)),
        LoggedEvent(20.0, CommandReceived("c1", "add", ("single",), {"family": "softmax"})),
        LoggedEvent(20.0, NetworkAdded("single", "", -1, {}, (1, None), 60)),
    ]
    for repeat, name in enumerate(names):
        log += [
            LoggedEvent(20.0, NetworkAdded(name, "", -1, {}, (1, None), 60, repeat=repeat)),
            LoggedEvent(21.0, EpochEnded(name, record(1, 0.6 + 0.2 * repeat))),
        ]
    searched.events.write_text(as_text(log))
    outside = read_report(searched).searches[1]
    trials = {trial.network: trial for trial in outside.trials}
    assert trials["mine"].value == pytest.approx(0.7)
    assert [*trials] == ["single", "mine"]
    assert outside.space == {}


def test_improvements_count_a_repeat_that_ended_early():
    spec, run = repeated_run({"net-0-repeat0": [0.5], "net-0-repeat1": [0.5, 0.7]})
    for name in run.added:
        run.set_status(name, replace(run.status_of(name), outcome=Outcome("done")))
    search, _ = report_of(spec, run)
    assert [best.value for best in search.improvements] == [
        pytest.approx(0.5),
        pytest.approx(0.6),
    ]


# ---- constraints ---------------------------------------------------------------------------------


def test_best_network_meets_the_constraints(searched):
    constraints = 'constraints: ["val_accuracy <= 0.8", "epochs <= 3"]'
    searched.spec.write_text(SPEC.replace("max_trials: 5", f"max_trials: 5, {constraints}"))
    [search] = read_report(searched).searches
    assert "1 violates val_accuracy <= 0.8" in search.summary
    assert "of net-1" in search.summary
    assert [trial.network for trial in search.ranked] == ["net-1", "net-0", "net-2", "net-3"]
    headers, rows = trials_table(search)
    assert [row[headers.index("violates")] for row in rows] == ["", "", "", "val_accuracy <= 0.8"]
    numbers = as_json(search.as_dict())
    assert numbers["constraints"] == ["val_accuracy <= 0.8", "epochs <= 3"]
    assert [network["feasible"] for network in numbers["networks"]] == [True] * 3 + [False, True]
    assert numbers["networks"][3]["violations"] == pytest.approx(
        {"val_accuracy <= 0.8": 0.1, "epochs <= 3": -1.0}
    )
    assert numbers["best_so_far"][-1]["network"] == "net-1"
    assert numbers["line_of_descent"] == ["net-1"]


def test_results_list_violating_networks_last(tmp_path):
    constraints = 'constraints: ["val_accuracy <= 0.8"]'
    run = write_search(tmp_path, SPEC.replace("max_trials: 5", f"max_trials: 5, {constraints}"))
    rows = read_report(run).rows
    assert [row.name for row in rows] == ["net-1", "net-0", "net-2", "net-3", "net-4"]
    assert rows[3].violates == "val_accuracy <= 0.8"
    headers, lines = leaderboard(rows)
    assert [line[headers.index("violates")] for line in lines][2:4] == ["", "val_accuracy <= 0.8"]


def test_logged_violations_count(searched):
    searched.spec.write_text(
        SPEC.replace("max_trials: 5", 'max_trials: 5, constraints: ["rate >= 10"]')
    )
    call = SearcherCalled(
        "net", "tell", 1, outcome="finished", value=0.6, network="net-1", violations=(3.0,)
    )
    searched.events.write_text(as_text([*log_of_a_search(), LoggedEvent(30.0, call)]))
    [search] = read_report(searched).searches
    assert [trial.network for trial in search.trials if not trial.is_feasible] == ["net-1"]


def test_pareto_front_has_no_network_that_violates(searched):
    keys = (
        "objectives: [{value: val_accuracy}, {value: epochs}], constraints: [val_accuracy <= 0.8]"
    )
    searched.spec.write_text(SPEC.replace("max_trials: 5", f"max_trials: 5, {keys}"))
    [search] = read_report(searched).searches
    assert [trial.network for trial in search.pareto_front] == ["net-1", "net-2"]
