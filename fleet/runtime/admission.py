"""Networks that are added while a launch runs, validated like those of a spec."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.control.effects import NetworkAdmitted
from fleet.domain.events import CommandReceived, NetworkAdded
from fleet.errors import UserError
from fleet.runtime.known_rates import make_policy_network, with_epochs_from_rates
from fleet.runtime.rate_memory import RateMemory
from fleet.runtime.startup.data import resolve_with_data
from fleet.runtime.startup.launch import PreparedLaunch
from fleet.runtime.startup.memory import plan_memory
from fleet.search.decisions import AddNetwork
from fleet.spec import NetworkSpec
from fleet.spec.clones import Clone, CloneRequest, describe_clone
from fleet.spec.criteria import check_comparable, target_kinds
from fleet.spec.entries import invalid_network, placeholder_for, proposed_network, variants
from fleet.spec.fit_checks import find_misfits
from fleet.spec.resolve import with_entry
from fleet.storage.checkpoint import copy_parent, saved_epochs
from fleet.storage.quota import Quota
from fleet.storage.results import Results, known_parameters
from launch.errors import InputError
from scheduler.base import Network
from scheduler.ensemble.elastic import with_best_batches

_CHECK_EVERY_S = 0.1  # for saved parents


class Admission:
    """Admits networks to a run.

    Args:
        results: the run's results, to which networks are added.
        rates: known rates, to which the keys of networks are added.
    """

    def __init__(self, launch: PreparedLaunch, results: Results, rates: RateMemory) -> None:
        self._launch = launch
        self._results = results
        self._rates = rates
        self._spec = launch.spec  # with all entries that were added
        self._quota = Quota(launch.paths, launch.spec.checkpoint)
        # network -> request, and the number of its parent's epochs that must be saved
        self._waiting: dict[str, tuple[AddNetwork, int]] = {}
        self._next_check_s = -math.inf
        # networks of the spec and added ones, whose selection criteria must agree
        self._comparable: list[NetworkSpec] = []
        if launch.spec.schedule.rates is None:
            self._table = None
        else:
            self._table = launch.engine_rates

    def request(self, add: AddNetwork) -> None:
        """Queue a trial that a search proposed."""
        epochs = 0
        if add.parent is not None:
            epochs = len(self._results.run.status_of(add.parent).history)
        self._waiting[add.network] = (add, epochs)
        self._next_check_s = -math.inf

    def pop_ready(self, training: Collection[str], now_s: float) -> list[NetworkAdmitted]:
        """Return requested networks that can be added: their parents have been saved.

        A search proposes a child once its parent reports an epoch; the checkpoint of that epoch is
        written a moment later. Once a parent has no group, all of its epochs are saved.

        Args:
            training: the networks that have a group.
            now_s: the time by the coordinator's clock.
        """
        if not self._waiting or now_s < self._next_check_s:
            return []
        self._next_check_s = now_s + _CHECK_EVERY_S
        ready = [
            add
            for add, epochs in self._waiting.values()
            if add.parent is None
            or add.parent not in training
            or saved_epochs(self._launch.paths, add.parent) >= epochs
        ]
        for add in ready:
            del self._waiting[add.network]
        return [self._build_trial(add) for add in ready]

    def _build_trial(self, add: AddNetwork) -> NetworkAdmitted:
        """Build a proposed trial; one that cannot be trained fails with a reason."""
        spec = self._launch.spec
        wrong = add.wrong
        index = next(index for index, entry in spec.searches.items() if entry.stem == add.entry)
        network = invalid_network(spec, index, add.number, add.values, add.repeat)
        if not wrong:
            try:
                trial = self._check(
                    proposed_network(spec, index, add.number, add.values, add.repeat)
                )
                network = self._with_weights(trial, add.parent or "")
            except UserError as error:
                wrong = " ".join(str(error).split())
        return self._admit(network, wrong, add.values, add.entry, add.number, add.parent or "")

    def parse_entry(self, entry: Any) -> tuple[dict[str, Any], int, tuple[NetworkSpec, ...]]:
        """Parse the networks of a new entry without adding them.

        Args:
            entry: a mapping with the keys of an entry of ``models``.

        Returns:
            The entry with its name, the number of entries before it, and its networks.

        Raises:
            UserError: the entry is invalid.
        """
        before = self._spec
        self._spec, networks = with_entry(before, entry, self._results.networks)
        try:
            self._compare(networks)
        except UserError:
            self._spec = before
            raise
        name = self._spec.document.models[-1].name
        content = dict(entry) if name is None else {**entry, "name": name}
        return content, len(before.document.models), networks

    def parse_clone(
        self, request: CloneRequest
    ) -> tuple[dict[str, Any], int, Clone, tuple[NetworkSpec, ...]]:
        """Parse a clone without adding it; a warm one gets its weights.

        Returns:
            The entry of the clone, the number of entries before it, its description, and its
            networks.

        Raises:
            UserError: it cannot be trained, or its source has no weights that fit.
        """
        before = self._spec
        clone = describe_clone(before, self._results.networks, request)
        try:
            self._spec, networks = with_entry(
                before, clone.entry, self._results.networks, drawn=clone.values
            )
            self._compare(networks)
            networks = tuple(map(self._check, networks))
            for network in networks:
                self._launch.paths.first(network.name).unlink(missing_ok=True)
            networks = tuple(
                self._with_weights(network, clone.parent_of(network)) for network in networks
            )
        except UserError:
            self._spec = before
            raise
        return clone.entry, len(before.document.models), clone, networks

    def _with_weights(self, network: NetworkSpec, parent: str) -> NetworkSpec:
        """Copy the newest checkpoint of a network's parent, if it has one.

        Raises:
            UserError: the parent has no checkpoint, or another architecture.
        """
        if not parent:
            return network
        epoch = copy_parent(
            self._launch.paths,
            network.name,
            parent,
            network.architecture.key,
            self._quota.make_room,
            self._launch.fence,
        )
        return replace(network, parent=parent, parent_epoch=epoch)

    def restore_entry(self, command: CommandReceived) -> tuple[NetworkSpec, ...]:
        """Return the networks of an entry that an earlier launch accepted but did not add.

        Raises:
            UserError: the entry does not fit the present spec.
        """
        before = self._spec
        self._spec, networks = with_entry(before, command.given, (), command.place, command.values)
        if not command.is_warm:
            return networks
        clone = Clone(
            self._results.networks[command.source],
            dict(command.given),
            dict(command.values or {}),
            command.is_warm,
        )
        return tuple(
            network
            if network.name in self._results.networks
            else self._with_weights(network, clone.parent_of(network))
            for network in networks
        )

    def admit(self, network: NetworkSpec) -> NetworkAdmitted:
        """Admit a network; one that cannot be trained fails with a reason."""
        wrong = ""
        try:
            network = self._check(network)
        except UserError as error:
            network = placeholder_for(network, self._spec)
            wrong = " ".join(str(error).split())
        return self._admit(network, wrong, network.parameters, parent=network.parent)

    def _check(self, network: NetworkSpec) -> NetworkSpec:
        """Return a network completed from the data.

        Raises:
            UserError: the network cannot be trained here.
        """
        launch = self._launch
        extreme = next(
            (
                network_spec
                for network_spec in launch.search_extremes.networks
                if network_spec.entry == network.entry
            ),
            None,
        )
        # Classes were counted before the launch.
        if network.train.class_weights == "balanced" and extreme is not None:
            network = replace(
                network, train=replace(network.train, class_weights=extreme.train.class_weights)
            )
        [resolved] = resolve_with_data(launch.inputs, replace(self._spec, networks=(network,)))
        spec = with_epochs_from_rates(resolved)
        problems = find_misfits(
            spec,
            launch.sample,
            launch.inputs.epoch_samples,
            launch.inputs.data.validation is not None,
            len(launch.roles.trainers),
        )
        if problems:
            raise UserError(
                "; ".join(
                    f"{wrong}; {right}" if right else wrong for _, _, wrong, right in problems
                )
            )
        layout = plan_memory(spec, launch.inputs, launch.roles, 0.0)
        if (
            layout is not None
            and launch.layout is not None
            and layout.lookahead > launch.layout.lookahead
        ):
            raise UserError(
                f"train.batch.size: {network.train.batch.bounds[1]} does not fit into the stream "
                "of this launch: use a smaller batch, or add the network to the spec and resume "
                "the run"
            )
        self._rates_of(spec.networks[0])  # raises if the file lacks them
        return spec.networks[0]

    def _compare(self, networks: Sequence[NetworkSpec]) -> None:
        """Check that networks have the selection criteria of the spec.

        Raises:
            SpecError: their criteria differ.
        """
        if not self._comparable:
            spec = self._launch.spec
            status_of = self._results.run.status_of
            self._comparable = [
                *variants(spec),
                *(
                    network
                    for network in spec.networks
                    if network.number is None
                    and (status_of(network.name).outcome is None or status_of(network.name).history)
                ),
            ]
        check_comparable(
            self._spec, (*self._comparable, *networks), target_kinds(self._launch.sample)
        )
        self._comparable += networks

    def _rates_of(self, network: NetworkSpec) -> Network | None:
        """Return the rates of a network from a file, if there is one.

        Raises:
            UserError: the file lacks rates that the network needs, or no batch fits.
        """
        if self._table is None:
            return None
        spec = self._launch.spec
        row = make_policy_network(network, spec, self._table)
        try:
            table = with_best_batches(
                replace(self._table, models=(row,)), self._launch.roles.cluster.whole_gpus
            )
        except InputError as error:  # the network fails, and the run continues
            raise UserError(f"{spec.schedule.rates}: {error}") from None
        return table.models[0]

    def _admit(
        self,
        network: NetworkSpec,
        wrong: str,
        values: Mapping[str, Any],
        entry: str = "",
        number: int = -1,
        parent: str = "",
    ) -> NetworkAdmitted:
        """Add a network to the results; see :class:`NetworkAdded` for its arguments."""
        added = NetworkAdded(
            network.name,
            entry,
            number,
            values,
            (network.min_gpus, network.max_gpus),
            network.train.stopping.max_epochs,
            parent,
            network.parent_epoch,
            wrong,
            network.repeat,
        )
        rates = self._rates
        rates.add_keys(network)
        key = rates.keys[network.name]
        prior_rates = rates.prior_rates.get(key, {})
        if wrong:
            self._results.add(network, None)
            return NetworkAdmitted(network, added, key, None, prior_rates, None)
        self._results.add(network, known_parameters(network, self._launch.sample))
        traits = rates.traits_of(network) if rates.learns else None
        return NetworkAdmitted(network, added, key, traits, prior_rates, self._rates_of(network))
