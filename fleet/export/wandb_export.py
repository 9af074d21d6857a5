"""Write each network as an offline W&B run, in a folder for ``wandb sync``.

A W&B folder cannot be extended. So the folder of a network that has trained further is written
again with the same name and id: an earlier upload is replaced, and nothing appears twice.

W&B measures the run time itself, from the start of the export. So its file is changed afterward:
each epoch has the time for which the network had trained.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import wandb
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk import wandb_run

from fleet.export.tracked_run import TrackedNetwork, TrackedRun
from fleet.export.wandb_file import HEAD_SIZE, pack_records, unpack_records
from fleet.storage.results import Status

_WRITTEN = "fleet.txt"  # file with the fingerprint of the written network


def write(run: TrackedRun, path: Path) -> None:
    """Write the networks whose folders are not up to date."""
    root = path / "wandb"
    root.mkdir(parents=True, exist_ok=True)
    changed = []
    for network in run.networks:
        fingerprint = f"{network.fingerprint}\n"
        written = _folder(root, network) / _WRITTEN
        if not network.epochs and not network.is_over:
            continue
        if not written.exists() or written.read_text(encoding="utf-8") != fingerprint:
            changed.append(network)
    if changed:
        with tempfile.TemporaryDirectory(dir=root, prefix=".fleet-") as aside:
            folders = [_log(run, network, Path(aside)) for network in changed]
            wandb.teardown()  # before that, a process of W&B may still write
            for network, folder in zip(changed, folders, strict=True):
                _finish(network, folder, root)


def _folder(root: Path, network: TrackedNetwork) -> Path:
    """Return the folder of a network, named as W&B does."""
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(network.began))
    return root / f"offline-run-{stamp}-{network.key}"


def _finish(network: TrackedNetwork, written: Path, root: Path) -> None:
    """Set the run times of a network in its new folder, and replace its earlier folder."""
    _set_run_times(written / f"run-{network.key}.wandb", network)
    (written / _WRITTEN).write_text(f"{network.fingerprint}\n", encoding="utf-8")
    # The start of the network, and so the name of its folder, may have changed.
    for before in root.glob(f"offline-run-*-{network.key}"):
        shutil.rmtree(before, ignore_errors=True)
    written.rename(_folder(root, network))


class _Clock:
    """The module ``time`` with a fixed time.

    Args:
        now: in seconds since 1970.
    """

    def __init__(self, now: float) -> None:
        self._now = now

    def time(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def _group_of(network: TrackedNetwork) -> dict[str, Any]:
    """Return what repeats of a configuration have in common, by which W&B can group them."""
    configuration = network.facts.get("configuration")
    return {} if configuration is None else {"configuration": configuration}


def _log(run: TrackedRun, network: TrackedNetwork, directory: Path) -> Path:
    """Make W&B write a network, and return its folder."""
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    # W&B has no setting for the start of a run: it uses its module `time`.
    with patch.object(wandb_run, "time", _Clock(network.began), create=True):
        tracked = wandb.init(
            project=run.name,
            group=f"{run.name}-{run.key[:6]}",
            name=network.name,
            id=network.key,
            job_type=network.entry or None,
            tags=[str(network.status)],
            config={**network.params, **_group_of(network)},
            dir=str(directory),
            settings=settings,
            reinit="finish_previous",
        )
    for epoch in network.epochs:
        tracked.log({**epoch.values, "_timestamp": epoch.date}, step=epoch.epoch)
    files = {f"file.{name}": path.absolute().as_uri() for name, path in network.files.items()}
    tracked.summary.update({**network.facts, **files, "status": str(network.status)})
    folder = Path(tracked.dir).parent
    tracked.finish(exit_code=int(network.status is Status.FAILED))
    return folder


def _set_run_times(file: Path, network: TrackedNetwork) -> None:
    """Replace the run times that W&B has measured by those of the network."""
    data = file.read_bytes()
    records = list(map(Record.FromString, unpack_records(data)))
    run_times = {epoch.epoch: epoch.run_time_s for epoch in network.epochs}
    for record in records:
        match record.WhichOneof("record_type"):
            case "history":
                step = record.history.step.num
                _replace_values(record.history.item, {("_runtime",): run_times[step]})
            case "summary":
                _replace_values(
                    record.summary.update,
                    {
                        ("_runtime",): network.run_time_s,
                        ("_wandb", "runtime"): round(network.run_time_s),
                    },
                )
            case "exit":
                record.exit.runtime = round(network.run_time_s)
    packed = pack_records(data[:HEAD_SIZE], (record.SerializeToString() for record in records))
    file.write_bytes(packed)


def _replace_values(items: Any, values: Mapping[tuple[str, ...], float]) -> None:
    """Replace values of a record of W&B.

    Args:
        items: items of the record, each with a name, or with names of nested mappings.
        values: names -> value.
    """
    for item in items:
        names = (item.key,) if item.key else tuple(item.nested_key)
        if names in values:
            item.value_json = json.dumps(values[names])
