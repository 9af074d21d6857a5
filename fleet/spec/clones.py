"""Clones of networks: the entry of a network like another, with other settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import UserError
from fleet.spec.naming import check_name
from fleet.spec.old_keys import with_new_keys
from fleet.spec.schema import NetworkSpec, Spec
from fleet.spec.section import plain
from fleet.units import listed
from launch.errors import did_you_mean

# Keys of an entry that choose how many networks it has, and which.
_OF_MANY = ("name", "count", "space", "search", "grid", "repeats")


@dataclass(frozen=True)
class CloneRequest:
    """What a user wants to clone.

    Attributes:
        network: name of a network.
        values: values of a space's keys that differ; ``args.`` may precede those of arguments.
        is_warm: whether the clone starts from the weights of the network.
        name: name of the clone; empty for the next free one.
    """

    network: str
    values: Mapping[str, Any]
    is_warm: bool = False
    name: str = ""

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> CloneRequest:
        """Return the request in a command.

        Raises:
            UserError: it is invalid.
        """
        values = content.get("values") or {}
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise UserError("clone: values should be a mapping of keys as in a space")
        return cls(
            str(content.get("network")),
            values,
            bool(content.get("warm")),
            str(content.get("name") or ""),
        )


@dataclass(frozen=True)
class Clone:
    """The description of a clone.

    Attributes:
        source: the network that is cloned.
        entry: the keys of an entry of ``models``, with the name of the clone.
        values: values by the keys of a space, those of the source included.
        is_warm: whether it starts from the weights of the source.
    """

    source: NetworkSpec
    entry: dict[str, Any]
    values: dict[str, Any]
    is_warm: bool

    def parent_of(self, network: NetworkSpec) -> str:
        """Return the network from whose weights a network of the clone starts.

        Raises:
            UserError: its weights, or the state of its optimizer, do not fit.
        """
        if not self.is_warm:
            return ""
        parent = self.source.name
        if network.fold is not None:
            parent = f"{self.source.stem}-fold{network.fold}"
        if network.architecture != self.source.architecture:
            raise UserError(
                f"{network.name} has another architecture than {parent}, so it cannot start from "
                "its weights; leave out --warm, or the arguments of the architecture"
            )
        before = self.source.train.optimizer.name
        after = network.train.optimizer.name
        if before != after:
            raise UserError(
                f"{network.name} has the optimizer {after} and {parent} has {before}, whose state "
                "it cannot continue; leave out --warm, or keep the optimizer"
            )
        return parent


def describe_clone(spec: Spec, networks: Mapping[str, NetworkSpec], request: CloneRequest) -> Clone:
    """Return the description of a clone.

    Args:
        spec: the spec of the run, with the entries that were added to it.
        networks: all networks of the run by name.
        request: what to clone.

    Raises:
        UserError: the run has no network of this name, a clone cannot have its name, or one setting
            has two values.
    """
    source = networks.get(request.network)
    repeats = [name for name, network in networks.items() if network.stem == request.network]
    if source is None and repeats:
        raise UserError(f"{request.network} stands for {listed(repeats, 8)}; name the one to clone")
    if source is None:
        raise UserError(
            f"the run has no network named {request.network!r}"
            f"{did_you_mean(request.network, networks)}; it has "
            f"{listed(list(networks), 8) or 'none yet'}"
        )
    existing = {name for network in networks.values() for name in (network.name, network.stem)}
    if request.name in existing:
        raise UserError(f"the run has a network named {request.name!r}; use another name")
    translation = with_new_keys(
        {key.removeprefix("args."): value for key, value in request.values.items()},
        section="models.space",
    )
    if translation.mistakes:
        raise UserError(f"clone: {translation.mistakes[0].text}")
    entry = spec.document.models[source.entry]
    content = {key: value for key, value in plain(entry).items() if key not in _OF_MANY}
    train = plain(entry.train_overrides)
    name = check_name(request.name or _free_name(source.name, existing))
    return Clone(
        source,
        {**content, "name": name, **({"train": train} if train else {})},
        {**source.parameters, **translation.content},
        request.is_warm,
    )


def _free_name(source: str, existing: Collection[str]) -> str:
    """Return the next free name for a clone.

    >>> _free_name("net-4", {"net-4"}), _free_name("net-4-clone", {"net-4-clone"})
    ('net-4-clone', 'net-4-clone2')
    """
    stem = re.sub(r"-fold\d+$", "", source)
    stem = re.sub(r"-clone\d*$", "", stem)
    names = itertools.chain([f"{stem}-clone"], (f"{stem}-clone{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in existing)
