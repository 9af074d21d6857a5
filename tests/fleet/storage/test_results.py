"""The table of results, and the files of outcomes."""

import csv
import errno
import math
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain import network as net
from fleet.domain.events import EnergyUsed, EpochEnded, GroupStarted, SearcherCalled
from fleet.domain.network import NetworkStatus, Outcome, TrainingState, check_divergence
from fleet.errors import UserError
from fleet.monitor.report import best_rows
from fleet.storage.checkpoint import read_history, write_history, write_state
from fleet.storage.files import WriteThrottle, atomic_write
from fleet.storage.leaderboard import leaderboard
from fleet.storage.paths import RunPaths
from fleet.storage.recovery import recover
from fleet.storage.results import (
    NetworkResult,
    Status,
    mean_of_folds,
    mean_of_repeats,
    read_results,
)
from tests.examples import examples
from tests.fakes import Clock
from tests.fleet.histories import apply_status, history, record, results_of, spec
from tests.refusals import refused

FAILURE = Outcome("out of memory", is_failure=True)
MODELS = [{"family": "softmax", "name": name} for name in ("a", "b", "c")]


@pytest.fixture
def results(tmp_path):
    return results_of(
        spec(*MODELS, train={"stopping": {"max_epochs": 3}}),
        RunPaths(tmp_path),
        parameters={"a": 51},
    )


def names(results):
    return [row.name for row in results.rows()]


def test_rows_have_the_status_of_each_network(results):
    assert {row.status for row in results.rows()} == {Status.WAITING}
    apply_status(results, "a", NetworkStatus((record(1),), Outcome("3 epochs")))
    apply_status(results, "b", NetworkStatus((record(1),), FAILURE))
    rows = {row.name: row for row in results.rows()}
    assert [(rows[name].status, rows[name].reason) for name in "abc"] == [
        (Status.FINISHED, "3 epochs"),
        (Status.FAILED, "out of memory"),
        (Status.WAITING, ""),
    ]


def test_row_has_the_energy_where_it_is_counted(results):
    assert "energy_kj" not in results.rows()[0].cells()
    assert "kJ" not in leaderboard(results.rows())[0]
    results.write()
    assert "energy_kj" not in results.paths.results.read_text()
    for joules in (1500.0, 500.0):
        results.run.apply(0.0, EnergyUsed("a", joules))
    results.write()
    rows = {row.name: row for row in read_results(results.paths.root)}
    assert (rows["a"].energy_kj, rows["b"].energy_kj) == (2.0, None)
    headers, lines = leaderboard(results.rows())
    assert {line[0]: line[headers.index("kJ")] for line in lines} == {"a": "2", "b": "", "c": ""}


def test_means_have_the_energy_of_all_networks(results):
    for name, joules in (("a", 1000.0), ("b", 3000.0)):
        results.run.apply(0.0, EnergyUsed(name, joules))
    assert mean_of_repeats("mean", results.rows()).energy_kj == 4.0
    assert mean_of_folds("mean", results.rows()[2:]).energy_kj is None


def test_row_has_the_best_epoch_and_all_seconds(results):
    apply_status(results, "a", NetworkStatus(history(0.5, 0.9, 0.8)))
    row = results.rows()[0]
    assert (
        row.name,
        row.epochs,
        row.best_epoch,
        row.val_accuracy,
        row.seconds,
        row.parameters,
    ) == ("a", 3, 2, 0.9, 6.0, 51)


@pytest.mark.parametrize(
    ("scores", "order"),
    [
        (
            {
                "a": {"val_accuracy": 0.6},
                "b": {"val_accuracy": 0.9},
                "c": {"val_accuracy": 0.99, "outcome": FAILURE},
            },
            "bac",
        ),
        (
            {
                name: {"val_accuracy": 0.9, "val_loss": loss}
                for name, loss in zip("abc", (math.nan, 33.7, 2.4), strict=True)
            },
            "cba",
        ),
        (
            {
                name: {
                    "val_accuracy": math.nan,
                    "val_loss": math.nan,
                    "accuracy": accuracy,
                    "loss": loss,
                }
                for name, accuracy, loss in (("a", 0.5, 2.0), ("b", 0.5, 1.0), ("c", 0.4, 0.5))
            },
            "bac",
        ),
        ({"c": {"val_accuracy": 0.01}}, "cab"),
        # diverged networks in a run of a version that did not detect this
        (
            {
                "a": {"val_accuracy": 0.9, "val_loss": 1e28},
                "b": {"val_accuracy": 0.1, "val_loss": 2.0},
                "c": {"val_accuracy": 0.95, "val_loss": math.inf},
            },
            "bca",
        ),
    ],
    ids=[
        "failed ones last",
        "as good, by loss",
        "without validation, by training",
        "without an epoch",
        "diverged last",
    ],
)
def test_rows_begin_with_the_best_network(results, scores, order):
    for name, score in scores.items():
        apply_status(
            results,
            name,
            NetworkStatus(
                (record(1, **{key: value for key, value in score.items() if key != "outcome"}),),
                score.get("outcome"),
            ),
        )
    assert "".join(names(results)) == order


