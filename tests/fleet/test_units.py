"""Sizes, durations and shares with units."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import units
from fleet.domain.network import EpochRecord, check_convergence
from fleet.spec import Stopping
from scheduler.base import Delta
from scheduler.ensemble.pace import Ring, Stream
from tests.examples import examples

PARSERS = [units.parse_size, units.parse_duration, units.parse_share]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("64MiB", 2**26),
        ("0.5kB", 500),
        ("1e3", 1000),
        (7, 7),
        (1.5, 1),
        ("3TIB", 3 * 2**40),
        (" 12 B ", 12),
    ],
)
def test_parse_size_returns_bytes(text, count):
    assert units.parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1.5min", 90),
        ("2h", 7200),
        ("1d", 86400),
        ("10:30", 630),
        ("1:02:03", 3723),
        ("100:00:00", 360000),
        (0.5, 0.5),
        ("3 sec", 3),
    ],
)
def test_parse_duration_returns_seconds(text, seconds):
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "share"),
    [("15%", 0.15), (" 100 % ", 1), ("0.25", 0.25), (0.01, 0.01), ("0%", 0), ("57%", 0.57)],
)
def test_parse_share_returns_a_fraction(text, share):
    assert units.parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "delta"),
    [
        ("15%", Delta(0.15, relative=True)),
        (" 15 % ", Delta(0.15, relative=True)),
        ("0%", Delta(0.0, relative=True)),
        ("20/s", Delta(20.0, relative=False)),
        ("1e2 /s", Delta(100.0, relative=False)),
        ("0/s", Delta(0, relative=False)),
    ],
)
def test_parse_delta_returns_a_share_or_samples_per_s(text, delta):
    assert units.parse_delta(text) == delta


@pytest.mark.parametrize(
    "value", [0.15, 20, 0, "0.15", "20", "0", "", "%", "/s", "nan%", "inf/s", "-1%", "1/min", None]
)
def test_parse_delta_refuses_numbers_without_a_unit(value):
    with pytest.raises(ValueError, match="15% .of the fastest rate. or 20/s .samples per second."):
        units.parse_delta(value)


@given(st.floats(0, 1e6), st.booleans())
def test_parse_delta_reads_formatted_values(value, relative):
    read = units.parse_delta(str(Delta(value, relative)))
    assert (read.relative, read.value) == (relative, pytest.approx(value, rel=1e-11))


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("free", Stream(0)),
        ("lockstep", Stream(1)),
        ("4", Stream(4)),
        ("ring", Stream(ring=Ring())),
        ("ring:25%", Stream(ring=Ring(window=0.25))),
        ("ring:0.25", Stream(ring=Ring(window=0.25))),
        ("ring:12.50%", Stream(ring=Ring(window=0.125))),
    ],
)
def test_parse_stream_returns_a_stream(text, stream):
    assert units.parse_stream(text) == stream


@pytest.mark.parametrize(
    "text", ["fast", "-1", "ring:", "ring:0%", "ring:x%", "ring:2", "4:10%", "", "1.5", "Free"]
)
def test_parse_stream_refuses_other_text(text):
    with pytest.raises(ValueError, match="ring|should be"):
        units.parse_stream(text)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "GB",
        "-1",
        -1,
        "1 XB",
        "1,5",
        "1..2",
        "2GB 3",
        "0x10",
        True,
        None,
        [1],
        float("nan"),
        float("inf"),
        "inf",
        "1:2:3:4",
        "1e999",
        "1e308 TB",
        "1e308 min",
        10**400,
        "9" * 5000 + ":00",
        "9" * 400 + ":00",
    ],
    ids=lambda value: repr(value)[:12],
)
def test_parsers_refuse_other_text_with_an_example(parser, value):
    with pytest.raises(ValueError, match=r"should be written like \S+"):
        parser(value)


TEXTS = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[0-9.eE:+%/]{1,12}[a-zA-Z/%]{0,3}", fullmatch=True),
    st.from_regex(r" ?[0-9]{1,2}(\.5)? ?([kKmM]i?[bB]|[sShHdD]|min|%|/s)?", fullmatch=True),
)


@settings(max_examples=examples(300))
@given(st.one_of(TEXTS, st.integers(), st.floats()))
def test_parsers_return_finite_numbers_or_refuse(value):
    for parser in PARSERS:
        try:
            number = parser(value)
        except ValueError:
            continue
        assert 0 <= number < float("inf")


@pytest.mark.parametrize(
    ("notation", "parser"),
    [
        (units.SIZE, units.parse_size),
        (units.DURATION, units.parse_duration),
        (units.SHARE, units.parse_share),
        (units.DELTA, units.parse_delta),
    ],
)
def test_notation_pattern_agrees_with_the_parser(notation, parser):
    @settings(max_examples=examples(300))
    @given(TEXTS)
    def check(text):
        try:
            parser(text)
        except ValueError:
            # the exponent may be above the largest float
            assert not re.search(notation.pattern, text) or "e" in text.lower()
        else:
            assert re.search(notation.pattern, text)

    check()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (60, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (90061, "25 h 1 min"),
    ],
)
def test_format_duration_uses_two_units(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (2_500_000, "2.5 MB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_format_size_uses_three_digits(count, text):
    assert units.format_size(count) == text


@given(st.integers(0, 10**16))
def test_parse_size_reads_formatted_values(count):
    visible = units.format_size(count)
    assert re.fullmatch(r"[0-9.]+ [kMGT]?B", visible)
    assert units.parse_size(visible) == pytest.approx(count, rel=0.006)


def test_stopping_reasons_use_the_singular_for_one():
    history = tuple(
        EpochRecord(number, number - 1, 0.5, 0.5, 0.5, 0.5, 0.1, 8, 1, 1.0, 0.0)
        for number in (1, 2)
    )
    assert check_convergence(history[:1], Stopping(max_epochs=1)).reason == "1 epoch"
    assert check_convergence(history, Stopping(max_epochs=2)).reason == "2 epochs"
    assert check_convergence(
        history, Stopping(max_epochs=9, patience=1, monitor="val_loss")
    ).reason == ("no better val_loss for 1 epoch")
