"""Rates that need not be measured: those of a file that a spec names, and those of earlier runs (a cache)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from fleet.errors import StorageError, UserError
from fleet.spec import Spec
from fleet.storage.files import write_json
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


def cache_path() -> Path:
    """Where measured rates are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fleet" / "rates.json"


def read_cache(path: Path) -> dict[str, dict[int, float]]:
    """The rates measured before; none where the file is missing or damaged: it is only a cache."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: {int(gpus): float(rate) for gpus, rate in rates.items() if 0 < rate < math.inf}
                for key, rates in content.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def write_cache(path: Path, known: Mapping[str, Mapping[int, float]]) -> None:
    """Keep rates for later runs, beside what other runs have kept meanwhile; a cache may fail silently."""
    kept = read_cache(path)
    try:
        write_json(path, {**kept, **{key: {**kept.get(key, {}), **rates} for key, rates in known.items()}})
    except StorageError:
        return


def hardware() -> str:
    """What decides speed about this machine, in a line."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    gpus = sorted(info.read_text(encoding="utf-8").split("\n")[0].split(":")[-1].strip()
                  for info in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return f"{model} x {os.cpu_count()}, {len(gpus)} GPUs {gpus[0] if gpus else ''}".strip()
