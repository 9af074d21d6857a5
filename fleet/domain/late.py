"""The networks that came while a run went on, made again from what its events say of them (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fleet.domain.events import Commanded, Event, NetworkAdded
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.resolve import asked_network, refused_network, stand_in, with_added


def with_late(spec: Spec, events: Iterable[Event]) -> Spec:
    """A spec with the networks that came while earlier launches went on, after its own.

    Those of an entry that the spec no longer has are left out, as networks are that are taken from a spec.

    Args:
        events: of the run; only those that tell of networks that came count.
    """
    entries = {entry.stem: index for index, entry in spec.searches.items()}
    came, commands, late = dict[str, NetworkAdded](), list[Commanded](), list[NetworkSpec]()
    for event in events:
        if isinstance(event, NetworkAdded) and not event.entry:
            came[event.network] = event
        elif isinstance(event, NetworkAdded) and event.entry in entries:
            late.append(_again(spec, entries[event.entry], event))
        elif isinstance(event, Commanded) and event.do == "add":
            commands.append(event)
    spec = replace(spec, networks=(*spec.networks, *late)) if late else spec
    for command in commands:
        try:
            spec, networks = with_added(spec, command.given, spec.by_name, command.place)
        except UserError:  # the spec is another one by now, and has no place for them
            continue
        given = [stand_in(network, spec) if came[network.name].wrong else network
                 for network in networks if network.name in came]
        spec = replace(spec, networks=(*spec.networks, *given))
    return spec


def _again(spec: Spec, index: int, added: NetworkAdded) -> NetworkSpec:
    try:
        if not added.wrong:
            return replace(asked_network(spec, index, added.number, dict(added.values)),
                           parent=added.parent, parent_epoch=added.parent_epoch)
    except UserError:  # the spec is another one by now
        pass
    return refused_network(spec, index, added.number, dict(added.values))
