"""The cache of rates."""

import json
from dataclasses import asdict, replace

import pytest

from fleet.storage.rate_cache import KnownRate, RateBook, rates_of, read_cache, timings
from scheduler.base import GroupShape, Span, StepTime
from scheduler.elastic.analyzer import StepTimings

ONE = KnownRate(238.0, 0.03, 20, 1.7e9, "node7: 8 cores", "measured", "net")


def of(rate):
    return replace(ONE, rate=rate)


def make_book(path, *rates, remeasure=False):
    """Write the rates of a launch: (key, GPUs, samples/s)."""
    book = RateBook(path, remeasure)
    for key, gpus, rate in rates:
        book.add(key, gpus, of(rate))
    book.write()


def rates_in(path):
    """Return key -> {GPUs: samples/s} of rates that belong to all ways in which GPUs can lie."""
    rates = rates_of(read_cache(path))
    assert not any(shape.span for of_key in rates.values() for shape in of_key)
    return {
        key: {shape.gpus: rate for shape, rate in of_key.items()} for key, of_key in rates.items()
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fleet" / "rates.json"


def test_rate_cache_returns_what_was_written(path):
    book = RateBook(path)
    book.add("a", 2, ONE)
    book.write()
    assert read_cache(path) == {"a": {GroupShape(2): ONE}}


def test_rate_cache_keeps_how_gpus_lie(path):
    shapes = GroupShape(4), GroupShape(4, Span.NODE), GroupShape(4, Span.SPREAD)
    book = RateBook(path)
    for number, shape in enumerate(shapes, start=1):
        book.add("a", shape, of(10.0 * number))
    book.write()
    assert list(json.loads(path.read_text())["a"]) == ["4", "4 node", "4 spread"]
    assert rates_of(read_cache(path)) == {"a": dict(zip(shapes, (10.0, 20.0, 30.0), strict=True))}


@pytest.mark.parametrize("text", ["four", "4 far", "", " node", "4node", "-1", "4  spread"])
def test_read_cache_ignores_unknown_shapes(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"a": {text: asdict(ONE), "1": asdict(ONE)}}))
    assert read_cache(path) == {"a": {GroupShape(1): ONE}}


def test_rate_cache_keeps_timed_steps(path):
    timed = replace(ONE, timed=(StepTime(8, 0.5), StepTime(16, 0.9)), parameters=1000)
    book = RateBook(path)
    book.add("a", 1, timed)
    book.add("b", 1, ONE)
    book.write()
    assert read_cache(path)["a"] == {GroupShape(1): timed}
    assert timings(read_cache(path)) == {"a": StepTimings({1: timed.timed}, 1000)}


def test_rate_cache_keeps_rates_of_concurrent_runs(path):
    book = RateBook(path)
    make_book(path, ("a", 1, 10.0), ("b", 1, 5.0))
    book.add("a", 2, of(18.0))
    book.add("c", 1, of(1.5))
    book.write()
    assert rates_in(path) == {"a": {1: 10.0, 2: 18.0}, "b": {1: 5.0}, "c": {1: 1.5}}


def test_correct_drops_untrained_rates_of_network(path):
    make_book(path, ("a", 1, 238.0), ("a", 2, 400.0), ("b", 1, 5.0))
    book = RateBook(path)
    book.correct("a", 1, of(1348.0))
    book.write()
    assert rates_in(path) == {"a": {1: 1348.0}, "b": {1: 5.0}}


def test_correct_keeps_trained_rates(path):
    make_book(path, ("a", 1, 238.0), ("a", 4, 400.0))
    book = RateBook(path)
    book.add("a", 3, of(700.0))  # measured on synthetic samples
    book.add("a", 2, replace(of(900.0), how="trained"))
    book.correct("a", 1, replace(of(500.0), how="trained"))
    book.write()
    book.add("a", 4, replace(of(1500.0), how="trained"))
    book.write()
    assert rates_in(path) == {"a": {1: 500.0, 2: 900.0, 4: 1500.0}}


def test_remeasure_ignores_and_replaces_cache(path):
    make_book(path, ("a", 1, 238.0), ("a", 2, 400.0), ("b", 1, 5.0))
    assert RateBook(path, remeasure=True).rates == {}
    make_book(path, ("a", 1, 1348.0), remeasure=True)
    assert rates_in(path) == {"a": {1: 1348.0}, "b": {1: 5.0}}


def test_rate_book_without_rates_writes_nothing(path):
    RateBook(path).write()
    assert not path.exists()


def test_rate_book_writes_only_new_rates(path):
    book = RateBook(path)
    book.add("a", 1, ONE)
    book.write_if_due()
    assert rates_in(path) == {"a": {1: 238.0}}
    path.unlink()
    book.write_if_due()
    book.write()
    assert not path.exists()
    book.add("b", 1, of(5.0))
    book.write()
    assert rates_in(path) == {"a": {1: 238.0}, "b": {1: 5.0}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "null",
        '{"a": 1}',
        '{"a": {"x": 1}}',
        '{"a": {"1": "fast"}}',
        "{",
        "\ud800",
        '{"a": {"1": 238.0}}',
        '{"a": {"1": {"rate": 3}}}',
        "[" * 100_000,
    ],
)
def test_read_cache_ignores_damage_and_bare_numbers(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(text, errors="surrogatepass")
    assert read_cache(path) == {}
    assert read_cache(tmp_path / "none.json") == {}


def test_read_cache_ignores_impossible_rates(tmp_path):
    path = tmp_path / "rates.json"
    rates = [0.0, float("nan"), -1, float("inf"), 2]
    path.write_text(
        json.dumps({"a": {gpus: asdict(of(rate)) for gpus, rate in enumerate(rates, start=1)}})
    )
    assert rates_in(path) == {"a": {5: 2.0}}


def test_rate_book_ignores_an_unwritable_cache(tmp_path):
    (tmp_path / "file").touch()
    make_book(tmp_path / "file" / "rates.json", ("a", 1, 10.0))
