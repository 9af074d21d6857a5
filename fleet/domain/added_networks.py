"""The networks that came while a run went on, made again from what is known of them (pure)."""

from __future__ import annotations

from dataclasses import replace

from fleet.domain.events import NetworkAdded
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.resolve import invalid_network, placeholder_for, proposed_network, with_entry


def with_late(spec: Spec, run: RunState) -> Spec:
    """A spec with the networks that came while earlier launches went on, after its own.

    Those of an entry that the spec no longer has are left out, as networks are that are taken from a spec.
    """
    entries = {entry.stem: index for index, entry in spec.searches.items()}
    came = {name: added for name, added in run.added.items() if not added.entry}
    late = [
        _again(spec, entries[added.entry], added)
        for added in run.added.values()
        if added.entry in entries
    ]
    spec = replace(spec, networks=(*spec.networks, *late)) if late else spec
    for command in run.commands:
        if command.do != "add":
            continue
        try:
            spec, networks = with_entry(spec, command.given, spec.by_name, command.place)
        except UserError:  # the spec is another one by now, and has no place for them
            continue
        given = [
            placeholder_for(network, spec) if came[network.name].wrong else network
            for network in networks
            if network.name in came
        ]
        spec = replace(spec, networks=(*spec.networks, *given))
    return spec


def _again(spec: Spec, index: int, added: NetworkAdded) -> NetworkSpec:
    try:
        if not added.wrong:
            return replace(
                proposed_network(spec, index, added.number, dict(added.values)),
                parent=added.parent,
                parent_epoch=added.parent_epoch,
            )
    except UserError:  # the spec is another one by now
        pass
    return invalid_network(spec, index, added.number, dict(added.values))
