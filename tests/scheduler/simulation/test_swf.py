"""Traces in the Standard Workload Format."""

import gzip
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler.simulation.swf import COLUMNS, INTEGERS, SwfJob, Trace, read_swf, write_swf
from tests.examples import examples

LINE = "1 0 5 3600 4 -1 -1 4 7200 -1 1 3 1 9 -1 -1 -1 -1"


@pytest.fixture
def written(write):
    return partial(write, "trace.swf")


def test_swf_columns_are_read_by_their_place(written):
    trace = read_swf(written(f"; Computer: Test\n; MaxProcs: 64\n;\n\n{LINE}\n"))
    (job,) = trace.jobs
    assert (job.job, job.wait_s, job.run_s, job.processors) == (1, 5.0, 3600.0, 4)
    assert (job.requested_s, job.status, job.user, job.executable, job.think_s) == (
        7200.0,
        1,
        3,
        9,
        -1.0,
    )
    assert (trace.header["Computer"], trace.machine_size) == ("Test", 64)


def test_size_is_the_requested_one_if_unknown():
    assert SwfJob(1, 0, processors=-1, requested_processors=8).size == 8
    assert SwfJob(1, 0, processors=4, requested_processors=8).size == 4


@pytest.mark.parametrize(
    ("changes", "ran"),
    [
        ({}, True),
        ({"run_s": 0}, False),
        ({"processors": 0}, False),
        ({"status": 3}, False),
        ({"status": 5}, True),
    ],
)
def test_swf_only_whole_jobs_that_ran_count(changes, ran):
    assert SwfJob(1, 0, **{"run_s": 10, "processors": 2, "status": 1, **changes}).ran is ran


full = st.integers(-1, 10**6)
times = st.builds(lambda number, part: number + part, full, st.sampled_from([0.0, 0.5, 0.125]))
rows = st.tuples(*(full if name in INTEGERS else times for name in COLUMNS))


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(rows, min_size=1, max_size=5), st.sampled_from(["t.swf", "t.swf.gz"]))
def test_swf_is_read_back_as_written(tmp_path, lines, name):
    trace = Trace(
        tuple(SwfJob(number, abs(row[1]), *row[2:]) for number, row in enumerate(lines)),
        {"MaxProcs": "128", "Note": "a: b"},
    )
    write_swf(tmp_path / name, trace)
    assert read_swf(tmp_path / name) == trace


def test_swf_written_trace_has_18_columns_and_its_header(tmp_path):
    write_swf(tmp_path / "t.swf.gz", Trace((SwfJob(1, 0.5, run_s=30),), {"MaxProcs": "2"}))
    assert gzip.decompress((tmp_path / "t.swf.gz").read_bytes()).decode().splitlines() == [
        "; MaxProcs: 2",
        "1 0.5 -1 30 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"trace\.swf: it has no jobs"),
        ("; MaxProcs: 3\n", r"trace\.swf: it has no jobs"),
        (f"{LINE}\n1 2 3\n", r"trace\.swf:2: 3 columns, but a job has 18"),
        (f"{LINE} 7\n", r"trace\.swf:1: 19 columns, but a job has 18"),
        (
            LINE.replace("3600", "long"),
            r"trace\.swf:1: run_s is 'long'; it must be a number up to 1e.15",
        ),
        (
            LINE.replace("3600", "inf"),
            r"trace\.swf:1: run_s is 'inf'; it must be a number up to 1e.15",
        ),
        (
            LINE.replace("3600 4", "3600 4.5"),
            r"trace\.swf:1: processors is '4\.5'; it must be a whole number up to 1e.15",
        ),
        (LINE.replace("1 0 5", "1 -1 5"), r"trace\.swf:1: submit_s is -1"),
        (f"{LINE}\n{LINE}\n", r"trace\.swf:2: job 1 appears twice"),
    ],
)
def test_swf_names_the_line_of_an_error(written, text, message):
    with pytest.raises(InputError, match=message):
        read_swf(written(text))


def test_swf_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match=r"t\.swf: cannot be written: No such file"):
        write_swf(tmp_path / "nowhere" / "t.swf", Trace((SwfJob(1, 0),)))


def test_swf_refuses_uncompressed_files_named_gz(tmp_path):
    (tmp_path / "t.swf.gz").write_text(LINE)
    with pytest.raises(InputError, match=r"t\.swf\.gz: not a whole gzip file"):
        read_swf(tmp_path / "t.swf.gz")
