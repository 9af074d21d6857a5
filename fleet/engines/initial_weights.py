"""Match the weights in a file to those of a network by name and shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from fleet.errors import SettingError

Shapes: TypeAlias = Mapping[str, Sequence[int]]  # shapes of weights by name

_SHOWN = 20  # maximum number of weights that a message lists


def match_weights(
    file: str, network_shapes: Shapes, file_shapes: Shapes, skip: Sequence[str]
) -> list[str]:
    """Return the names of the weights that a network takes from a file.

    Args:
        file: path of the file, for messages.
        network_shapes: shapes of the network's weights.
        file_shapes: shapes of the weights in the file.
        skip: patterns of weight names to leave out.

    Raises:
        SettingError: a pattern matches nothing, or the file does not fit.

    >>> network, file = {"body": (2, 3), "head": (3, 9)}, {"body": (2, 3), "head": (3, 10)}
    >>> match_weights("a.safetensors", network, file, ["head*"])
    ['body']
    """
    skipped = match_patterns(skip, [*network_shapes, *file_shapes], "skip")
    expected, available = (
        {name: tuple(shape) for name, shape in shapes.items() if name not in skipped}
        for shapes in (network_shapes, file_shapes)
    )
    wrong = [
        f"{name} has shape {available[name]} in the file and {shape} in the network"
        for name, shape in expected.items()
        if name in available and available[name] != shape
    ]
    for problem, names in (
        ("the file has no", expected.keys() - available.keys()),
        ("the network has no", available.keys() - expected.keys()),
    ):
        if names:
            wrong.append(f"{problem} {_listed(sorted(names))}")
    if wrong:
        tail = [f"{len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise SettingError(
            f"{file} does not fit the network: {'; '.join([*wrong[:_SHOWN], *tail])}; "
            "to initialize weights at random instead, list them in train.start.skip",
            "train",
            "start",
        )
    return list(expected)


def match_patterns(patterns: Iterable[str], names: Collection[str], key: str) -> set[str]:
    """Return the names that match patterns; a dot in a pattern also matches a slash.

    Args:
        patterns: patterns of weight names.
        names: names of all weights.
        key: key of ``train.start`` that holds the patterns, for messages.

    Raises:
        SettingError: a pattern matches nothing.

    >>> sorted(match_patterns(["head.*"], ["head/kernel", "head/bias", "body/kernel"], "skip"))
    ['head/bias', 'head/kernel']
    """
    matches: set[str] = set()
    for pattern in patterns:
        matching = {
            name
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(name.replace("/", "."), pattern)
        }
        if not matching:
            raise SettingError(
                f"{pattern!r} matches no weight; the weights are "
                f"{_listed(list(dict.fromkeys(names)))}",
                "train",
                "start",
                key,
            )
        matches |= matching
    return matches


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
