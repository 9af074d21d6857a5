"""Rebuild the networks that were added while a run went on, from its events (pure)."""

from __future__ import annotations

from dataclasses import replace

from fleet.domain.events import NetworkAdded
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.entries import invalid_network, placeholder_for, proposed_network
from fleet.spec.resolve import with_entry


def with_added_networks(spec: Spec, run: RunState) -> Spec:
    """Return the spec with the networks that were added in earlier launches, after its own.

    Networks of an entry that the spec no longer has are left out, like networks removed from a
    spec.

    Args:
        spec: the spec as it is now.
        run: the state of the run, from the logs of earlier launches.
    """
    entries = {entry.stem: index for index, entry in spec.searches.items()}
    came = {name: added for name, added in run.added.items() if not added.entry}
    late = [
        _rebuild(spec, entries[added.entry], added)
        for added in run.added.values()
        if added.entry in entries
    ]
    spec = replace(spec, networks=(*spec.networks, *late)) if late else spec
    for command in run.commands:
        if command.do != "add":
            continue
        try:
            spec, networks = with_entry(
                spec, command.given, spec.by_name, command.place, command.values
            )
        except UserError:  # the spec is another one by now, and has no place for them
            continue
        networks_added = [
            _with_history(network, spec, came[network.name])
            for network in networks
            if network.name in came
        ]
        spec = replace(spec, networks=(*spec.networks, *networks_added))
    return spec


def _with_history(network: NetworkSpec, spec: Spec, added: NetworkAdded) -> NetworkSpec:
    """Return a network of a command as it was added."""
    if added.wrong:
        return placeholder_for(network, spec)
    return replace(network, parent=added.parent, parent_epoch=added.parent_epoch)


def _rebuild(spec: Spec, index: int, added: NetworkAdded) -> NetworkSpec:
    try:
        if not added.wrong:
            return replace(
                proposed_network(spec, index, added.number, dict(added.values), added.repeat),
                parent=added.parent,
                parent_epoch=added.parent_epoch,
            )
    except UserError:  # the spec is another one by now
        pass
    return invalid_network(spec, index, added.number, dict(added.values), added.repeat)
