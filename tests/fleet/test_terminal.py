"""Tables and progress lines on terminals and in logs."""

import io
import re

import pytest

from fleet.terminal import ProgressLine, fit_columns, print_any_name, print_table
from tests.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


def test_progress_line_is_silent_for_short_work(clock, capsys):
    pace = ProgressLine("fleet", "read", "rows", clock)
    clock.now = 1.9
    pace(50, 100)
    pace.end()
    assert capsys.readouterr().err == ""


def test_progress_line_is_printed_less_and_less_often(clock, capsys):
    pace = ProgressLine("fleet", "replayed", "changes", clock)
    for second in range(1, 101):
        clock.now = float(second)
        pace(20 * second, 8000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fleet: replayed 40 of 8,000 changes (0%), 20/s, about 6 min 38 s left"
    assert lines[1] == "fleet: replayed 140 of 8,000 changes (2%), 20/s, about 6 min 33 s left"
    assert 6 < len(lines) < 15


def test_progress_line_without_progress_has_no_estimate(clock, capsys):
    pace = ProgressLine("fleet", "read", "rows", clock)
    clock.now = 5.0
    pace(0, 10)
    assert capsys.readouterr().err == "fleet: read 0 of 10 rows (0%), 0/s, nothing yet\n"


def test_print_table_never_folds_in_a_log(capsys):
    print_table(["network", *map(str, range(40))], [["net-0-fold0", *["0.1234 ± 0.5678"] * 40]])
    _, _, row = (text.rstrip() for text in capsys.readouterr().out.splitlines() if text.strip())
    assert row.split()[0] == "net-0-fold0"
    assert row.count("±") == 40


def test_print_any_name_escapes_in_any_encoding(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    print_any_name()
    print_table(["class"], [["caf\u00e9"], ["[red]"], ["\udce9"]])
    stdout.flush()
    rows = stdout.buffer.getvalue().split()
    assert {b"caf\\xe9", b"[red]", b"\\udce9"} <= set(rows)


HEADERS = ["network", "val acc", "learning_rate", "params", "why"]
CELLS = [["softmax-0", "0.9", "0.05", "1234", "ten epochs"]]
LEAST = ["why", "params", "learning_rate"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [(200, [0, 1, 2, 3, 4]), (48, [0, 1, 2, 3]), (40, [0, 1, 2]), (30, [0, 1]), (5, [0, 1])],
)
def test_table_leaves_out_the_least_columns_first(width, columns):
    assert fit_columns(HEADERS, CELLS, width, LEAST)[0] == columns


def test_narrow_table_breaks_no_words_and_names_omitted_columns(monkeypatch, capsys):
    monkeypatch.setattr("fleet.terminal.terminal", io.StringIO)
    monkeypatch.setattr("fleet.terminal.terminal_width", lambda screen: 40)
    print_table(HEADERS, CELLS, optional=LEAST)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "learning_rate" in out
    assert "Columns that do not fit: params, why." in out
    assert all(len(line) <= 40 for line in out.splitlines() if "Columns" not in line)
