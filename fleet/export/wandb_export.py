"""Write each network as an offline W&B run, in a folder for ``wandb sync``.

A W&B folder cannot be extended. So the folder of a network that has trained further is written
again with the same name and id: an earlier upload is replaced, and nothing appears twice.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import wandb
from wandb.sdk import wandb_run

from fleet.export.tracked_run import TrackedNetwork, TrackedRun
from fleet.storage.results import Status

_WRITTEN = "fleet.txt"  # file with the fingerprint of the written network


def write(run: TrackedRun, path: Path) -> None:
    """Write the networks whose folders are not up to date."""
    root = path / "wandb"
    root.mkdir(parents=True, exist_ok=True)
    for network in run.networks:
        if not network.epochs and not network.is_over:
            continue
        stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(network.began))
        folder = root / f"offline-run-{stamp}-{network.key}"
        fingerprint = f"{network.fingerprint}\n"
        written = folder / _WRITTEN
        if not written.exists() or written.read_text(encoding="utf-8") != fingerprint:
            _replace(run, network, folder, fingerprint)


def _replace(run: TrackedRun, network: TrackedNetwork, folder: Path, fingerprint: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fleet-") as aside:
        written = _log(run, network, Path(aside))
        (written / _WRITTEN).write_text(fingerprint, encoding="utf-8")
        # The start of the network, and so the name of its folder, may have changed.
        for before in folder.parent.glob(f"offline-run-*-{network.key}"):
            shutil.rmtree(before, ignore_errors=True)
        written.rename(folder)


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
