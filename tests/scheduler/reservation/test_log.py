"""Logs of run times and empirical distributions."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.errors import InputError
from scheduler import files
from scheduler.reservation.log import read_runs, read_table


@pytest.fixture
def written(write):
    return partial(write, "runs.txt")


def test_log_reads_numbers_comments_and_blank_lines(written):
    assert read_runs(written("# seconds\n12\n\n3.5e1  # slow disk\n")).tolist() == [12.0, 35.0]


RUNS = [
    ("", r"runs\.txt: it has no run times"),
    ("# nothing\n", r"runs\.txt: it has no run times"),
    ("1\n\nten\n", r"runs\.txt:3: 'ten' is not a number; it must be a run time"),
    ("1 2\n", r"runs\.txt:1: '1 2' is not a number"),
    ("1\n-2\n", r"runs\.txt:2: -2 is not a run time: it must be above 0 and at most"),
    ("0\n", r"runs\.txt:1: 0 is not a run time"),
    ("1\ninf\n", r"runs\.txt:2: inf is not a run time"),
    ("1\nnan\n", r"runs\.txt:2: nan is not a run time"),
]
TABLES = [
    ("1,0.5\n2\n", r"runs\.txt:2: '2' is not a row 'time,probability'"),
    ("1,0.5\n2,half\n", r"runs\.txt:2: 'half' is not a number; it must be a probability"),
    ("1,0.5\n2,-0.5\n", r"runs\.txt:2: -0.5 is not a probability"),
    ("1,0.5\n2,0.4\n", r"runs\.txt: the probabilities of a distribution must .* the sum is 0.9"),
    ("2,0.5\n1,0.5\n", r"runs\.txt: the times of a distribution must .* increasing"),
    ("", r"runs\.txt: a distribution needs .* at least one"),
]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [(read_runs, *row) for row in RUNS] + [(read_table, *row) for row in TABLES],
)
def test_log_names_the_line_of_an_error(written, read, text, message):
    with pytest.raises(InputError, match=message):
        read(written(text))


def test_log_names_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.log: No such file"):
        read_runs(tmp_path / "none.log")


def test_log_table_is_a_distribution(written):
    law = read_table(written("# hours,probability\n1,0.25\n2,0.75\n"))
    assert (law.values.tolist(), law.probabilities.tolist()) == ([1.0, 2.0], [0.25, 0.75])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            ["1", "2.5", " 3e2 ", "4\t", "", "  ", "# no", "5 # x", "+6", "1_0", "7\r", ".5"]
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 20),
    st.booleans(),
)
def test_blocks_of_any_size_read_what_lines_say(tmp_path, lines, size, ends):
    path = tmp_path / "runs.txt"
    path.write_bytes("\n".join(lines).encode() + b"\n" * ends)
    texts = [float(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", size)
        if texts:
            assert read_runs(path).tolist() == texts
        else:
            with pytest.raises(InputError, match="has no run times"):
                read_runs(path)


@pytest.mark.parametrize(
    "wrong", ["x", "1 2", "1.2.3", "1-2", "0", "-1", "inf", "nan", "1e400", "1e", "1,2", "0x1"]
)
@pytest.mark.parametrize("size", [4, 1 << 20])
def test_log_names_every_wrong_line(tmp_path, monkeypatch, wrong, size):
    monkeypatch.setattr(files, "BLOCK", size)
    path = tmp_path / "runs.txt"
    path.write_text(f"1\n2 # two\n\n{wrong}\n3\n")
    with pytest.raises(InputError, match=r"runs\.txt:4: "):
        read_runs(path)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    path = tmp_path / "runs.txt"
    path.write_bytes(b"1\n\xff\n")
    with pytest.raises(InputError, match=r"runs\.txt:2: cannot be read: it is not text in UTF-8"):
        read_runs(path)
