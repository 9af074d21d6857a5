"""Validate values against the part of JSON Schema that FLEET's schema uses.

An unknown keyword is an error, so that no part of the schema is ignored.
"""

import re

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_NOTES = {"title", "description", "default", "examples", "$defs", "$schema", "discriminator"}


def complaints(value, schema, root=None, path="spec"):
    """Yield what is wrong with a value; nothing if it is valid."""
    root = schema if root is None else root
    for keyword, rule in schema.items():
        if keyword not in _NOTES:
            yield from _KEYWORDS[keyword](value, rule, schema, root, path)


def _any_of(value, rules, _, root, path):
    attempts = [list(complaints(value, rule, root, path)) for rule in rules]
    if all(attempts):
        yield f"{path}: none of {len(rules)} forms: {attempts}"


def _one_of(value, rules, _, root, path):
    attempts = [list(complaints(value, rule, root, path)) for rule in rules]
    of_its_type = [
        attempt
        for attempt, rule in zip(attempts, rules, strict=True)
        if not list(_type(value, rule.get("type", list(_TYPES)), rule, root, path))
    ]
    if len(of_its_type) == 1:  # an editor, too, explains a mistake by the form that was meant
        yield from of_its_type[0]
    elif sum(not attempt for attempt in attempts) != 1:
        yield f"{path}: {attempts.count([])} of {len(rules)} forms"


def _reference(value, path, _, root, location):
    target = root
    for step in path.removeprefix("#/").split("/"):
        target = target[step]
    yield from complaints(value, target, root, location)


def _type(value, names, _, root, path):
    names = [names] if isinstance(names, str) else names
    if not any(
        isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
        for name in names
    ):
        yield f"{path}: {value!r} is not of type {names}"


def _properties(value, properties, _, root, path):
    if isinstance(value, dict):
        for name in properties.keys() & value.keys():
            yield from complaints(value[name], properties[name], root, f"{path}.{name}")


def _pattern_properties(value, patterns, _, root, path):
    if isinstance(value, dict):
        for pattern, rule in patterns.items():
            for name in value:
                if re.search(pattern, name):
                    yield from complaints(value[name], rule, root, f"{path}.{name}")


def _additional(value, rule, schema, root, path):
    if not isinstance(value, dict):
        return
    for name in value.keys() - schema.get("properties", {}).keys():
        if any(re.search(pattern, name) for pattern in schema.get("patternProperties", ())):
            continue
        if rule is False:
            yield f"{path}: unknown key {name}"
        elif rule is not True:
            yield from complaints(value[name], rule, root, f"{path}.{name}")


def _required(value, names, _, root, path):
    if isinstance(value, dict):
        yield from (f"{path}: {name} is missing" for name in names if name not in value)


def _items(value, rule, schema, root, path):
    if isinstance(value, list):
        for index, item in enumerate(value[len(schema.get("prefixItems", ())) :]):
            yield from complaints(item, rule, root, f"{path}[{index}]")


def _prefix_items(value, rules, _, root, path):
    if isinstance(value, list):
        for index, (item, rule) in enumerate(zip(value, rules, strict=False)):
            yield from complaints(item, rule, root, f"{path}[{index}]")


def _holds(test, kind):
    def check(value, limit, _, root, path):
        if isinstance(value, kind) and not isinstance(value, bool) and not test(value, limit):
            yield f"{path}: {value!r} is beyond {limit!r}"

    return check


def _all_of(value, rules, _, root, path):
    for rule in rules:
        yield from complaints(value, rule, root, path)


def _if(value, condition, schema, root, path):
    if not list(complaints(value, condition, root, path)):
        yield from complaints(value, schema["then"], root, path)


def _enum(value, values, _, root, path):
    if value not in values:
        yield f"{path}: {value!r} is not one of {values}"


_KEYWORDS = {
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "if": _if,
    "then": lambda *_: (),
    "$ref": _reference,
    "type": _type,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "prefixItems": _prefix_items,
    "enum": _enum,
    "const": lambda value, constant, _, root, path: _enum(value, [constant], _, root, path),
    "minimum": _holds(lambda value, limit: value >= limit, (int, float)),
    "exclusiveMinimum": _holds(lambda value, limit: value > limit, (int, float)),
    "maximum": _holds(lambda value, limit: value <= limit, (int, float)),
    "exclusiveMaximum": _holds(lambda value, limit: value < limit, (int, float)),
    "minItems": _holds(lambda value, limit: len(value) >= limit, list),
    "maxItems": _holds(lambda value, limit: len(value) <= limit, list),
    "minLength": _holds(lambda value, limit: len(value) >= limit, str),
    "minProperties": _holds(lambda value, limit: len(value) >= limit, dict),
    "maxProperties": _holds(lambda value, limit: len(value) <= limit, dict),
    "pattern": _holds(lambda value, pattern: re.search(pattern, value), str),
}
