"""Rates that need not be measured: those of a file that a spec names. What a run leaves for such a file, as well.

For the cache: what decides speed here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.storage.files import WriteThrottle, with_retries, write_json
from fleet.storage.paths import RunPaths
from scheduler.base import InputError, Network, RateTable
from scheduler.ensemble.elastic import with_best_batches
from scheduler.ensemble.rates import median_rates
from scheduler.ensemble.rates_file import read_rates, write_rates


def read_rates_of(spec: Spec, path: str | Path) -> RateTable:
    """The rates of a spec's networks from a file, with the bounds that the spec gives their groups.

    Raises:
        UserError: the file lacks a network.
        InputError: it is no rates file.
    """
    table = read_rates(path)
    by_name = {network.name: network for network in table.models}
    missing = [
        network.name
        for network in spec.networks
        if network.number is None and network.name not in by_name
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
    """What a policy is told of a network: the rates of a file with what the spec says of it.

    Raises:
        UserError: the policy chooses its batch, and the file does not say by what.
    """
    batch = network.train.batch
    rates = find_rates(network, spec, table)
    if batch.is_elastic and (rates.params_mb is None or len(rates.step_s) < 2):
        raise UserError(
            f"train.batch.size: {list(batch.bounds)}: {spec.schedule.rates} does not say how the speed of "
            f"{network.name} depends on its batch; it should have its params_mb, and step_s for two "
            "batches or more"
        )
    return dataclasses.replace(
        rates,
        name=network.name,
        min_gpus=network.min_gpus,
        max_gpus=network.max_gpus,
        batches=batch.bounds if batch.is_elastic else None,
    )


def make_late_policy_network(
    network: NetworkSpec, spec: Spec, table: RateTable | None, gpus: int
) -> Network | None:
    """What a policy is told of a network that comes while a launch goes on; None where no file says anything of it.

    Args:
        table: of the engine; None where rates are found out.
        gpus: of the launch.

    Raises:
        UserError: as :func:`make_policy_network`; or no batch fits, by what the file says.
    """
    if table is None:
        return None
    try:
        return with_best_batches(
            dataclasses.replace(table, models=(make_policy_network(network, spec, table),)), gpus
        ).models[0]
    except InputError as error:  # the network has failed; the run goes on
        raise UserError(f"{spec.schedule.rates}: {error}") from None


def find_rates(network: NetworkSpec, spec: Spec, table: RateTable) -> Network:
    """The rates of a network in a file.

    Networks of a search have no names beforehand: the rates of a network that has the name of their entry are theirs,
    or else those in the middle of all.
    """
    if network.number is None:
        names = [network.name]
    else:
        names = [network.name, spec.document.models[network.entry].stem]
    found = next((table.by_name[name] for name in names if name in table.by_name), None)
    return found or Network(network.name, median_rates(table.models))


def make_engine_rates(path: str | Path, table: RateTable) -> RateTable:
    """The table by which an engine trains: beside those of its networks it has the rates of those that may come."""
    names = {network.name for network in table.models}
    return dataclasses.replace(
        table,
        models=(
            *table.models,
            *(network for network in read_rates(path).models if network.name not in names),
        ),
    )


def find_rates_file(spec: Spec, path: str | None) -> str | None:
    """The rates file to go by: one that is given, that the spec names, or the profile that a run of it has left."""
    profile = RunPaths(spec.output).profile
    return path or spec.schedule.rates or (str(profile) if profile.exists() else None)


class ProfileFile:
    """The file of the rates that a run has found out. They may be those of thousands of networks, and change often.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pacing = WriteThrottle()
        self._rates: Callable[[], RateTable] | None = None  # that are not written yet

    def keep(self, rates: Callable[[], RateTable]) -> None:
        """There are other rates.

        Args:
            rates: gives them when they are written.
        """
        self._rates = rates
        self.write_if_due()

    def write_if_due(self) -> None:
        """Write them, if that has waited long enough."""
        if self._pacing.is_due(changes=self._rates is not None):
            self.write()

    def write(self) -> None:
        """Write the newest rates, if they are not written yet.

        Raises:
            StorageError: the disk is full, ...
        """
        if self._rates is not None:
            rates = write_rates(self._rates())
            with self._pacing.writing():
                with_retries(lambda: write_json(self._path, rates))
            self._rates = None


def check_remeasuring(spec: Spec, replays: bool = False) -> None:
    """Refuse to measure anew what is not measured at all.

    Raises:
        UserError: rates are read from a file, or nobody looks at them.
    """
    if replays:
        reason = "a replay measures no rates"
    elif spec.schedule.rates is not None:
        reason = f"rates are read from schedule.rates: {spec.schedule.rates}"
    elif spec.policy.needs_rates:
        reason = ""
    else:
        reason = f"the policy {spec.schedule.policy} looks at no rates"
    if reason:
        raise UserError(f"--remeasure: {reason}; leave it out")


def hardware() -> str:
    """What this machine has, in a line, as far as it decides speed."""
    model = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), ""
        )
    gpus = sorted(
        info.read_text(encoding="utf-8").split("\n")[0].split(":")[-1].strip()
        for info in Path("/proc/driver/nvidia/gpus").glob("*/information")
    )
    return f"{model} x {os.cpu_count()}, {len(gpus)} GPUs {gpus[0] if gpus else ''}".strip()
