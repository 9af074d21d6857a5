"""Match the weights in a file to those of a network by name and shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from fleet.errors import SettingError

Shapes: TypeAlias = Mapping[str, Sequence[int]]  # of weights, by name

_SHOWN = 20  # weights of a kind that a message names


def match_weights(
    file: str, network_shapes: Shapes, file_shapes: Shapes, skip: Sequence[str]
) -> list[str]:
    """Return the names of the weights that a network takes from a file.

    Args:
        file: path, for messages.
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
        {name: tuple(shape) for name, shape in of.items() if name not in skipped}
        for of in (network_shapes, file_shapes)
    )
    wrong = [
        f"{name} is {available[name]} in the file and {shape} in the network"
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
        more = [f"{len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise SettingError(
            f"{file} does not fit the network: {'; '.join([*wrong[:_SHOWN], *more])}; "
            "what should begin at random stands in skip",
            "train",
            "start",
        )
    return list(expected)


def match_patterns(patterns: Iterable[str], names: Collection[str], key: str) -> set[str]:
    """Return the names that match patterns; a dot in a pattern also matches a slash.

    Args:
        patterns: of names.
        names: to match.
        key: of ``train.start`` that has the patterns.

    Raises:
        SettingError: a pattern matches nothing.

    >>> sorted(match_patterns(["head.*"], ["head/kernel", "head/bias", "body/kernel"], "skip"))
    ['head/bias', 'head/kernel']
    """
    met: set[str] = set()
    for pattern in patterns:
        now = {
            name
            for name in names
            if fnmatchcase(name, pattern) or fnmatchcase(name.replace("/", "."), pattern)
        }
        if not now:
            raise SettingError(
                f"{pattern!r} matches no weight; there are {_listed(list(dict.fromkeys(names)))}",
                "train",
                "start",
                key,
            )
        met |= now
    return met


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
