"""The options ``inputs`` and ``targets`` of sources: one name, or a list of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.errors import InputError
from preprocess.base import check_input_name, first_duplicate
from preprocess.record_target import check_target_name


def parse_input_names(inputs: Any) -> str | dict[str, str]:
    """Parse the option ``inputs``: a name; or of several inputs, a list or a mapping of names.

    Returns:
        The name; of several inputs, the names by which networks know them -> the names in the data,
        which are the same in a list.

    Raises:
        InputError: it is neither; there is no name, one twice, or one that networks cannot use.
    """
    if isinstance(inputs, str):
        return inputs
    if isinstance(inputs, Mapping) and inputs:
        for name, of_data in inputs.items():
            check_input_name(name, "options: inputs")
            if not isinstance(of_data, str):
                raise InputError(f"options: inputs: {name}: {of_data!r}; it should be a name")
        return dict(inputs)
    names = parse_names(inputs, "inputs")
    for name in names:
        check_input_name(name, "options: inputs")
    return {name: name for name in names}


def parse_names(names: Any, option: str) -> tuple[str, ...]:
    """Parse a list of names.

    Args:
        names: the value of the option.
        option: the name of the option, for messages.

    Raises:
        InputError: it is no list of names, is empty, or has one twice.
    """
    if (
        not isinstance(names, list | tuple)
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(f"options: {option}: {names!r}; it should be a name, or a list of names")
    twice = first_duplicate(tuple(names))
    if twice:
        raise InputError(f"options: {option}: {twice!r} is there twice; names must differ")
    return tuple(names)


def parse_target_names(targets: Any) -> str | dict[str, str]:
    """Parse the option ``targets``: a name; or of several targets, a list or a mapping of names.

    Returns:
        The name; of several targets, their names -> their names in the data, which are the same in
        a list.

    Raises:
        InputError: it is neither; there is no name, one twice, or one that no target can have.
    """
    if isinstance(targets, str):
        return targets
    if isinstance(targets, Mapping) and targets:
        for name, of_data in targets.items():
            check_target_name(name, "options: targets")
            if not isinstance(of_data, str):
                raise InputError(f"options: targets: {name}: {of_data!r}; it should be a name")
        return dict(targets)
    names = parse_names(targets, "targets")
    for name in names:
        check_target_name(name, "options: targets")
    return {name: name for name in names}
