"""The syntax of transforms in a spec."""

import re

import pytest
from pydantic import TypeAdapter

from launch.errors import InputError
from preprocess.transforms.color import Scale, ScaleByData
from preprocess.transforms.decoding import Decode
from preprocess.transforms.geometry import RandomCrop
from preprocess.transforms.parse import (
    TRANSFORMS,
    item_schema,
    parse_transform,
    parse_transforms,
    signature,
)


def test_parse_spec_gives_names_or_names_with_parameters():
    items = ["decode", {"random_crop": {"size": [32, 24], "padding": 4}}, {"scale": None}]
    assert parse_transforms(items) == (Decode(), RandomCrop(size=(32, 24), padding=4), Scale())


def test_parse_every_wrong_item_is_reported_with_its_place():
    with pytest.raises(InputError) as caught:
        parse_transforms(
            ["decode", "flop", {"rotate": {"angle": 3}}, {"flip": {"horizontal": True}}, 7]
        )
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "transforms[1]",
        "transforms[2]",
        "transforms[4]",
    ]


def test_parse_transform_lists_transforms_for_an_unknown_one():
    with pytest.raises(InputError) as caught:
        parse_transform("flop")
    assert all(signature(name) in str(caught.value) for name in TRANSFORMS)
    assert "random_crop(size, padding=0)" in str(caught.value)


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ({"rotate": {"angle": 3}}, "unknown parameter 'angle'; it takes degrees"),
        ("rotate", "'degrees' is missing"),
        ({"rotate": {"degrees": "ten"}}, "'degrees' is 'ten'"),
        ({"rotate": {"degrees": 200}}, "'degrees' is 200"),
        (
            {"random_crop": {"size": [32, 0]}},
            "'size' is [32, 0]; it should be [height, width] of the crop, in pixels; it takes",
        ),
        ({"random_crop": {"size": 32}}, "'size' is 32; it should be"),
        ({"random_crop": {"size": [True, 3]}}, "'size' is [True, 3]; it should be"),
        (
            {"resize": {"size": [1, 2, 3]}},
            "'size' is [1, 2, 3]; it should be [height, width], or one number",
        ),
        ({"random_crop": {"size": [3, 3], "padding": -1}}, "'padding' is -1"),
        ({"decode": {"mode": "RGBA"}}, "'mode' is 'RGBA'"),
        ("flip", "flip: needs horizontal: true"),
        ("color_jitter", "color_jitter: needs brightness"),
        ({"scale": {"std": 0}}, "'std' is 0"),
        ({"scale": {"std": float("nan")}}, "'std' is nan"),
        (
            {"scale": {"mean": [0.5, 0.5], "std": [1.0, 1.0, 1.0]}},
            "2 means and 3 standard deviations",
        ),
        ({"a": {}, "b": {}}, "a name, or one name with its parameters"),
        ({"flip": [1]}, "a name, or one name with its parameters"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        (f"{__name__}:nothing", "has no 'nothing'"),
        (f"{__name__}:CONSTANT", "not a function"),
        (":f", "not an import path"),
        ("preprocess:", "not an import path"),
    ],
)
def test_parse_explains_a_wrong_item(item, complaint):
    with pytest.raises(InputError) as caught:
        parse_transform(item)
    assert complaint in str(caught.value)


CONSTANT = 3


@pytest.mark.parametrize("items", ["decode", None, {"decode": {}}])
def test_transforms_are_a_list(items):
    with pytest.raises(InputError, match="it must be a list of transforms"):
        parse_transforms(items)


def test_decode_comes_first():
    with pytest.raises(InputError, match=r"transforms\[1\]: decode must come first"):
        parse_transforms([{"flip": {"horizontal": True}}, "decode"])


def test_parse_describes_every_parameter():
    for name in TRANSFORMS:
        for parameter, schema in TypeAdapter(TRANSFORMS[name]).json_schema()["properties"].items():
            assert schema.get("description"), f"{name}.{parameter}"


def test_true_stands_for_the_defaults_of_a_transform():
    assert parse_transform({"scale": True}) == Scale()
    assert parse_transform({"random_grayscale": True}) == parse_transform("random_grayscale")
    with pytest.raises(InputError, match="scale: false; leave it out"):
        parse_transform({"scale": False})


@pytest.mark.parametrize("written", ["data", {"mean": "data", "std": "data"}])
def test_scale_may_take_its_numbers_from_the_data(written):
    assert parse_transform({"scale": written}) == ScaleByData()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"mean": "data", "std": 0.5}, "mean is data; mean and std are both data, or numbers"),
        ({"std": "data"}, "std is data; mean and std are both data, or numbers"),
        ("images", "a name, or one name with its parameters"),
    ],
)
def test_scale_refuses_half_of_the_data_and_foreign_words(written, message):
    with pytest.raises(InputError, match=message):
        parse_transform({"scale": written})


def test_scale_by_data_must_come_last():
    with pytest.raises(InputError, match=r"transforms\[0\]: scale: data must come last"):
        parse_transforms([{"scale": "data"}, {"flip": {"horizontal": True}}])


def test_item_schema_names_all_transforms_and_parameters():
    bare, path, mapping = item_schema()["anyOf"]
    assert set(mapping["properties"]) == set(TRANSFORMS)
    assert mapping["properties"]["random_crop"]["required"] == ["size"]
    assert bare["enum"] == ["decode", "random_grayscale", "random_erasing", "scale", "standardize"]
    assert re.search(path["pattern"], "module:function")


def test_parse_names_the_line_of_a_failing_module(tmp_path, monkeypatch):
    (tmp_path / "broken_transforms.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r"ZeroDivisionError: division by zero \(.*broken_transforms.py, line 2\)"
    ):
        parse_transform("broken_transforms:f")
