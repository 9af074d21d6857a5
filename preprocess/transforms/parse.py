"""Parse a spec's list of transforms: their names, errors and JSON Schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launch.errors import InputError
from preprocess.transforms.base import Transform
from preprocess.transforms.color import (
    ColorJitter,
    RandomErasing,
    RandomGrayscale,
    Scale,
    ScaleByData,
    Standardize,
)
from preprocess.transforms.decoding import Decode, with_reduced_decoding
from preprocess.transforms.geometry import (
    CenterCrop,
    Flip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Rotate,
)
from preprocess.transforms.user import UserTransform

TRANSFORMS: dict[str, type] = {
    "decode": Decode,
    "resize": Resize,
    "random_crop": RandomCrop,
    "random_resized_crop": RandomResizedCrop,
    "center_crop": CenterCrop,
    "flip": Flip,
    "rotate": Rotate,
    "color_jitter": ColorJitter,
    "random_grayscale": RandomGrayscale,
    "random_erasing": RandomErasing,
    "scale": Scale,
    "standardize": Standardize,
}

# Transform -> a word that may stand for its parameters, the transform that is meant by it, and the
# parameters that may have this word as their value, all of them together.
_WORDS: dict[str, tuple[str, type, tuple[str, ...]]] = {
    "scale": ("data", ScaleByData, ("mean", "std")),
}


def parse_transform(item: object) -> Transform:
    """Parse one item of a spec's list of transforms.

    >>> parse_transform({"random_crop": {"size": [32, 32], "padding": 4}})
    RandomCrop(size=(32, 32), padding=4)
    >>> parse_transform({"rotate": {"degrees": 200}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    launch.errors.InputError: rotate: 'degrees' is 200; it should be largest angle, ...

    Raises:
        InputError: the transform does not exist, or does not take these parameters; the message
            lists what exists.
    """
    name, parameters = _name_and_parameters(item)
    if ":" in name:
        transform = UserTransform(name, parameters)
        transform.check()  # report errors now, not at the first sample
        return transform
    if name not in TRANSFORMS:
        transform_name = ", ".join(signature(transform_name) for transform_name in TRANSFORMS)
        raise InputError(
            f"unknown transform {name!r}; there are {transform_name}, or an import path "
            f"module:function"
        )
    if name in _WORDS:
        word, meant, names = _WORDS[name]
        by_data = [parameter for parameter in names if parameters.get(parameter) == word]
        if by_data and parameters == dict.fromkeys(names, word):
            return meant()
        if by_data:
            both = " and ".join(names)
            raise InputError(f"{name}: {by_data[0]} is {word}; {both} are both {word}, or numbers")
    try:
        return TypeAdapter(TRANSFORMS[name]).validate_python(parameters)
    except ValidationError as error:
        wrong = dict.fromkeys(
            _describe_error(name, parameters, problem) for problem in error.errors()
        )
        raise InputError(f"{name}: {'; '.join(wrong)}; it takes {_parameters(name)}") from None


def parse_transforms(items: object) -> tuple[Transform, ...]:
    """Parse a spec's list of transforms.

    Raises:
        InputError: names every wrong item, one line each.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise InputError(f"transforms: it must be a list of transforms, not {items!r}")
    transforms: list[Transform] = []
    wrong = []
    for index, item in enumerate(items):
        try:
            transform = parse_transform(item)
        except InputError as error:
            wrong.append(f"transforms[{index}]: {error}")
            continue
        if isinstance(transform, Decode) and index > 0:
            wrong.append(f"transforms[{index}]: decode must come first; nothing is encoded later")
        if isinstance(transform, Standardize) and index + 1 < len(items):
            wrong.append(
                f"transforms[{index}]: {transform.written} must come last; networks apply it "
                f"to their inputs"
            )
        transforms.append(transform)
    if wrong:
        raise InputError("\n".join(wrong))
    return with_reduced_decoding(transforms)


def signature(name: str) -> str:
    """Format a transform with its parameters and their defaults, for messages.

    >>> signature("random_crop")
    'random_crop(size, padding=0)'
    """
    return f"{name}({_parameters(name)})"


def item_schema() -> dict[str, Any]:
    """Return the JSON Schema of one item of the list, for completion in editors."""
    return {
        "anyOf": [
            {"enum": [name for name in TRANSFORMS if _may_be_bare(name)]},
            {
                "type": "string",
                "pattern": ":",
                "description": "Import path module:function of your own function.",
            },
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {name: _written_forms(name) for name in TRANSFORMS},
                "patternProperties": {
                    ":": {
                        "type": "object",
                        "description": "Parameters of your own function, by name.",
                    }
                },
            },
        ]
    }


def _may_be_bare(name: str) -> bool:
    try:
        TRANSFORMS[name]()
    except ValidationError:
        return False
    return True


def _parameters(name: str) -> str:
    return ", ".join(
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
        for field in dataclasses.fields(TRANSFORMS[name])
    )


def _name_and_parameters(item: object) -> tuple[str, dict[str, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, dict) and len(item) == 1:
        [(name, parameters)] = item.items()
        parameters = {} if parameters is None or parameters is True else parameters
        if parameters is False:
            raise InputError(f"{name}: false; leave it out of the list")
        if name in _WORDS and parameters == _WORDS[name][0]:
            parameters = dict.fromkeys(_WORDS[name][2], parameters)
        if isinstance(name, str) and isinstance(parameters, dict):
            return name, parameters
    raise InputError(
        f"a name, or one name with its parameters as in 'flip: {{horizontal: true}}', not {item!r}"
    )


def _describe_error(name: str, parameters: dict[str, Any], error: Any) -> str:
    if error["type"] == "value_error":  # raised by a __post_init__
        return str(error["ctx"]["error"])
    parameter = error["loc"][0]
    if error["type"] == "unexpected_keyword_argument":
        return f"unknown parameter {parameter!r}"
    expected = _schema(name)["properties"][parameter]["description"]
    if error["type"] == "missing":
        return f"{parameter!r} is missing: {expected}"
    return f"{parameter!r} is {parameters[parameter]!r}; it should be {expected}"


def _written_forms(name: str) -> dict[str, Any]:
    """Return the JSON Schema of what may follow the name of a transform."""
    schema = _schema(name)
    forms: list[dict[str, Any]] = [{"type": "object", **schema}]
    if _may_be_bare(name):
        forms.append({"type": "boolean", "enum": [True]})
    if name in _WORDS:
        word, meant, names = _WORDS[name]
        forms.append({"type": "string", "enum": [word]})
        for parameter in names:
            schema["properties"][parameter]["anyOf"].append({"enum": [word]})
    if len(forms) == 1:
        return schema
    return {"oneOf": forms, "description": schema["description"]}


def _schema(name: str) -> dict[str, Any]:
    schema = TypeAdapter(TRANSFORMS[name]).json_schema()
    return {**schema, "description": " ".join(schema["description"].split())}
