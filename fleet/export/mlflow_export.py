"""Write a run to an MLflow store: a parent, and a child for each network.

A tag records which epochs are in the store already. If the epochs of a child have changed, because
the network resumed from an earlier checkpoint or was started over, it is deleted and written again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from fleet.export.tracked_run import TrackedNetwork, TrackedRun
from fleet.storage.results import Status

T = TypeVar("T")

_DATABASE = "mlflow.db"
_STATUSES = {Status.FINISHED: "FINISHED", Status.PRUNED: "KILLED", Status.FAILED: "FAILED"}
_WRITTEN = "fleet.written"  # tag: number of written epochs, and their fingerprint
# Limits of the store for a batch and for a value.
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_LENGTH = 5000


def write(run: TrackedRun, path: Path) -> None:
    """Add missing results of a run to a store."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    path.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(*[f"sqlite:///{path.absolute() / _DATABASE}"] * 2)
    store = _Store(client, _experiment(client, run.name, path))
    parent = store.parent(run)
    children = {
        child.data.tags.get("fleet.key", ""): child for child in store.children(parent.info.run_id)
    }
    for network in run.networks:
        store.write(run, network, parent.info.run_id, children.get(network.key))


def _experiment(client: MlflowClient, name: str, path: Path) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment:
        return experiment.experiment_id
    return client.create_experiment(
        name, artifact_location=(path.absolute() / "artifacts").as_uri()
    )


@dataclass(frozen=True)
class _Store:
    """An experiment in a store."""

    _client: MlflowClient
    _experiment: str

    def parent(self, run: TrackedRun) -> Run:
        """Create or update the parent run."""
        matches = self._search(f"tags.fleet.key = '{run.key}'")
        if matches:
            parent = matches[0]
        else:
            parent = self._client.create_run(
                self._experiment, _ms(run.began), {"fleet.key": run.key}, run.name
            )
        if run.is_over:
            status = "FINISHED"
        elif run.is_going_on:
            status = "RUNNING"
        else:
            status = "SCHEDULED"
        self._update(
            parent,
            run.params,
            run.files,
            {"fleet.networks": str(len(run.networks))},
            status,
            run.ended,
        )
        return parent

    def children(self, parent: str) -> list[Run]:
        """Return the runs of networks in the store."""
        return self._search(f"tags.mlflow.parentRunId = '{parent}'")

    def _search(self, query: str) -> list[Run]:
        page = self._client.search_runs([self._experiment], query)
        runs = list(page)
        while page.token:
            page = self._client.search_runs([self._experiment], query, page_token=page.token)
            runs += page
        return runs

    def write(
        self, run: TrackedRun, network: TrackedNetwork, parent: str, child: Run | None
    ) -> None:
        """Add missing results of a network."""
        fingerprint = f"{len(network.epochs)} {network.fingerprint}"
        written = "" if child is None else child.data.tags.get(_WRITTEN, "")
        if written == fingerprint:
            return
        done = int(written.partition(" ")[0] or 0)
        if child is not None and written and network.digest(done) != written.split(" ")[1]:
            self._client.delete_run(child.info.run_id)
            child = None
            done = 0
        if child is None:
            child = self._client.create_run(
                self._experiment,
                _ms(network.began),
                {"fleet.key": network.key, "mlflow.parentRunId": parent},
                network.name,
            )
        metrics = [
            Metric(_valid_name(name), value, _ms(epoch.date), epoch.epoch)
            for epoch in network.epochs[done:]
            for name, value in epoch.values.items()
        ]
        for batch in _parts(metrics, _MAX_METRICS):
            self._client.log_batch(child.info.run_id, metrics=batch)
        status = _STATUSES.get(
            network.status, "RUNNING" if run.is_going_on and network.epochs else "SCHEDULED"
        )
        facts = {f"fleet.{name}": str(value) for name, value in network.facts.items()}
        self._update(
            child,
            network.params,
            network.files,
            {"fleet.status": str(network.status), **facts},
            status,
            network.ended,
        )
        self._client.set_tag(child.info.run_id, _WRITTEN, fingerprint)

    def _update(
        self,
        existing: Run,
        params: Mapping[str, object],
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        status: str,
        ended: float,
    ) -> None:
        """Update parameters, tags and status of a run; its files stay where they are."""
        number = existing.info.run_id
        new = [
            Param(_valid_name(name), str(value)[:_MAX_LENGTH])
            for name, value in params.items()
            if _valid_name(name) not in existing.data.params
        ]
        for batch in _parts(new, _MAX_PARAMS):
            self._client.log_batch(number, params=batch)
        uris = {name: path.absolute().as_uri() for name, path in files.items()}
        tags = {_valid_name(name): value for name, value in tags.items()}
        tags = {**tags, **{f"fleet.file.{name}": uri for name, uri in uris.items()}}
        changed = {
            name: value for name, value in tags.items() if existing.data.tags.get(name) != value
        }
        if changed:
            self._client.log_batch(
                number, tags=[RunTag(name, value[:_MAX_LENGTH]) for name, value in changed.items()]
            )
            if uris:
                self._client.log_text(number, json.dumps(uris, indent=1), "files.json")
        for name in existing.data.tags:  # a failed network may train again
            if (
                name.startswith("fleet.")
                and name not in tags
                and name not in (_WRITTEN, "fleet.key")
            ):
                self._client.delete_tag(number, name)
        if existing.info.status != status or existing.info.end_time != _ms(ended):
            if status in ("RUNNING", "SCHEDULED"):
                self._client.update_run(number, status)
            else:
                self._client.set_terminated(number, status, _ms(ended))


def _valid_name(name: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _ms(date: float) -> int:
    return round(1000 * date)
