"""The files of an idle-node replay, and errors in them."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler import files
from scheduler.idle.allocate import RateCurve
from scheduler.simulation.idle_trace import (
    Trace,
    read_events,
    read_node_names,
    read_trainers,
    with_objective,
)
from tests.places import SHARED

SUMMIT = SHARED / "idle_nodes"
needs_summit = pytest.mark.skipif(not SUMMIT.exists(), reason="the Summit trace is not here")

TRAINERS = {
    "curves": {
        "net": {
            "nodes": [0, 1, 4],
            "samples_per_s": [0.0, 10.0, 20.0],
            "objective": [0.0, 1.0, 2.0],
        }
    },
    "jobs": [["net", 60, 18.0, 12.0, 2, 4, 1e6], ["net", 0, 0, 0, 1, 1, 5]],
}


@pytest.fixture
def events(write):
    return lambda text, name="idle.csv": write(
        name, gzip.compress(text.encode()) if name.endswith(".gz") else text
    )


@pytest.fixture
def trainers(write):
    return lambda document: write(
        "trainers.json", document if isinstance(document, str) else json.dumps(document)
    )


def changes(trace):
    return [
        (float(time), trace.nodes[first:last].tolist(), trace.joined[first:last].tolist())
        for time, first, last in zip(trace.times_s, trace.starts, trace.starts[1:], strict=False)
    ]


# --- Events


@pytest.mark.parametrize("name", ["idle.csv", "idle.csv.gz"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_rows_of_one_moment_are_one_event(events, name, end):
    trace = read_events(events("t_s,node,delta\n0,0,1\n0,2,1\n60,0,-1\n60,1,1" + end, name))
    assert changes(trace) == [(0.0, [0, 2], [True, True]), (60.0, [0, 1], [False, True])]
    assert (trace.size, trace.end_s, trace.idle.tolist()) == (3, 60.0, [2, 2])


def test_seconds_may_have_a_fraction(events):
    assert read_events(events("t_s,node,delta\n0.5,0,1\n1.25,0,-1\n")).times_s.tolist() == [
        0.5,
        1.25,
    ]


def test_at_one_moment_a_node_leaves_before_it_joins_again(events):
    trace = read_events(events("t_s,node,delta\n0,0,1\n5,0,1\n5,0,-1\n"))
    assert changes(trace)[1] == (5.0, [0, 0], [False, True])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "idle.csv: the file is empty"),
        (" \n", "idle.csv: the file is empty"),
        ("t_s,node,delta\n", "idle.csv:2: there are no events"),
        ("0,1,1\n", "idle.csv:1: the heading must be 't_s,node,delta'"),
        (
            "t_s,node,delta\n0,0,1\n5,x,1\n",
            "idle.csv:3: '5,x,1' must be three numbers, t_s,node,delta",
        ),
        (
            "t_s,node,delta\n0,0,1\n5,1\n,6,1,1\n",
            "idle.csv:3: '5,1' must be three numbers, t_s,node,delta",
        ),
        (
            "t_s,node,delta\n0,0,1,5\n5,1\n",
            "idle.csv:2: '0,0,1,5' must be three numbers, t_s,node,delta",
        ),
        (
            "t_s,node,delta\n0,0,1\n\n5,1,1\n",
            "idle.csv:3: '' must be three numbers, t_s,node,delta",
        ),
        (
            "t_s,node,delta\nnan,0,1\n",
            "idle.csv:2: t_s, node and delta must be numbers up to 1e+15",
        ),
        ("t_s,node,delta\n-1,0,1\n", "idle.csv:2: t_s is negative"),
        (
            "t_s,node,delta\n0,0,1\n9,1,1\n8,2,1\n",
            "idle.csv:4: t_s goes back; events must be sorted by time",
        ),
        ("t_s,node,delta\n0,-1,1\n", "idle.csv:2: node must be 0, 1, 2, ..."),
        ("t_s,node,delta\n0,0.5,1\n", "idle.csv:2: node must be 0, 1, 2, ..."),
        ("t_s,node,delta\n0,99999999999,1\n", "idle.csv:2: node must be 0, 1, 2, ..."),
        ("t_s,node,delta\n0,0,2\n", "idle.csv:2: delta must be 1 (joins) or -1 (leaves)"),
        ("t_s,node,delta\n0,0,1\n5,1,-1\n", "idle.csv:3: node 1 leaves, but is not idle"),
        ("t_s,node,delta\n0,0,1\n5,0,-1\n6,0,-1\n", "idle.csv:4: node 0 leaves, but is not idle"),
        ("t_s,node,delta\n0,0,1\n5,0,1\n", "idle.csv:3: node 0 joins, but is idle already"),
    ],
)
def test_idle_trace_mistake_in_the_events_is_named_with_its_line(events, text, complaint):
    with pytest.raises(InputError) as error:
        read_events(events(text))
    assert str(error.value).endswith(complaint)


@pytest.mark.parametrize(
    "text",
    [
        "t_s,node,delta\n0,0,1\n0,2,1\n60,0,-1\n60,1,1\n60,0,1\n70,0,-1\n70,1,-1\n80,2,-1\n\n\n",
        "t_s,node,delta\r\n0,0,1\r\n0.5,2,1\r\n60,0,-1",
        "t_s,node,delta\n0,0,1\n\n5,1,1\n",
        "t_s,node,delta\n0,0,1\n5,0,-1\n6,1,1\n6,0,-1\n7,1,1\n",
        "t_s,node,delta\n0,0,1\n9,1,1\n9,2,1\n8,2,-1\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 20])
def test_blocks_of_any_size_read_the_same(events, monkeypatch, text, size):
    def read():
        try:
            trace = read_events(events(text))
            return changes(trace), trace.size, trace.end_s
        except InputError as error:
            return str(error)

    trace_ = read()
    monkeypatch.setattr(files, "BLOCK", size)
    assert read() == trace_


def test_idle_trace_reports_progress_of_reading(events, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 20)
    path, calls = events("t_s,node,delta\n" + "".join(f"{t},{t},1\n" for t in range(99))), []
    read_events(path, lambda done, total: calls.append((done, total)))
    assert len(calls) > 10
    assert calls[-1] == (path.stat().st_size,) * 2


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-9], lambda data: data[:30], lambda data: b"not gzip"]
)
def test_idle_trace_gzip_file_that_is_cut_or_none_is_refused(events, spoil):
    path = events("t_s,node,delta\n" + "".join(f"{t},{t},1\n" for t in range(99)), "idle.csv.gz")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=r"idle\.csv\.gz: not a whole gzip file"):
        read_events(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: No such file"):
        read_events(tmp_path / "none.csv")


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=30))
def test_node_seconds_sum_the_idle_time_of_nodes(flips):
    """Each (pause, node) flips a node; counts per node equal the integral of the total."""
    now, since, total, rows = 0.0, {}, 0.0, []
    for pause, node in flips:
        now += pause
        rows.append((now, node, node not in since))
        if node in since:
            total += now - since.pop(node)
        else:
            since[node] = now
    total += sum(now + 7 - start for start in since.values())
    times, nodes, joined = map(np.array, zip(*rows, strict=True))
    trace = Trace.of(times, nodes, joined, 6, now + 7)
    assert trace.node_seconds() == pytest.approx(total)
    assert trace.select(0, 3).node_seconds() + trace.select(3, 6).node_seconds() == pytest.approx(
        total
    )


def test_idle_trace_selection_keeps_its_nodes_and_time_only(events):
    trace = read_events(events("t_s,node,delta\n0,0,1\n0,2,1\n60,0,-1\n90,2,-1\n")).select(
        1, 3, end_s=60
    )
    assert (changes(trace), trace.size, trace.end_s) == ([(0.0, [1], [True])], 2, 60.0)


def test_idle_trace_pool_stays_as_it_is_after_the_last_event(events):
    trace = read_events(events("t_s,node,delta\n0,0,1\n10,1,1\n"))
    assert trace.node_seconds() == 10
    assert trace.select(end_s=100).node_seconds() == 190


@pytest.mark.parametrize(
    ("first", "last", "end_s", "complaint"),
    [
        (2, 9, 60.0, "nodes 2:2 select none of the nodes 0:2"),
        (1, 1, 60.0, "nodes 1:1 select none"),
        (0, 2, 0.0, "a replay of 0 s shows nothing"),
        (0, 2, float("nan"), "a replay of nan s shows nothing"),
    ],
)
def test_idle_trace_selection_of_nothing_is_refused(first, last, end_s, complaint):
    with pytest.raises(InputError, match=complaint):
        Trace.constant(2, 60.0).select(first, last, end_s)


def test_idle_trace_can_rearrange_nodes():
    trace = Trace.of(np.array([0.0, 1.0]), np.array([2, 0]), np.array([True, True]), 3, 5.0)
    assert trace.arranged(np.array([2, 0, 1])).nodes.tolist() == [0, 1]


@needs_summit
def test_idle_trace_summit_trace_is_whole():
    trace = read_events(SUMMIT / "summit_idle_events.csv.gz")
    assert len(trace.times_s) == 22_883
    assert round(trace.node_seconds() / 3600) == 137_639
    assert len(read_node_names(SUMMIT / "summit_node_names.txt.gz")) == 4734


# --- Trainers and names


def test_read_trainers_sorts_jobs_by_submission(trainers):
    first, second = read_trainers(trainers(TRAINERS))
    assert (first.submit_s, second.submit_s, first.total_samples) == (0.0, 60.0, 5.0)
    assert (second.trainer.n_min, second.trainer.n_max) == (2, 4)
    assert (second.trainer.up_s, second.trainer.down_s) == (18.0, 12.0)
    assert second.samples.values == (0.0, 10.0, 20.0)
    assert second.trainer.objective.values == (0.0, 1.0, 2.0)
    assert second.sample_rates.tolist() == pytest.approx([0.0, 0.0, 40 / 3, 50 / 3, 20.0])


def test_without_an_objective_samples_are_the_objective(trainers):
    curves = {"net": {"nodes": [1, 4], "samples_per_s": [10, 20]}}
    assert read_trainers(trainers({**TRAINERS, "curves": curves}))[0].trainer.objective.nodes == (
        0,
        1,
        4,
    )


@pytest.mark.parametrize(
    ("objective", "weights", "values"),
    [
        ("samples", {}, (0, 10, 20)),
        ("efficiency", {}, (0, 1, 2)),
        ("samples", {"net": 0.5}, (0, 5, 10)),
    ],
)
def test_idle_trace_objective_is_a_choice(trainers, objective, weights, values):
    job, _ = with_objective(read_trainers(trainers(TRAINERS)), objective, weights)
    assert job.trainer.objective == RateCurve((0, 1, 4), values)


def test_rescaling_can_be_made_dearer(trainers):
    _, job = with_objective(read_trainers(trainers(TRAINERS)), "file", rescale_factor=2)
    assert (job.trainer.up_s, job.trainer.down_s) == (36.0, 24.0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("speed",), "unknown objective 'speed'; there are: samples, efficiency, file"),
        (("samples", {"vgg": 2.0}), "a weight for the unknown network 'vgg'; there are: net"),
        (("samples", {"net": -1.0}), "the weight of net is -1.0"),
        (("samples", {}, -1.0), "the rescale factor is -1.0"),
    ],
)
def test_idle_trace_objective_is_refused_if_impossible(trainers, arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        with_objective(read_trainers(trainers(TRAINERS)), *arguments)


def changed(*path_and_value):
    """Return TRAINERS with one value replaced."""
    *path, last, value = path_and_value
    document = json.loads(json.dumps(TRAINERS))
    inner = document
    for key in path:
        inner = inner[key]
    inner[last] = value
    return document


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("", "the file is empty"),
        ('{"curves":\n {,', "trainers.json:2: not JSON"),
        ([], "but must be an object with curves, jobs"),
        ({"curves": {}}, "jobs is missing"),
        (changed("jbos", 1), "jbos is an unknown key"),
        (changed("job_columns", ["dnn"]), "job_columns must be"),
        (changed("jobs", {}), "curves must be an object and jobs a list"),
        (changed("jobs", []), "there are no jobs"),
        (changed("curves", "net", "speed", []), "curves.net: speed is an unknown key"),
        (
            changed("curves", "net", "nodes", [0, 1]),
            "curves.net.samples_per_s: a curve has 2 node counts and 3 values",
        ),
        (changed("curves", "net", "nodes", [0, 1, 2.5]), "curves.net.nodes must be whole numbers"),
        (
            changed("curves", "net", "nodes", [0, 1, float("nan")]),
            "curves.net.nodes must be a list of numbers",
        ),
        (changed("curves", "net", "nodes", "0 1 4"), "curves.net.nodes must be a list of numbers"),
        (
            changed("curves", "net", "samples_per_s", [0, -1, 2]),
            "curves.net.samples_per_s: a curve is -1.0 on 1 node",
        ),
        (
            changed("curves", "net", "objective", [0, float("nan"), 2]),
            "curves.net.objective must be a list of numbers",
        ),
        (changed("jobs", 0, ["net", 0]), "jobs[0] must be a list: dnn, submit_s"),
        (changed("jobs", 0, 0, "vgg"), "jobs[0]: no curve 'vgg'; there are: net"),
        (changed("jobs", 0, 0, ["vgg"]), "jobs[0]: no curve ['vgg']; there are: net"),
        (changed("jobs", 1, 1, -5), "jobs[1]: submit_s is -5; it must be a number from 0 to 1e+15"),
        (changed("jobs", 1, 2, "18"), "jobs[1]: t_up_s is '18'"),
        (changed("jobs", 1, 6, float("nan")), "jobs[1]: total_samples is nan"),
        (changed("jobs", 0, 4, 5), "jobs[0]: n_min 5, n_max 4: must be 1 <= n_min <= n_max"),
        (changed("jobs", 0, 4, 1.5), "jobs[0]: n_min and n_max must be whole numbers"),
        (changed("jobs", 0, 5, 9), "jobs[0]: n_max 9 is beyond the curve, which ends at 4 nodes"),
    ],
)
def test_idle_trace_mistake_in_trainers_is_named_with_its_place(trainers, document, complaint):
    with pytest.raises(InputError) as error:
        read_trainers(trainers(document))
    assert complaint in str(error.value)
    assert "trainers.json" in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n1\n\nn3\n", r"names\.txt:2: a node must have a name"),
        (
            "n1\nn2\u202e\n",
            r"names\.txt:2: node name 'n2\\u202e' must be a name of printable characters",
        ),
        ("n1\nn2\nn1\n", r"names\.txt:3: node name 'n1' is that of line 1"),
        ("", r"names\.txt: the file is empty"),
    ],
)
def test_idle_trace_mistake_in_the_names_is_named_with_its_line(tmp_path, text, complaint):
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_node_names(path)