def rank_networks(tmp_path, monitor, rows, **trains):
    """Return the names of networks with one epoch each, in the order of the table."""
    models = [{"family": "softmax", "name": name, "train": trains.get(name, {})} for name in rows]
    direction = {"direction": "max"} if "own" in monitor else {}
    train = {
        "metrics": ["mae", "my_metrics:own", "binary_accuracy"],
        "stopping": {"monitor": monitor, **direction},
    }
    results = results_of(
        spec(*models, train=train, resources={"engine": "keras"}), RunPaths(tmp_path)
    )
    for name, (metrics, scores) in rows.items():
        apply_status(results, name, NetworkStatus((record(1, metrics=metrics, **scores),)))
    return names(results)


@pytest.mark.parametrize(
    ("monitor", "expected"),
    [("val_mae", "cab"), ("val_own", "bac"), ("accuracy", "acb"), ("val_binary_accuracy", "cba")],
)
def test_rows_are_ranked_by_the_monitored_value(tmp_path, monitor, expected):
    rows = {
        "a": (
            {"val_mae": 2.0, "val_own": 2.0, "val_binary_accuracy": 0.1},
            {"val_loss": 0.2, "accuracy": 0.9},
        ),
        "b": (
            {"val_mae": 3.0, "val_own": 3.0, "val_binary_accuracy": 0.2},
            {"val_loss": 0.1, "accuracy": 0.1},
        ),
        "c": (
            {"val_mae": 1.0, "val_own": 1.0, "val_binary_accuracy": 0.3},
            {"val_loss": 0.3, "accuracy": 0.5},
        ),
    }
    assert "".join(rank_networks(tmp_path, monitor, rows, a={"loss": "huber"})) == expected


def test_rows_break_no_ties_by_different_losses(tmp_path):
    rows = {
        name: ({"val_mae": 1.0}, {"val_loss": loss})
        for name, loss in (("a", 0.3), ("b", 0.1), ("c", -3805.0))
    }
    assert rank_networks(tmp_path, "val_mae", rows, c={"loss": "huber"}) == ["a", "b", "c"]
    assert rank_networks(tmp_path, "val_mae", rows) == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("losses", "val_loss", "score"),
    [
        ([2.0, 2e6 + 1], 1.0, "the loss became 2e+06 in epoch 2, after 2 in the first"),
        ([2.0, 1.9e6], 1.0, ""),
        ([1e-6, 1.0], 1.0, ""),
        ([1e28], 1.0, "the loss became 1e+28 in epoch 1"),
        ([1e15, 2e18], 1.0, ""),
        ([1.0], math.nan, "the validation loss became nan in epoch 1"),
        ([1.0], -1e28, "the validation loss became -1e+28"),
        ([1.0], 1e9, ""),
    ],
)
def test_diverged_loss_marks_network_as_diverged(losses, val_loss, score):
    records = [record(epoch, loss=loss, val_loss=val_loss) for epoch, loss in enumerate(losses, 1)]
    result = check_divergence(records, is_judged=True)
    assert score in result if score else not result
    if math.isnan(val_loss):
        assert not check_divergence(records, is_judged=False)


@settings(max_examples=examples(40))
@given(
    st.lists(st.builds(record, st.just(1), *4 * [st.floats()]), min_size=3, max_size=3),
    st.text(max_size=20),
    st.dictionaries(
        st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=4), st.lists(st.integers()))
    ),
)
def test_read_results_returns_what_was_written(tmp_path_factory, records, reason, drawn):
    content = spec(*MODELS)
    content.by_name["a"].parameters.update(drawn)
    results = results_of(content, RunPaths(tmp_path_factory.mktemp("run")), parameters={"b": 7})
    for name, entry in zip("abc", records, strict=True):
        apply_status(
            results,
            name,
            NetworkStatus((entry,), Outcome(reason, is_failure=True) if name == "b" else None),
        )
    read = read_results(results.paths.root)
    # as text, because NaN differs from NaN
    assert [repr(row) for row in read] == [repr(row) for row in results.rows()]


