"""Rates that need not be measured: those of a file that a spec names. For the cache: what decides speed here."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from fleet.errors import UserError
from fleet.spec import Spec
from fleet.storage.paths import RunPaths
from scheduler.base import RateTable
from scheduler.ensemble.rates_file import read_rates


def read_rates_of(spec: Spec, path: str | Path) -> RateTable:
    """The rates of a spec's networks from a file, with the bounds that the spec gives their groups.

    Raises:
        UserError: the file lacks a network.
        InputError: it is no rates file.
    """
    table = read_rates(path)
    known = {network.name: network for network in table.models}
    missing = [network.name for network in spec.networks if network.name not in known]
    if missing:
        raise UserError(f"{path} has no rates of {', '.join(missing)}")
    return dataclasses.replace(table, models=tuple(
        dataclasses.replace(known[network.name], min_gpus=network.min_gpus, max_gpus=network.max_gpus)
        for network in spec.networks))


def rates_file(spec: Spec, given: str | None) -> str | None:
    """The rates file to go by: one that is given, that the spec names, or the profile that a run of it has left."""
    profile = RunPaths(spec.output).profile
    return given or spec.schedule.rates or (str(profile) if profile.exists() else None)


def check_remeasuring(spec: Spec, replays: bool = False) -> None:
    """Refuse to measure anew what is not measured at all.

    Raises:
        UserError: rates are read from a file, or nobody looks at them.
    """
    why = ("a replay measures no rates" if replays else
           f"rates are read from schedule.rates: {spec.schedule.rates}" if spec.schedule.rates is not None else
           "" if spec.policy.needs_rates else f"the policy {spec.schedule.policy} looks at no rates")
    if why:
        raise UserError(f"--remeasure: {why}; leave it out")


def hardware() -> str:
    """What this machine has, in a line, as far as it decides speed."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    gpus = sorted(info.read_text(encoding="utf-8").split("\n")[0].split(":")[-1].strip()
                  for info in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return f"{model} x {os.cpu_count()}, {len(gpus)} GPUs {gpus[0] if gpus else ''}".strip()
