"""The rates file."""

import copy
import json

import pytest

from launch.errors import InputError
from scheduler.base import CommTime, Network, RateTable, StepTime
from scheduler.ensemble.rates_file import parse_rates, read_rates, write_rates

RIGHT = {
    "samples_per_epoch": 30606,
    "gpus_per_node": 4,
    "models": [
        {"name": "m0", "rates": [22.5, 44.9], "epochs": 8, "params_mb": 1179.0},
        {"name": "m1", "rates": [100, 90], "step_s": [{"batch": 32, "seconds": 0.3}]},
    ],
    "comm_s": [{"params_mb": 100.0, "gpus": 2, "seconds": 0.01}],
}


def changed(path, value):
    """Return a copy of RIGHT with one value changed or its key removed."""
    content = copy.deepcopy(RIGHT)
    *way, last = path
    location = content
    for step in way:
        location = location[step]
    if value is KeyError:
        del location[last]
    else:
        location[last] = value
    return content


def test_rates_file_is_read_completely():
    assert parse_rates(RIGHT) == RateTable(
        30606,
        4,
        (
            Network("m0", (22.5, 44.9), epochs=8, params_mb=1179.0),
            Network("m1", (100, 90), step_s=(StepTime(32, 0.3),)),
        ),
        (CommTime(100.0, 2, 0.01),),
    )


def test_files_are_read_back_as_written():
    assert write_rates(parse_rates(RIGHT)) == RIGHT
    shared = {**RIGHT, "sharing": [1, 1.6, 2.1]}
    assert parse_rates(shared).sharing == (1, 1.6, 2.1)
    assert write_rates(parse_rates(shared)) == shared
    # Two GPUs were as fast as one, within the error of measurement.
    for_nothing = changed(["comm_s", 0, "seconds"], 0)
    assert write_rates(parse_rates(for_nothing)) == for_nothing


def test_rates_file_has_the_rates_of_spread_groups():
    spread = changed(["models", 0, "spread_rates"], [22.5, 30.0])
    network, second = parse_rates(spread).models
    assert (network.spread_rates, second.spread_rates) == ((22.5, 30.0), ())
    assert write_rates(parse_rates(spread)) == spread


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["models", 0, "rates", 1], 0, "models[0].rates[1] is 0, but must be from"),
        (["models", 0, "rates", 1], -3.5, "models[0].rates[1] is -3.5, but must be from"),
        (["models", 0, "rates", 1], float("nan"), "models[0].rates[1] is NaN, but must be from"),
        (
            ["models", 0, "rates", 1],
            float("inf"),
            "models[0].rates[1] is Infinity, but must be from",
        ),
        (["models", 0, "rates", 1], "fast", 'models[0].rates[1] is "fast", but must be from'),
        (["models", 0, "rates", 1], True, "models[0].rates[1] is true, but must be from"),
        (
            ["models", 0, "rates"],
            [],
            "models[0].rates is empty, but needs at least the rate on 1 GPU",
        ),
        (["models", 0, "rates"], 22.5, "models[0].rates is 22.5, but must be a list"),
        (["models", 0, "rates"], KeyError, "models[0].rates is missing"),
        (["models", 0, "spread_rates"], 3, "models[0].spread_rates is 3, but must be a list"),
        (["models", 0, "spread_rates"], [22.5, 0], "models[0].spread_rates[1] is 0, but must be"),
        (
            ["models", 0, "spread_rates"],
            [22.5, 30, 40],
            "models[0].spread_rates is 3 rates, but must be at most as many as `rates`: 2",
        ),
        (["models", 0, "epochs"], 0, "models[0].epochs is 0, but must be a whole number from 1"),
        (
            ["models", 0, "epochs"],
            2.5,
            "models[0].epochs is 2.5, but must be a whole number from 1",
        ),
        (["models", 0, "params_mb"], -1, "models[0].params_mb is -1, but must be from"),
        (["models", 0, "name"], "", "models[0].name is ''"),
        (
            ["models", 0, "name"],
            "m0\n",
            r"models[0].name is 'm0\n', but must be a name of printable characters",
        ),
        (
            ["models", 0, "name"],
            "m\u202e0",
            r"models[0].name is 'm\u202e0', but must be a name of printable characters",
        ),
        (["models", 1, "name"], "m0", "2 networks are named 'm0'"),
        (["models", 1, "gpus"], 3, "models[1].gpus is an unknown key; the keys are name, rates"),
        (["models"], [], "models is empty, but an ensemble needs at least one network"),
        (["gpus_per_node"], 0, "gpus_per_node is 0, but must be a whole number from 1"),
        (
            ["sharing"],
            [1.6, 2.1],
            "sharing is without the 1 of one network alone, but must begin with it",
        ),
        (["sharing"], [1, -2], "sharing[1] is -2, but must be from"),
        (["samples_per_epoch"], KeyError, "samples_per_epoch is missing"),
        (["comm_s", 0, "seconds"], -1, "comm_s[0].seconds is -1, but must be 0 or from"),
    ],
)
def test_parse_rates_names_the_place_of_a_mistake(path, value, message):
    with pytest.raises(InputError) as caught:
        parse_rates(changed(path, value), "rates.json")
    assert str(caught.value).startswith("rates.json: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rates_file_names_all_errors():
    content = changed(["models", 0, "rates"], [0, -1])
    content["gpus_per_node"] = 0
    with pytest.raises(InputError) as caught:
        parse_rates(content)
    assert str(caught.value).count(";") == 2


def test_very_many_mistakes_are_counted():
    with pytest.raises(InputError, match="and 12 more"):
        parse_rates(changed(["models", 0, "rates"], [0] * 20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"models": [\n  {"name": }]}', "rates.json:2: not JSON"),
        ("[1, 2]", "the document is [1, 2], but must be an object with samples_per_epoch"),
        ("", "not JSON"),
    ],
)
def test_rates_file_refuses_other_files(tmp_path, text, message):
    file = tmp_path / "rates.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_rates(file)
    assert message in str(caught.value)


def test_rates_file_refuses_missing_or_binary_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_rates(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        read_rates(tmp_path / "binary")


def test_rates_file_is_read(tmp_path):
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RIGHT))
    assert read_rates(file) == parse_rates(RIGHT)