def test_table_is_rewritten_when_cheap_or_after_a_minute():
    now = Clock()
    pacing = WriteThrottle(now)
    assert pacing.is_due(changes=1)  # the first time
    with pacing.writing():
        now.now += 0.15  # as for 10,000 networks
    assert not pacing.is_due(changes=2999)
    assert pacing.is_due(changes=3001)
    now.now += 59.0
    assert not pacing.is_due(changes=1)
    now.now += 1.1
    assert pacing.is_due(changes=1)
    assert not pacing.is_due(changes=0)


def test_cached_lines_match_current_table(results):
    apply_status(results, "a", NetworkStatus((record(1, val_accuracy=0.5),)))
    # adds a column to all rows
    apply_status(
        results, "b", NetworkStatus((record(1, val_accuracy=0.6, metrics={"top_5": 0.9}),))
    )
    apply_status(
        results, "a", NetworkStatus((record(1, val_accuracy=0.5), record(2, val_accuracy=0.7)))
    )
    results.run.set_parameters("c", 7)
    results.write_if_due()
    assert [
        (row.name, row.epochs, row.parameters, row.metrics)
        for row in read_results(results.paths.root)
    ] == [("a", 2, 51, {}), ("b", 1, None, {"top_5": 0.9}), ("c", 0, 7, {})]


def test_added_network_has_row_immediately(results):
    results.add(replace(results.spec.networks[0], name="late"), 7)
    assert "late,waiting,,7,0" in results.paths.results.read_text()


def test_table_is_not_rewritten_without_changes(results):
    apply_status(results, "a", NetworkStatus((record(1),)))
    results.paths.results.unlink()
    for event in (
        GroupStarted("a", (0,), 0, 1),
        SearcherCalled("net", "report", 0, network="a", epoch=1),
    ):
        results.run.apply(0.0, event)
        results.on_event(event)
    assert not results.paths.results.exists()


def test_unreadable_samples_are_listed(results):
    results.add_unreadable("one.png", "torn, at byte 7")
    results.add_unreadable("two.png", "empty")
    with open(results.paths.unreadable_samples, newline="") as file:
        assert list(csv.reader(file)) == [
            ["sample", "reason"],
            ["one.png", "torn, at byte 7"],
            ["two.png", "empty"],
        ]


def test_unreadable_sample_may_have_a_name_of_any_bytes(results):
    results.add_unreadable("caf\udce9.png", "torn")
    assert results.paths.unreadable_samples.read_text(encoding="utf-8").count("torn") == 1


@pytest.mark.parametrize(
    "content",
    ["name\nx\n", "name,status\na,flying\n", "name\na,beyond\n", "name\n" + "x" * 200_000 + "\n"],
)
def test_read_results_refuses_a_damaged_table(tmp_path, content):
    with atomic_write(RunPaths(tmp_path).results) as file:
        file.write(content)
    with refused(UserError, tmp_path / "results.csv"):
        read_results(tmp_path)


def test_read_results_refuses_folders_without_a_run(tmp_path):
    with refused(UserError, tmp_path, "results.csv", os.strerror(errno.ENOENT)):
        read_results(tmp_path)
    (tmp_path / "file").touch()
    with refused(UserError, tmp_path / "file", "results.csv", os.strerror(errno.ENOTDIR)):
        read_results(tmp_path / "file")


# ---- resuming ------------------------------------------------------------------------------------


def recover_run(results):
    """Restore the state of a run from its files; return the checkpoints."""
    statuses, states = recover(results)
    results.run.restore(statuses)
    return states


def write_network(results, name, epochs, best=True, **fields):
    """Write the checkpoints of a network."""
    state = TrainingState(arrays={}, identity="i", history=epochs, **fields)
    write_state(results.paths.last(name), state)
    if best:
        write_state(results.paths.best(name), state)
    return state


def test_network_resumes_from_its_checkpoint(results):
    write_network(results, "a", history(0.5, 0.6))
    states = recover_run(results)
    assert (list(states), results.run.status_of("a")) == (["a"], NetworkStatus(history(0.5, 0.6)))


def test_parameters_are_kept_for_launches_without_building(results):
    results.run.set_parameters("b", 7)
    results.write_if_due()
    again = results_of(results.spec, results.paths, parameters={"a": 52})
    recover_run(again)
    assert {row.name: row.parameters for row in again.rows()} == {"a": 52, "b": 7, "c": None}


def test_network_that_had_converged_is_finished(results):
    write_network(results, "a", history(0.5, 0.6, 0.7))
    recover_run(results)
    assert results.run.status_of("a").outcome == Outcome("3 epochs")
    assert results.rows()[0].reason == "3 epochs"


