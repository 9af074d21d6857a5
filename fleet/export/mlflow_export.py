"""Write a run to an MLflow store: a parent, and a child for each network.

A tag records which epochs are in the store already. If the epochs of a child have changed, because
the network resumed from an earlier checkpoint or was started over, it is deleted and written again.

The parent has the numbers of the best network, and, when all networks have ended, that network as a
model with the flavor ``python_function`` (:class:`fleet.predictor.Predictor`), and with Keras also
``keras``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.models import Model
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from fleet.export.tracked_run import TrackedModel, TrackedNetwork, TrackedRun
from fleet.storage.results import Status

T = TypeVar("T")

_DATABASE = "mlflow.db"
_STATUSES = {Status.FINISHED: "FINISHED", Status.PRUNED: "KILLED", Status.FAILED: "FAILED"}
_WRITTEN = "fleet.written"  # tag: number of written epochs, and their fingerprint
_MODEL = "model"  # folder of the best network among the artifacts
# Tags: the fingerprint of the best network, and MLflow's own list of models.
_MODEL_TAGS = ("fleet.model", "mlflow.log-model.history")
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
                self._experiment, _ms(run.began), {"fleet.key": run.key, **_origin(run)}, run.name
            )
        if run.is_over:
            status = "FINISHED"
        elif run.is_going_on:
            status = "RUNNING"
        else:
            status = "SCHEDULED"
        drawn = {} if run.best_network is None else run.best_network.drawn
        tags = {
            "fleet.networks": str(len(run.networks)),
            **{f"fleet.{name}": str(value) for name, value in run.facts.items()},
            **({"fleet.best": run.best} if run.best else {}),
            **{f"fleet.best.{name}": str(value) for name, value in drawn.items()},
            **self._add_model(run, parent),
            **_origin(run),
        }
        self._update(parent, run.params, run.files, tags, status, run.ended)
        epochs = sum(len(network.epochs) for network in run.networks)
        self._add_numbers(parent, run.numbers, run.ended, epochs)
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
                {"fleet.key": network.key, "mlflow.parentRunId": parent, **_origin(run)},
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
            {"fleet.status": str(network.status), **facts, **_origin(run)},
            status,
            network.ended,
        )
        self._add_numbers(child, network.numbers, network.ended, len(network.epochs))
        self._client.set_tag(child.info.run_id, _WRITTEN, fingerprint)

    def _add_numbers(
        self, existing: Run, numbers: Mapping[str, float], date: float, step: int
    ) -> None:
        """Add the numbers of a run that have changed, as metrics."""
        changed = [
            Metric(_valid_name(name), value, _ms(date), step)
            for name, value in numbers.items()
            if existing.data.metrics.get(_valid_name(name)) != value
        ]
        for batch in _parts(changed, _MAX_METRICS):
            self._client.log_batch(existing.info.run_id, metrics=batch)

    def _add_model(self, run: TrackedRun, parent: Run) -> dict[str, str]:
        """Add the best network to the artifacts of a run once all have ended; return its tags."""
        number = parent.info.run_id
        tags = {name: parent.data.tags[name] for name in _MODEL_TAGS if name in parent.data.tags}
        if run.model is None or not run.is_over:
            return tags
        fingerprint = _fingerprint(run.model)
        if tags.get(_MODEL_TAGS[0]) == fingerprint:
            return tags
        model = Model(artifact_path=_MODEL, run_id=number)
        model.add_flavor(
            "python_function",
            loader_module="fleet.predictor",
            data="run",
            python_version=platform.python_version(),
        )
        if run.model.keras:
            # MLflow adds the suffix .keras itself.
            model.add_flavor("keras", data=str(Path("run", run.model.keras).with_suffix("")))
        with tempfile.TemporaryDirectory() as aside:
            for name, file in run.model.files.items():
                target = Path(aside, "run", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.absolute())
            model.save(Path(aside, "MLmodel"))
            if tags:  # of another network, whose files would remain
                get_artifact_repository(parent.info.artifact_uri).delete_artifacts(_MODEL)
            self._client.log_artifacts(number, aside, _MODEL)
        return {_MODEL_TAGS[0]: fingerprint, _MODEL_TAGS[1]: json.dumps([model.to_dict()])}

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


def _origin(run: TrackedRun) -> dict[str, str]:
    """Return MLflow's own tags of who started a run and by which command."""
    source = str(run.facts.get("command") or run.files.get("spec.yaml", run.name))
    return {
        "mlflow.user": run.user,
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
    }


def _fingerprint(model: TrackedModel) -> str:
    """Return the name of a network, and what changes whenever its files change."""
    files = {name: path.stat() for name, path in model.files.items()}
    content = sorted((name, file.st_size, file.st_mtime_ns) for name, file in files.items())
    return f"{model.network} {hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"


def _valid_name(name: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _ms(date: float) -> int:
    return round(1000 * date)
