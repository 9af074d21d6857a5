"""A run in a store of MLflow: a parent, and a child for each network.

A tag says which epochs are in the store already. A child whose epochs are others by now, because the network went back
or was started over, is deleted there and written anew.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from fleet.export.tracked_run import TrackedNetwork, TrackedRun
from fleet.storage.results import Status

T = TypeVar("T")

_DATABASE = "mlflow.db"
_STATUSES = {Status.FINISHED: "FINISHED", Status.PRUNED: "KILLED", Status.FAILED: "FAILED"}
_WRITTEN = "fleet.written"  # a tag: how many epochs are there, and what these are known by
# of a batch, and of a value: more than the store takes
_MOST_METRICS = 1000
_MOST_PARAMS = 100
_LONGEST = 5000


def write(run: TrackedRun, path: Path) -> None:
    """Add to a store what is missing there of a run."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    path.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(*[f"sqlite:///{path.absolute() / _DATABASE}"] * 2)
    store = _Store(client, _experiment(client, run.name, path))
    parent = store.parent(run)
    there = {
        found.data.tags.get("fleet.key", ""): found for found in store.children(parent.info.run_id)
    }
    for network in run.networks:
        store.write(run, network, parent.info.run_id, there.get(network.key))


def _experiment(client: MlflowClient, name: str, path: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found:
        return found.experiment_id
    return client.create_experiment(
        name, artifact_location=(path.absolute() / "artifacts").as_uri()
    )


class _Store:
    """An experiment in a store."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client = client
        self._experiment = experiment

    def parent(self, run: TrackedRun) -> Run:
        """The run itself, as it is now."""
        found = self._search(f"tags.fleet.key = '{run.key}'")
        if found:
            parent = found[0]
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
        self._say(
            parent,
            run.params,
            run.files,
            {"fleet.networks": str(len(run.networks))},
            status,
            run.ended,
        )
        return parent

    def children(self, parent: str) -> list[Run]:
        """The networks that are there."""
        return self._search(f"tags.mlflow.parentRunId = '{parent}'")

    def _search(self, asked: str) -> list[Run]:
        found = list[Run]()
        token = None
        while token or not found:
            page = self._client.search_runs([self._experiment], asked, page_token=token)
            found += page
            token = page.token
            if not token:
                break
        return found

    def write(
        self, run: TrackedRun, network: TrackedNetwork, parent: str, child: Run | None
    ) -> None:
        """Add to a network what it lacks."""
        wanted = f"{len(network.epochs)} {network.fingerprint}"
        written = "" if child is None else child.data.tags.get(_WRITTEN, "")
        if written == wanted:
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
            Metric(_named(name), value, _ms(one.date), one.epoch)
            for one in network.epochs[done:]
            for name, value in one.values.items()
        ]
        for some in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(child.info.run_id, metrics=some)
        status = _STATUSES.get(
            network.status, "RUNNING" if run.is_going_on and network.epochs else "SCHEDULED"
        )
        about = {f"fleet.{name}": str(value) for name, value in network.facts.items()}
        self._say(
            child,
            network.params,
            network.files,
            {"fleet.status": str(network.status), **about},
            status,
            network.ended,
        )
        self._client.set_tag(child.info.run_id, _WRITTEN, wanted)

    def _say(
        self,
        there: Run,
        params: Mapping[str, object],
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        status: str,
        ended: float,
    ) -> None:
        """What holds for all of a run; its files stay where they are."""
        number = there.info.run_id
        new = [
            Param(_named(name), str(value)[:_LONGEST])
            for name, value in params.items()
            if _named(name) not in there.data.params
        ]
        for some in _parts(new, _MOST_PARAMS):
            self._client.log_batch(number, params=some)
        places = {name: path.absolute().as_uri() for name, path in files.items()}
        tags = {_named(name): value for name, value in tags.items()}
        tags = {**tags, **{f"fleet.file.{name}": place for name, place in places.items()}}
        changed = {
            name: value for name, value in tags.items() if there.data.tags.get(name) != value
        }
        if changed:
            self._client.log_batch(
                number, tags=[RunTag(name, value[:_LONGEST]) for name, value in changed.items()]
            )
            if places:
                self._client.log_text(number, json.dumps(places, indent=1), "files.json")
        for name in there.data.tags:  # a network that failed may train again
            if (
                name.startswith("fleet.")
                and name not in tags
                and name not in (_WRITTEN, "fleet.key")
            ):
                self._client.delete_tag(number, name)
        if there.info.status != status or there.info.end_time != _ms(ended):
            if status in ("RUNNING", "SCHEDULED"):
                self._client.update_run(number, status)
            else:
                self._client.set_terminated(number, status, _ms(ended))


def _named(name: str) -> str:
    """A name that MLflow takes: it knows no brackets, for instance."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(items: list[T], most: int) -> Iterator[list[T]]:
    return (items[begin : begin + most] for begin in range(0, len(items), most))


def _ms(date: float) -> int:
    return round(1000 * date)
