"""The keys of a spec as a page in Markdown. What a key means is the comment beside its field."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from fleet.spec import schema as spec

_HEAD = """# The keys of a spec

`fleet schema --markdown > docs/spec.md` writes this page. Sizes are written like `2GB`, durations like `10min` or `2h`,
shares like `15%`. A key that is not here is a mistake, and `fleet check` names it."""

# heading -> what stands there
PARTS = {"at the top": spec.Document, "models: an entry": spec.ModelEntry, "data": spec.Data, "train": spec.Train,
          "train.batch": spec.Batch, "train.optimizer": spec.Optimizer, "train.converge": spec.Converge,
          "schedule": spec.Schedule, "profile": spec.Profile, "resources": spec.Resources,
          "checkpoint": spec.Checkpoint}


def page() -> str:
    """The whole page."""
    schema = spec.json_schema()
    known = {**schema["$defs"], "Document": schema}
    return "\n\n".join([_HEAD, *(_part(heading, part, known[part.__name__]) for heading, part in PARTS.items())]) + "\n"


def _part(heading: str, part: type, schema: dict[str, Any]) -> str:
    told = meanings(part)
    rows = [f"| `{key}` | {_kind(value)} | {_default(value, key in schema.get('required', ()))} | {told[key]} |"
            for key, value in schema["properties"].items()]
    return "\n".join([f"## {heading}", "", inspect.getdoc(part) or "", "",
                      "| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows])


def meanings(part: type) -> dict[str, str]:
    """Key -> the comment above its field or beside it."""
    found, above = {}, ""
    for line in inspect.getsource(part).splitlines():
        if match := re.fullmatch(r"    # (.*)", line):
            above += f"{match[1]} "
        elif match := re.fullmatch(r"    (\w+): .*?(?:  # (.*))?", line):
            found[match[1]] = (above + (match[2] or "")).strip().replace("|", "\\|")
            above = ""
    return found


def _kind(value: dict[str, Any]) -> str:
    """What may stand there.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}, {"type": "null"}]})
    'integer from 1, `auto`'
    """
    if choices := value.get("anyOf"):
        return ", ".join(filter(None, map(_kind, choices)))
    if "enum" in value or "const" in value:
        return ", ".join(f"`{choice}`" for choice in value.get("enum", [value.get("const")]))
    if examples := value.get("examples"):
        return f"like `{examples[0]}`"
    kind = value.get("type", "object")
    words = {"null": "", "object": "mapping", "array": "list", "string": "text", "boolean": "`true`, `false`"}
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    limits = [f"{word} {value[bound]}".removesuffix(".0") for bound, word in bounds.items() if bound in value]
    return " ".join([words.get(kind, kind), *limits])


def _default(value: dict[str, Any], required: bool) -> str:
    if required:
        return "must be given"
    default = value.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"
