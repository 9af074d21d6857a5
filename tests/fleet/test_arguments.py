"""Tests of the types of arguments, and of the messages about invalid command lines."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import arguments
from fleet.__main__ import COMMANDS, main, make_parser
from fleet.arguments import (
    count,
    delta,
    duration,
    exact_number,
    integer,
    number,
    positive,
    seed,
    share,
    stream,
)
from fleet.errors import UserError
from fleet.run import parse_arguments
from scheduler.base import Delta
from scheduler.ensemble.pace import Stream
from tests.refusals import refused

TYPES = {
    "count": count,
    "seed": seed,
    "integer": integer(2, 5),
    "number": number(-1, 1),
    "positive": positive,
    "exact_number": exact_number,
    "share": share,
    "duration": duration,
    "delta": delta,
    "stream": stream,
}


def parsers():
    """Yield every command with its parser."""
    for name in COMMANDS:
        yield name, make_parser(name)


OPTIONS = [
    (name, action)
    for name, parser in parsers()
    for action in parser._actions
    if not isinstance(action, argparse._HelpAction)
]
each_option = pytest.mark.parametrize(
    ("name", "action"), OPTIONS, ids=[f"{name} {action.dest}" for name, action in OPTIONS]
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (count, "3", 3),
        (seed, "0", 0),
        (seed, str(2**64 - 1), 2**64 - 1),
        (integer(2, 5), "5", 5),
        (number(), "-1e-3", -1e-3),
        (number(0), "0", 0.0),
        (positive, ".5", 0.5),
        (exact_number, "3", 3),
        (exact_number, "3.0", 3.0),
        (share, "15%", 0.15),
        (share, "1", 1.0),
        (duration, "10min", 600.0),
        (delta, "20/s", Delta(20.0, relative=False)),
        (stream, "lockstep", Stream(1)),
    ],
)
def test_types_read_valid_texts(read, text, value):
    result = read(text)
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("read", "text", "remedy"),
    [
        (count, "0", "should be a whole number from 1"),
        (count, "1.0", "should be a whole number from 1"),
        (count, "many", "should be a whole number"),
        (count, "1_000", "should be a whole number"),
        (count, "9" * 5000, "should be a whole number"),
        (seed, "-1", "should be a whole number from 0"),
        (seed, str(2**64), "should be a whole number from 0"),
        (integer(2, 5), "6", "should be a whole number from 2 to 5"),
        (number(), "nan", "should be a number"),
        (number(), "inf", "should be a number"),
        (number(), "١", "should be a number"),
        (number(0), "-0.1", "should be a number from 0"),
        (number(0, 2), "3", "should be a number from 0 to 2"),
        (positive, "0", "should be a number above 0"),
        (exact_number, "1e999", "should be a number"),
        (share, "101%", "should be a share, at most 100%"),
        (share, "half", "should be written like 15% or 0.15"),
        (duration, "0", "should be above 0 and at most a year"),
        (duration, "400d", "at most a year"),
        (duration, "soon", "should be written like 90s"),
        (delta, "20", "should be written like 15% (of the fastest rate)"),
        (stream, "ring:200%", "should have a window above 0%"),
        (stream, "fast", "should be free, lockstep"),
    ],
)
def test_types_explain_invalid_texts(read, text, remedy):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert str(caught.value).startswith(repr(text[:40]))
    assert remedy in str(caught.value)


@pytest.mark.parametrize("read", TYPES.values(), ids=TYPES)
def test_types_read_or_refuse_any_text(read):
    @given(st.one_of(st.text(max_size=12), st.floats().map(str), st.integers().map(str)))
    def check(text):
        try:
            value = read(text)
        except argparse.ArgumentTypeError:
            return
        assert value == value  # no nan

    check()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan", "--gpus", "x"], "fleet plan: --gpus: 'x' should be a whole number from 1"),
        (["plan"], "fleet plan: the following arguments are required: --gpus"),
        (["plan", "--gpus", "1", "--typo"], "fleet plan: unrecognized arguments: --typo"),
        (["plan", "--gpus"], "fleet plan: --gpus: expected one argument, as in --gpus M"),
        (
            ["simulate", "autoscale", "--jobs", "generate", "--policy", "x"],
            "fleet simulate autoscale: --policy: invalid choice: 'x' (choose from ",
        ),
        (
            ["plan", "a.yaml", "--gpus", "1", "two\nlines"],
            "fleet plan: unrecognized arguments: two lines",
        ),
        (["doctor", "--json=3"], "fleet doctor: --json: ignored explicit argument '3'"),
        (
            ["reserve", "--log", "a", "--table", "b"],
            "fleet reserve: --table: not allowed with argument --log",
        ),
        (
            [
                "simulate",
                "ensemble",
                "r",
                "--gpus",
                "1",
                "--policy",
                "global",
                "--pace-tolerance",
                "0.15",
            ],
            "fleet simulate ensemble: --pace-tolerance: '0.15' should be written like 15% "
            "(of the fastest rate) or 20/s",
        ),
    ],
)
def test_main_refuses_a_wrong_command_line_in_one_line(words, line, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(line)


def test_main_reports_a_wrong_command_line_on_rank_0_only(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        assert main(["doctor", "--typo"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: spec"),
        (["a.yaml", "--walltime", "soon"], "--walltime: 'soon' should be written like"),
        (["a.yaml", "--replay", "runs/a"], "--replay RUN and --only NAME require each other"),
    ],
)
def test_parse_arguments_refuses_invalid_command_lines(words, message):
    with refused(UserError, message):
        parse_arguments(words)


@each_option
def test_options_have_help(name, action):
    assert len(action.help.split()) >= 2
    assert not action.help.startswith(("of ", "that ", "to ", "between "))


@each_option
def test_options_use_the_shared_number_types(name, action):
    assert action.type not in (int, float)
    # Paths and enumerations are classes.
    if action.type is not None and not isinstance(action.type, type):
        # Types of these modules read words, or several numbers.
        other_modules = (
            "fleet.commands.simulate.idle_nodes",
            "fleet.commands.simulate.ensemble",
            "fleet.commands.convert",
        )
        assert action.type.__module__ in (arguments.__name__, *other_modules)
