"""Each network of a run as an offline run of W&B, in a folder that ``wandb sync`` takes.

A folder of W&B cannot be added to. So that of a network is written anew when the network has trained on, under the same
name and with the same id: what was uploaded before is replaced, and nothing is there twice.
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

_WRITTEN = "fleet.txt"  # in a folder: what of its network is written there


def write(run: TrackedRun, path: Path) -> None:
    """Write the networks that are not written as they are now."""
    root = path / "wandb"
    root.mkdir(parents=True, exist_ok=True)
    for network in run.networks:
        if not network.epochs and not network.is_over:
            continue
        stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(network.began))
        folder = root / f"offline-run-{stamp}-{network.key}"
        wanted = f"{network.fingerprint}\n"
        written = folder / _WRITTEN
        if not written.exists() or written.read_text(encoding="utf-8") != wanted:
            _replace(run, network, folder, wanted)


def _replace(run: TrackedRun, network: TrackedNetwork, folder: Path, said: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fleet-") as aside:
        made = _log(run, network, Path(aside))
        (made / _WRITTEN).write_text(said, encoding="utf-8")
        for before in folder.parent.glob(
            f"offline-run-*-{network.key}"
        ):  # it may have begun at another time since
            shutil.rmtree(before, ignore_errors=True)
        made.rename(folder)


class _Clock:
    """The module ``time``, where it is always the same time.

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


def _log(run: TrackedRun, network: TrackedNetwork, place: Path) -> Path:
    """Have W&B write a network; returns the folder."""
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    # No setting of W&B says when a run began: it asks its module `time`.
    with patch.object(wandb_run, "time", _Clock(network.began), create=True):
        one = wandb.init(
            project=run.name,
            group=f"{run.name}-{run.key[:6]}",
            name=network.name,
            id=network.key,
            job_type=network.entry or None,
            tags=[str(network.status)],
            config=dict(network.params),
            dir=str(place),
            settings=settings,
            reinit="finish_previous",
        )
    for epoch in network.epochs:
        one.log({**epoch.values, "_timestamp": epoch.date}, step=epoch.epoch)
    files = {f"file.{name}": path.absolute().as_uri() for name, path in network.files.items()}
    one.summary.update({**network.facts, **files, "status": str(network.status)})
    folder = Path(one.dir).parent
    one.finish(exit_code=int(network.status is Status.FAILED))
    return folder
