"""Types of the keys of a spec, each with the JSON Schema that editors use.

A key is a field of a frozen dataclass. The docstring below it, or a computed
``Field(description=...)``, is what users read about it, in an editor and in ``docs/spec.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, WithJsonSchema

from fleet.spec.engines import ENGINES
from fleet.units import (
    DELTA,
    DURATION,
    SHARE,
    SIZE,
    Notation,
    parse_delta,
    parse_duration,
    parse_share,
    parse_size,
)
from fleet.vocabulary.optimizers import OPTIMIZERS
from fleet.vocabulary.torch_optimizers import TORCH_OPTIMIZERS
from preprocess.source import SOURCES
from preprocess.transforms import item_schema, parse_transform
from scheduler.base import Delta
from scheduler.ensemble.policies import POLICIES

IMPORT_PATH = {
    "title": "an import path",
    "type": "string",
    "pattern": r"^[^\s:]+:[^\s:]+$",
    "examples": ["module:function"],
}


def _in_any_case(names: Iterable[str]) -> str:
    """Return a pattern of names in upper and lower case, with or without PyTorch's module."""
    spellings = (
        "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in name)
        for name in names
    )
    return rf"^(torch\.optim\.)?({'|'.join(spellings)})$"


def named(names: Iterable[str], **more: str) -> WithJsonSchema:
    """Return the schema of one of some names, or an import path; values are checked elsewhere."""
    return WithJsonSchema({"anyOf": [{**more, "enum": list(names)}, IMPORT_PATH]})


@dataclass(eq=False)
class _Written:
    """The schema of a quantity with a unit, or of a bare number within bounds.

    Pydantic writes the default of a key into its schema, so each key gets a new one.
    """

    notation: Notation
    bounds: Mapping[str, float] = field(default_factory=dict)

    def __get_pydantic_json_schema__(self, _: Any, handler: Any) -> dict[str, Any]:
        notation = self.notation
        text = {"type": "string", "pattern": notation.pattern, "examples": list(notation.examples)}
        if notation.has_bare_numbers:
            return {"anyOf": [text, {"type": "number", "minimum": 0, **self.bounds}]}
        return text


@dataclass(eq=False)
class OrName:
    """The schema of a section, or of a name that stands for it with its defaults.

    Attributes:
        names: the schemas of such names.
        description: what the key means.
    """

    names: tuple[dict[str, Any], ...]
    description: str

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        forms = [
            {"type": "string", "anyOf": list(self.names)},
            {"type": "object", **handler(core_schema)},
        ]
        return {"oneOf": forms, "description": self.description}


def _check_transform(item: Any) -> Any:
    parse_transform(item)
    return item


def _no_flag(value: Any) -> Any:
    """Reject `true` and `false`, which pydantic would accept as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _no_means_off(value: object) -> object:
    """Return `off` for what YAML reads it as."""
    return "off" if value is False else value


def _share_or_path(value: object) -> object:
    """Parse text that ends in a percent sign as a share; leave paths alone."""
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return parse_share(value)
    return value


def _optimizer_name(name: Any) -> Any:
    """Return the name of an optimizer in lower case; import paths stay as they are."""
    if isinstance(name, str) and ":" not in name:
        return name.removeprefix("torch.optim.").lower()
    return name


# An output of a custom network, by its position or its name.
OutputName = Annotated[int, Field(ge=0, strict=True)] | Annotated[str, Field(min_length=1)]
# Write it after bounds: the JSON Schema omits bounds that come after it.
NO_FLAG = BeforeValidator(_no_flag)
NO_MEANS_OFF = BeforeValidator(_no_means_off)
Whole = Annotated[int, NO_FLAG]
Real = Annotated[float, NO_FLAG]
Positive = Annotated[int, Field(ge=1), NO_FLAG]
Repeats = Annotated[int, Field(ge=1, le=100), NO_FLAG]
AboveZero = Annotated[float, Field(gt=0), NO_FLAG]
NotNegative = Annotated[float, Field(ge=0), NO_FLAG]
BelowOne = Annotated[float, Field(ge=0, lt=1), NO_FLAG]
Size = Annotated[int, BeforeValidator(parse_size), _Written(SIZE)]
Duration = Annotated[float, BeforeValidator(parse_duration), _Written(DURATION)]
Share = Annotated[float, BeforeValidator(parse_share), _Written(SHARE, {"maximum": 1})]
PaceTolerance = Annotated[
    Delta, BeforeValidator(parse_delta), PlainSerializer(str), _Written(DELTA)
]
ShareOrPath = Annotated[
    Annotated[float, Field(gt=0, lt=1), NO_FLAG] | str, BeforeValidator(_share_or_path)
]
ImportPath = Annotated[str, WithJsonSchema(IMPORT_PATH)]
Source = Annotated[str, named(SOURCES)]
PolicyName = Annotated[str, named(POLICIES)]
EngineName = Annotated[str, named(ENGINES)]
Monitor = Annotated[
    str,
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["val_accuracy", "val_loss", "accuracy", "loss"]},
                {
                    "title": "a metric of train.metrics, with or without val_ before it",
                    "type": "string",
                },
            ]
        }
    ),
]
_OPTIMIZERS = list(dict.fromkeys((*OPTIMIZERS, *TORCH_OPTIMIZERS)))
_OPTIMIZER = "an optimizer of Keras or PyTorch"
_OPTIMIZER_NAMES: tuple[dict[str, Any], ...] = (
    {"title": _OPTIMIZER, "enum": _OPTIMIZERS},
    {"title": _OPTIMIZER, "type": "string", "pattern": _in_any_case(_OPTIMIZERS)},
    IMPORT_PATH,
)
OptimizerName = Annotated[
    str,
    BeforeValidator(_optimizer_name),
    WithJsonSchema({"anyOf": list(_OPTIMIZER_NAMES)}),
]
OR_OPTIMIZER_NAME = OrName(
    _OPTIMIZER_NAMES,
    "The optimizer: its name, like adam, which stands for its defaults, or a mapping with the keys "
    "of `train.optimizer`.",
)
_TRACKERS = ("mlflow", "wandb", "optuna")
TrackItem = Annotated[
    dict[Literal[_TRACKERS], str | None],  # type: ignore[valid-type]
    Field(min_length=1),
    BeforeValidator(lambda item: {item: None} if isinstance(item, str) else item),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(_TRACKERS)},
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": False,
                    "patternProperties": {
                        f"^({'|'.join(_TRACKERS)})$": {
                            "anyOf": [{"type": "string"}, {"type": "null"}]
                        }
                    },
                },
            ]
        }
    ),
]
_TransformItem = Annotated[
    str | dict[str, Any], BeforeValidator(_check_transform), WithJsonSchema(item_schema())
]
# Tagged by form, so that a mistake is reported for the form that the user chose.
Transforms = Annotated[
    Annotated[tuple[_TransformItem, ...], Tag("list")]
    | Annotated[dict[str, tuple[_TransformItem, ...]], Tag("by input")],
    Discriminator(lambda value: "by input" if isinstance(value, Mapping) else "list"),
]