@pytest.mark.parametrize("epochs", [(0.5, 0.6, 0.7), (0.5, 0.7, 0.6)])
def test_damaged_last_keeps_finished_network_by_best(results, epochs):
    write_network(results, "a", history(*epochs))
    best = 1 + epochs.index(0.7)
    write_state(results.paths.best("a"), TrainingState({}, "i", history(*epochs)[:best]))
    write_history(results.paths.history("a"), history(*epochs))
    results.paths.last("a").write_bytes(b"damaged")
    recover_run(results)
    assert results.run.status_of("a") == NetworkStatus(history(*epochs), Outcome("3 epochs"))
    assert (results.row(results.spec.by_name["a"]).best_epoch, list(results.damaged)) == (
        best,
        ["a"],
    )
    assert "last.h5 cannot be read" in results.damaged["a"]


def test_longer_training_resumes_from_best_if_last_damaged(tmp_path):
    longer = results_of(spec(*MODELS, train={"stopping": {"max_epochs": 9}}), RunPaths(tmp_path))
    write_network(longer, "a", history(0.5, 0.7, 0.6))
    write_state(longer.paths.best("a"), TrainingState({}, "i", history(0.5, 0.7)))
    write_history(longer.paths.history("a"), history(0.5, 0.7, 0.6))
    longer.paths.last("a").write_bytes(b"damaged")
    assert recover_run(longer)["a"].epoch == 2
    assert longer.run.status_of("a") == NetworkStatus(history(0.5, 0.7))


def test_network_resumes_with_a_longer_rule(tmp_path):
    short = results_of(spec(*MODELS, train={"stopping": {"max_epochs": 1}}), RunPaths(tmp_path))
    write_network(short, "a", history(0.5), final="1 epoch")
    longer = results_of(spec(*MODELS, train={"stopping": {"max_epochs": 9}}), RunPaths(tmp_path))
    recover_run(longer)
    assert longer.run.status_of("a").outcome is None


@pytest.mark.parametrize(
    "rule",
    [
        {"max_epochs": 2},
        {"max_epochs": 9, "patience": 1},
        {"max_epochs": 9, "patience": 1, "monitor": "val_loss"},
        {"max_epochs": 9, "stop_at": 0.5},
    ],
)
def test_finished_network_keeps_its_reason(tmp_path, rule):
    """Fewer epochs, less patience, or another rule that does not let it continue."""
    results = results_of(spec(*MODELS, train={"stopping": rule}), RunPaths(tmp_path))
    write_network(results, "a", history(0.7, 0.6, 0.5), final="no better val_accuracy for 2 epochs")
    recover_run(results)
    assert results.run.status_of("a").outcome == Outcome("no better val_accuracy for 2 epochs")


def test_network_inside_an_epoch_is_not_finished(results):
    write_network(results, "a", history(0.5, 0.6, 0.7), position=16, stream_epoch=3)
    assert recover_run(results)["a"].position == 16
    assert results.run.status_of("a").outcome is None


def resume(results, **changes):
    """Return the results of the next launch."""
    again = results_of(results.spec, results.paths, **changes)
    recover_run(again)
    return again


def failure_reasons(results):
    return {row.name: row.reason for row in results.rows() if row.status is Status.FAILED}


def test_failed_network_stays_failed_unless_transient(results):
    apply_status(results, "b", NetworkStatus((), FAILURE))
    apply_status(
        results,
        "c",
        NetworkStatus((), Outcome("Stale file handle", is_failure=True, may_pass=True)),
    )
    assert failure_reasons(results) == {"b": "out of memory", "c": "Stale file handle"}
    assert failure_reasons(resume(results)) == {"b": "out of memory"}


def test_failed_network_is_retried_if_attempt_differs(
    results,
):
    apply_status(results, "b", NetworkStatus((), FAILURE))
    apply_status(results, "c", NetworkStatus((), FAILURE))
    again = resume(results, attempt_id=lambda network: f"another {network.name}")
    assert failure_reasons(again) == {}
    apply_status(again, "c", NetworkStatus((), Outcome("the loss became inf", is_failure=True)))
    apply_status(again, "b", NetworkStatus((), Outcome("3 epochs")))
    assert not results.paths.failure("b").exists()
    assert failure_reasons(resume(results, attempt_id=again.attempt_id)) == {
        "c": "the loss became inf"
    }


