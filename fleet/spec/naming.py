"""Name the networks of an entry, stable across launches and changes of its size."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from fleet.errors import UserError
from fleet.spec.dimensions import Member, key_of_value
from fleet.spec.old_keys import values_with_new_names

DrawnValues: TypeAlias = Mapping[str, Any]  # name of a network of a run -> its drawn values

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RULE = "at most 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit"


def is_name(name: str) -> bool:
    """Return True if a text can name a network or a run, whose folder has the same name."""
    return _NAME.fullmatch(name) is not None


def rule_of(name: str) -> str:
    """Explain what an invalid name should be.

    >>> rule_of("n" * 101)
    'at most 100 characters; it has 101'
    """
    too_long = len(name) > 100 and is_name(name[:100]) and re.fullmatch(r"[A-Za-z0-9._-]+", name)
    if too_long:
        return f"at most 100 characters; it has {len(name)}"
    return _RULE


def check_name(name: str) -> str:
    """Check that a text can name a network, and return it.

    Raises:
        UserError: the text cannot name a network.
    """
    if not is_name(name):
        raise UserError(f"{name!r} cannot name a network: it should be {rule_of(name)}")
    return name


def names_of(
    stem: str, members: Sequence[Member], existing: DrawnValues, by_values: bool = False
) -> list[str]:
    """Name the networks of an entry.

    Versions before 0.3.0 wrote leading zeros for more than ten networks, and no number for a single
    network.

    Args:
        stem: the beginning of all names.
        members: the drawn values of each network.
        existing: the networks in the folder of the run.
        by_values: whether a new choice may reorder the members, as in a grid: existing networks
            then keep their names, and others get free numbers.

    >>> names_of("net", [{"width": 8}, {"width": 16}], {})
    ['net-0', 'net-1']
    >>> names_of("net", [{"width": 8}, {"width": 16}], {"net-00": None})
    ['net-00', 'net-01']
    >>> names_of("net", [{"width": 8}, {"width": 16}], {"net-0": {"width": 16}}, by_values=True)
    ['net-1', 'net-0']
    """
    digits = {
        name: digits_in_name for name in existing if (digits_in_name := number_in(name, stem))
    }
    width = max((len(number) for number in digits.values() if number[0] == "0"), default=1)
    numbers: dict[str, int] = {}
    if by_values:
        numbers = {
            key_of_value(existing[name]): int(number)
            for name, number in digits.items()
            if existing[name]
        }
    free = (number for number in itertools.count() if number not in numbers.values())
    names = []
    for member in members:
        number = numbers.get(key_of_value(member))
        number = next(free) if number is None else number
        names.append(check_name(f"{stem}-{number:0{width}d}"))
    if members and existing.get(stem) and key_of_value(existing[stem]) == key_of_value(members[0]):
        names[0] = stem
    return names


def network_name(configuration: str, repeat: int | None) -> str:
    """Return the name of a network: that of its configuration, with the number of its repeat.

    >>> network_name("net-4", None), network_name("net-4", 1)
    ('net-4', 'net-4-repeat1')
    """
    if repeat is None:
        return configuration
    return check_name(f"{configuration}-repeat{repeat}")


def number_in(name: str, stem: str) -> str:
    """Return the digits of a name that is a stem with a number; empty for another name.

    >>> number_in("net-07", "net"), number_in("net-07-repeat1", "net")
    ('07', '07')
    >>> number_in("net-07-fold1", "net")
    ''
    """
    match = re.fullmatch(rf"{re.escape(stem)}-(\d+)(-repeat\d+)?", name)
    return match[1] if match else ""


def names_in(run: Path) -> DrawnValues:
    """Return the networks of a run's folder with their drawn values."""
    networks: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        names = [name for name in os.listdir(run / "models") if is_name(name)]
        networks.update(dict.fromkeys(map(configuration_name, names)))
    with (
        suppress(OSError, ValueError, LookupError, TypeError, csv.Error),
        open(run / "results.csv", encoding="utf-8", newline="") as file,
    ):
        for row in csv.DictReader(file):
            networks[configuration_name(row["name"])] = values_with_new_names(
                json.loads(row["drawn"])
            )
    return networks


def configuration_name(name: str) -> str:
    """Return the name of a network without its fold or repeat.

    >>> configuration_name("net-4-repeat1"), configuration_name("net-4")
    ('net-4', 'net-4')
    """
    return re.sub(r"-(fold|repeat)\d+$", "", name)
