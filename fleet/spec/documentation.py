"""Write the keys of a spec as a JSON Schema for editors, and as a Markdown page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from fleet.spec.model import APPLICATIONS, FAMILIES, application_names
from fleet.spec.old_keys import SHORT_KEYS
from fleet.spec.schema import Document
from fleet.spec.section import KEYS_HEADING
from fleet.spec.train import UNDIVIDED
from preprocess.transforms import TRANSFORMS

_HEAD = """# The keys of a spec

Which keys can a spec have, and what do they mean? This spec trains three networks on built-in data:

```yaml
data: {source: 'builtin:digits', transforms: [{decode: {mode: L}}, {scale: {}}]}
models:
- {family: softmax, grid: {train.optimizer.learning_rate: [0.1, 0.03, 0.01]}}
train: {epochs: 5, batch_size: 64}
resources: {engine: numpy}
```

Sizes are written like `2GB`, durations like `10min`, `2h` or `1:30:00`, and shares like `15%`. A
number without a unit is in bytes or seconds, or a fraction of 1. In `train` of the spec or of an
entry, and as `train.KEY` in a space, `optimizer: adam` is short for `optimizer: {name: adam}`,
`epochs: 5` for `stopping: {max_epochs: 5}`, and `batch_size: 64` for `batch: {size: 64}`. Any other
key is a mistake: `fleet check` names its line and, for misspelt keys and words of Optuna, Ray Tune,
Keras, PyTorch Lightning, DeepHyper and W&B, such as `lr` or `n_trials`, the key that is meant. Old
keys still work in this release; the [glossary](glossary.md#keys-of-a-spec) lists them. `fleet
schema --markdown > docs/spec.md` writes this page, and `fleet schema` a JSON Schema for editors."""

# heading -> the part of the schema with its keys
_PARTS = {
    "models: an entry": "ModelEntry",
    "models: data of an entry": "EntryData",
    "data": "Data",
    "data.target": "Target",
    "data.pad: an input": "Pad",
    "train": "Train",
    "train.batch": "Batch",
    "train.optimizer": "Optimizer",
    "train.stopping": "Stopping",
    "train.start": "Start",
    "schedule": "Schedule",
    "profile": "Profile",
    "resources": "Resources",
    "checkpoint": "Checkpoint",
    "prune": "Prune",
    "models: a range in space": "Range",
    "models: prior of a range": "Prior",
    "models: choices with conditions in space": "Choices",
    "models: search": "Search",
    "models: search.objectives": "Objective",
    "models: search.budget": "Budget",
}
MAX_CHOICES = 12  # that a table lists; it shows the title of a longer list


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec."""
    schema = _schema_of(Document)
    _describe_entries(schema["$defs"])
    _describe_short_keys(schema["$defs"])
    _describe_optimizer(schema["$defs"]["Optimizer"]["properties"])
    # A run that stays open may start without networks.
    schema |= {"anyOf": [{"required": ["keep_open"]}, {"properties": {"models": {"minItems": 1}}}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "FLEET spec",
    }


def _schema_of(owner: type) -> dict[str, Any]:
    """Return the schema of a section, whose description does not repeat the texts of its keys."""
    schema = TypeAdapter(owner).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "description" in part:
            part["description"] = part["description"].partition(KEYS_HEADING)[0]
    return schema


def _describe_entries(parts: dict[str, Any]) -> None:
    """Describe the mappings of an entry: its family's arguments and parts of ``train``."""
    entry = parts["ModelEntry"]
    properties = entry["properties"]
    for key, schema in (("family", _families()), ("train", {"$ref": "#/$defs/Train"})):
        described = ("title", "description")
        properties[key] = schema | {word: properties[key][word] for word in described}
    for settings in FAMILIES.values():
        parts[settings.__name__] = _schema_of(settings)
    entry["allOf"] = [
        {
            "if": {"required": ["family"], "properties": {"family": {"const": family}}},
            "then": {"properties": {"args": {"$ref": f"#/$defs/{settings.__name__}"}}},
        }
        for family, settings in FAMILIES.items()
    ]


def _describe_short_keys(parts: dict[str, Any]) -> None:
    """Describe the short keys of ``train``."""
    for short, key in SHORT_KEYS.items():
        _, section, name = key.split(".")
        train = parts["Train"]["properties"]
        meant = parts[train[section]["$ref"].removeprefix("#/$defs/")]["properties"][name]
        train[short.removeprefix("train.")] = {
            **{word: meant[word] for word in meant if word not in ("default", "title")},
            "description": f"Short for `{section}.{name}`; use one of them.",
        }


def _describe_optimizer(settings: dict[str, Any]) -> None:
    """Describe the short name of the learning rate, and the settings of groups of parameters."""
    rate = settings["learning_rate"]["anyOf"]
    settings["lr"] = {
        "anyOf": [rate[0], {"type": "object"}],
        "description": "Another name of learning_rate; use one of them.",
    }
    group = settings["groups"]["anyOf"][0]["items"]
    group["additionalProperties"] = False
    group["properties"] |= {key: settings[key] for key in settings if key not in UNDIVIDED}
    for key in ("learning_rate", "lr"):
        group["properties"][key] = {
            **rate[0],
            "description": "Learning rate of these parameters, a number. A schedule scales it.",
        }


def _families() -> dict[str, Any]:
    applications = list(application_names())  # none where Keras is not installed
    names: dict[str, Any] = {"enum": applications} if applications else {"type": "string"}
    return {
        "anyOf": [
            {"title": "a family", "enum": list(FAMILIES)},
            {"title": f"a name of {APPLICATIONS}", **names},
            {"type": "null"},
        ],
        "default": None,
    }


def page() -> str:
    """Return the page in Markdown."""
    schema = json_schema()
    return (
        "\n\n".join(
            [_HEAD, *(_section(heading, part, schema) for heading, part in _sections(schema))]
        )
        + "\n"
    )


def _sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield headings with the parts of the schema below them."""
    parts = schema["$defs"]
    yield "at the top", schema
    yield from ((heading, parts[name]) for heading, name in _PARTS.items())
    for name, family in FAMILIES.items():
        yield f"models: args of {name}", parts[family.__name__]
    transform_list = parts["Data"]["properties"]["transforms"]["oneOf"][0]
    transforms = transform_list["items"]["anyOf"][-1]["properties"]
    for name in TRANSFORMS:
        yield f"data.transforms: {name}", transforms[name].get("oneOf", [transforms[name]])[0]
    optimizer = parts["Optimizer"]["properties"]
    group = optimizer["groups"]["anyOf"][0]["items"]["properties"]
    yield (
        "train.optimizer.groups: a group",
        {
            "properties": {key: group[key] for key in ("match", "lr", "learning_rate")},
            "required": ["match"],
        },
    )
    schedules = optimizer["learning_rate"]["anyOf"][1:]
    yield from (
        (f"train.optimizer.learning_rate: {schedule['title']}", schedule) for schedule in schedules
    )


def _section(heading: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
    lines = [f"## {heading}"]
    description = part.get("description")
    if description:
        lines += ["", description]
    properties = part.get("properties")
    if properties:
        required = part.get("required", ())
        lines += ["", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(key, value, key in required, schema) for key, value in properties.items()]
    return "\n".join(lines)


def _row(key: str, value: dict[str, Any], required: bool, schema: dict[str, Any]) -> str:
    named = schema["$defs"].get(value.get("$ref", "").removeprefix("#/$defs/"), {})
    meaning = value.get("description", named.get("description", ""))
    cells = [f"`{key}`", _kind(value), _default(value, required), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(value: dict[str, Any]) -> str:
    """Describe the values that a key takes.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}, {"type": "null"}]})
    'integer from 1, `auto`'
    """
    choices = value.get("anyOf", value.get("oneOf"))
    if choices:
        parts = [part for choice in choices for part in _kind(choice).split(", ")]
        kinds = [kind for kind in dict.fromkeys(parts) if kind]
        return ", ".join(kind for kind in kinds if kind != "integer" or "number" not in kinds)
    names = value.get("enum", [value["const"]] if "const" in value else [])
    if names and len(names) <= MAX_CHOICES:
        return ", ".join(dict.fromkeys(f"`{name}`" for name in names))
    examples = value.get("examples")
    if examples:
        return f"like `{examples[0]}`"
    title = str(value.get("title", ""))
    if title[:1].islower():  # titles made by pydantic begin with a capital
        return title
    kind = value.get("type", "object")
    words = {
        "null": "",
        "object": "mapping",
        "array": "list",
        "string": "text",
        "boolean": "`true`, `false`",
    }
    bounds = {
        "minimum": "from",
        "exclusiveMinimum": "above",
        "maximum": "to",
        "exclusiveMaximum": "below",
    }
    limits = [
        f"{word} {value[bound]}".removesuffix(".0")
        for bound, word in bounds.items()
        if bound in value
    ]
    return " ".join([words.get(kind, kind), *limits])


def _default(value: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = value.get("default")
    if default is None or default == "" or isinstance(default, dict):
        return ""
    if isinstance(default, str):
        return f"`{default}`"
    return f"`{json.dumps(default)}`"