def test_failure_is_written_by_its_own_event_only(results):
    apply_status(results, "b", NetworkStatus((), FAILURE))
    results.paths.failure("b").unlink()
    ended = EpochEnded("b", record(1))
    results.run.apply(0.0, ended)
    results.on_event(ended)
    assert not results.paths.failure("b").exists()
    assert {row.name: row.epochs for row in read_results(results.paths.root)}["b"] == 1


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"reason": "x"}', '{"reason": "x", "may_pass": false}', "\x00"]
)
def test_network_is_retried_if_failure_unreadable(results, content):
    with atomic_write(results.paths.failure("b")) as file:
        file.write(content)
    recover_run(results)
    assert failure_reasons(results) == {}


def test_table_has_test_columns_only_with_results(results):
    assert "test acc" not in leaderboard(results.rows())[0]
    apply_status(
        results,
        "a",
        NetworkStatus((record(1),), Outcome("1 epoch"), net.EvaluationResult(0.5, 0.75, 8)),
    )
    headers, rows = leaderboard(results.rows())
    row = next(row for row in rows if row[0] == "a")
    assert (row[headers.index("test acc")], row[headers.index("test loss")]) == ("0.7500", "0.5000")


def test_leaderboard_shortens_reasons_and_drops_empty(results):
    apply_status(results, "a", NetworkStatus((), Outcome("x" * 80, is_failure=True)))
    headers, rows = leaderboard(results.rows())
    by_name = {row[0]: dict(zip(headers, row, strict=True)) for row in rows}
    assert by_name["a"]["why"] == "x" * 47 + "..."
    assert (by_name["b"]["val acc"], by_name["b"]["best"], by_name["b"]["params"]) == ("", "", None)


def row(name, **drawn):
    return NetworkResult(
        name, Status.FINISHED, "1 epoch", None, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, drawn
    )


def test_leaderboard_has_varied_parameters():
    headers, rows = leaderboard(
        [
            row(
                "net-0",
                **{
                    "train.optimizer.learning_rate": 0.0123456,
                    "filters": [8, 16],
                    "units": 3,
                    "same": 1,
                },
            ),
            row(
                "net-1",
                **{
                    "train.optimizer.learning_rate": 0.5,
                    "filters": [8] * 20,
                    "units": 4,
                    "same": 1,
                },
            ),
            row("plain"),
        ]
    )
    visible = headers.index("learning_rate"), headers.index("filters"), headers.index("units")
    assert [[row[column] for column in visible] for row in rows] == [
        [0.01235, "[8, 16]", 3],
        [0.5, "[8, 8, 8, 8, 8, 8...", 4],
        ["", "", ""],
    ]
    assert "same" not in headers


def test_leaderboard_limits_the_varied_parameters():
    drawn = [
        {
            "train.batch.size": number,
            "kernel": -number,
            **{f"p{index}": number for index in range(6)},
        }
        for number in (1, 2)
    ]
    rows = [row(f"net-{number}", **values) for number, values in enumerate(drawn)]
    headers, _, left_out = best_rows(rows)
    assert headers[-9:-3] == ["batch.size", "kernel", "p0", "p1", "p2", "p3"]
    assert left_out == "Networks also differ in p4, p5: see `drawn` in results.csv."


def test_table_has_empty_cells_and_reads_nan(results):
    apply_status(results, "a", NetworkStatus(history(0.5)))
    results.write()
    with open(results.paths.results, newline="") as file:
        cells = {row["name"]: row for row in csv.DictReader(file)}
    assert cells["b"]["loss"] == cells["b"]["val_loss"] == cells["a"]["test_loss"] == ""
    assert (cells["b"]["epochs"], cells["b"]["best_epoch"]) == ("0", "")
    assert "nan" not in [cell for row in cells.values() for cell in row.values()]
    text = results.paths.results.read_text()
    for written in (text, text.replace(",,", ",nan,").replace(",nan,0,0", ",,0,0")):
        results.paths.results.write_text(written)
        rows = {row.name: row for row in read_results(results.paths.root)}
        assert math.isnan(rows["b"].loss)
        assert math.isnan(rows["a"].test_loss)
        assert rows["a"].val_accuracy == 0.5


def test_read_history_accepts_empty_cells_and_nan(tmp_path):
    path, epochs = tmp_path / "history.csv", history(0.5, math.nan)
    write_history(path, epochs)
    text = path.read_text()
    assert "nan" not in text
    for written in (text, text.replace(",,", ",nan,", 1)):
        path.write_text(written)
        first, second = read_history(path)[:2]
        assert first.val_accuracy == 0.5
        assert math.isnan(second.val_accuracy)


def test_read_results_of_a_spec_names_the_folder_of_its_run(tmp_path):
    spec = tmp_path / "photos.yaml"
    spec.write_text("models: []")
    with pytest.raises(UserError, match="its run is in the folder of its output, runs/NAME"):
        read_results(spec)
