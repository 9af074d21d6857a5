"""The rates file of a spec, and the file of measured rates that a run writes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path

from fleet.comm.roles import Roles
from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.storage.files import WriteThrottle, with_retries, write_json
from fleet.storage.paths import RunPaths
from launch.devices import find_maker
from launch.gpus import usable_gpus
from scheduler.base import Network, RateTable
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.rates import median_rates
from scheduler.ensemble.rates_file import read_rates, write_rates


def read_rates_of(spec: Spec, path: str | Path, added: Container[str] = ()) -> RateTable:
    """Read the rates of a spec's networks from a file, with the spec's group bounds.

    Args:
        spec: the spec.
        path: path of the file.
        added: networks that were added to the run, which the file may lack.

    Raises:
        UserError: the file lacks a network.
        InputError: the file is not a rates file.
    """
    table = read_rates(path)
    by_name = {network.name: network for network in table.models}
    missing = [
        network.name
        for network in spec.networks
        if network.number is None
        and network.name not in added
        and by_name.keys().isdisjoint((network.name, network.stem))
    ]
    missing += [
        entry.stem
        for entry in spec.searches.values()
        if entry.stem not in by_name and spec.engine.needs_rates
    ]
    if missing:
        raise UserError(f"{path} has no rates of {', '.join(missing)}")
    return dataclasses.replace(
        table, models=tuple(make_policy_network(network, spec, table) for network in spec.networks)
    )


def make_policy_network(network: NetworkSpec, spec: Spec, table: RateTable) -> Network:
    """Combine the rates of a file with the settings of a network, for policies.

    Raises:
        UserError: the policy chooses the batch, and the file has no rates for several batches.
    """
    batch = network.train.batch
    rates = find_rates(network, spec, table)
    if batch.is_elastic and (rates.params_mb is None or len(rates.step_s) < 2):
        raise UserError(
            f"train.batch.size: {list(batch.bounds)}: {spec.schedule.rates} lacks rates of "
            f"{network.name} for several batch sizes; add its params_mb, and step_s for two or "
            "more batch sizes"
        )
    return dataclasses.replace(
        rates,
        name=network.name,
        min_gpus=network.min_gpus,
        max_gpus=network.max_gpus,
        batches=batch.bounds if batch.is_elastic else None,
    )


def find_rates(network: NetworkSpec, spec: Spec, table: RateTable) -> Network:
    """Find the rates of a network in a file.

    A network of a fold may have the rates of its name without the fold. The names of trials are not
    known in advance, so a trial has the rates of a network with the name of its entry, or otherwise
    the median rates. So has a network that was added to the run, if the file lacks it.
    """
    if network.number is None:
        names = [network.name, network.stem]
    else:
        names = [network.name, spec.document.models[network.entry].stem]
    match = next((table.by_name[name] for name in names if name in table.by_name), None)
    return match or Network(network.name, median_rates(table.models))


def make_engine_rates(path: str | Path, table: RateTable) -> RateTable:
    """Return an engine's rates, including networks of the file that may still be added."""
    names = {network.name for network in table.models}
    return dataclasses.replace(
        table,
        models=(
            *table.models,
            *(network for network in read_rates(path).models if network.name not in names),
        ),
    )


def find_rates_file(spec: Spec, path: str | None) -> str | None:
    """Return the rates file: ``path``, or that of the spec, or the run's profile."""
    profile = RunPaths(spec.output).profile
    return path or spec.schedule.rates or (str(profile) if profile.exists() else None)


class ProfileFile:
    """The file of the rates that a run has measured, written at intervals."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pacing = WriteThrottle()
        self._rates: Callable[[], RateTable] | None = None  # not written yet

    def keep(self, rates: Callable[[], RateTable]) -> None:
        """Store new rates.

        Args:
            rates: returns the rates when they are written.
        """
        self._rates = rates
        self.write_if_due()

    def write_if_due(self) -> None:
        """Write the rates if the last write was long enough ago."""
        if self._pacing.is_due(changes=self._rates is not None):
            self.write()

    def write(self) -> None:
        """Write the newest rates if they are not written yet.

        Raises:
            StorageError: the disk is full, ...
        """
        if self._rates is not None:
            rates = write_rates(self._rates())
            with self._pacing.writing():
                with_retries(lambda: write_json(self._path, rates))
            self._rates = None


def with_epochs_from_rates(spec: Spec) -> Spec:
    """Limit emulated networks to the epochs that the rates file has for them."""
    if spec.schedule.rates is None or spec.engine.learns:
        return spec
    table = read_rates(spec.schedule.rates)

    def limited(network: NetworkSpec) -> NetworkSpec:
        epochs = find_rates(network, spec, table).epochs
        if epochs is None:
            return network
        stopping = dataclasses.replace(
            network.train.stopping, max_epochs=epochs, patience=None, stop_at=None, max_time=None
        )
        return dataclasses.replace(
            network, train=dataclasses.replace(network.train, stopping=stopping)
        )

    return dataclasses.replace(spec, networks=tuple(map(limited, spec.networks)))


def find_launch_rates(
    spec: Spec, epoch_samples: int, roles: Roles, replays: bool, added: Container[str] = ()
) -> RateTable | None:
    """Return the rates of a file, with the spec's bounds; None if rates must be measured.

    Args:
        spec: the spec.
        epoch_samples: samples of an epoch.
        roles: the roles of the ranks.
        replays: whether the launch replays a network.
        added: networks that were added to the run.
    """
    if spec.schedule.rates is not None:
        table = with_best_batches(
            read_rates_of(spec, spec.schedule.rates, added), roles.cluster.whole_gpus
        )
        return dataclasses.replace(
            table, samples_per_epoch=epoch_samples, gpus_per_node=roles.physical_gpus_per_node
        )
    if spec.policy.needs_rates and not replays:
        return None
    # A replay, and a policy that does not use rates, need no measurement.
    return RateTable(
        1,
        roles.physical_gpus_per_node,
        tuple(
            Network(network.name, (1.0,), min_gpus=network.min_gpus, max_gpus=network.max_gpus)
            for network in spec.networks
        ),
    )


def check_remeasuring(spec: Spec, replays: bool = False) -> None:
    """Refuse `--remeasure` if no rates are measured.

    Raises:
        UserError: rates are read from a file, or are not used.
    """
    if replays:
        reason = "a replay measures no rates"
    elif spec.schedule.rates is not None:
        reason = f"rates are read from schedule.rates: {spec.schedule.rates}"
    elif spec.policy.needs_rates:
        reason = ""
    else:
        reason = f"the policy {spec.schedule.policy} does not use rates"
    if reason:
        raise UserError(f"--remeasure: {reason}; remove this option")


def hardware(device: str = "auto") -> str:
    """Describe this machine's hardware in one line.

    Args:
        device: ``resources.device``.
    """
    model = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), ""
        )
    gpus = sorted(
        info.read_text(encoding="utf-8").split("\n")[0].split(":")[-1].strip()
        for info in Path("/proc/driver/nvidia/gpus").glob("*/information")
    )
    maker = find_maker(os.environ, device)
    if not gpus and maker is not None:
        gpus = [maker.name] * len(usable_gpus(maker, os.environ))
    text = f"{model} x {os.cpu_count()}, {len(gpus)} GPUs {gpus[0] if gpus else ''}".strip()
    return text if device == "auto" else f"{text}, {device}"
