"""Compute fingerprints that decide on resuming, retrying, and reusing rates."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fleet.domain.network import Code, TrainingState
from fleet.spec import NetworkSpec, Resources, Spec, Train
from fleet.spec.model import Architecture
from fleet.storage.code import changed_files, hash_sources
from preprocess.sample import RecordSpec, SampleSpec


@dataclass(frozen=True)
class Machine:
    """Properties of a launch's ranks that determine their speed.

    Attributes:
        hardware: hardware of a node, as one line.
        ranks_per_core: number of ranks that share a core.
    """

    hardware: str
    ranks_per_core: float


_TRAIN = TypeAdapter(Train)


def training_identity(network: NetworkSpec, spec: Spec, sample: SampleSpec) -> str:
    """Return a fingerprint of all that shapes a network's training.

    Only a network of the same identity resumes from a checkpoint: another optimizer, another
    architecture under the same name, or other transforms are refused. `stopping` and
    `deterministic` may change, because users want to train longer or reproduce results; paths may
    change, because data sets are moved.

    Args:
        network: the network to identify.
        spec: spec of the run.
        sample: shape and type of the inputs.
    """
    data = spec.data_by_pipeline[network.pipeline]
    first = next(iter(spec.data_by_pipeline.values()))
    test = data.test if isinstance(data.test, float) else None  # a share of the training samples
    is_divided = data.folds is not None or isinstance(data.validation, float) or test is not None
    # Keys of what was added since 0.1.0 exist only if they say something.
    added = {
        "shards": data.shards if data.order == "ring" else None,
        "test": test,
        "target": data.target,
        "together": data.together or None,
        "pad": {name: asdict(pad) for name, pad in data.pad.items()} or None,
        "collate": data.collate,
        # split by the targets of another pipeline
        "divided": first.target if is_divided and first.target != data.target else None,
        "fold": None if network.fold is None else [network.fold, data.folds],
    }
    train = _TRAIN.dump_python(
        replace(network.train, start=network.train.initial_weights), mode="json"
    )
    # `deterministic` only determines the order of sums.
    for changeable in ("stopping", "deterministic", "build_timeout"):
        train.pop(changeable)
    if train["batch"]["accumulate"] == 1:
        del train["batch"]["accumulate"]
    if not network.train.batch.is_elastic:
        del train["batch"]["learning_rate"]  # unused
    train["optimizer"] = {
        key: value
        for key, value in train["optimizer"].items()
        if value is not None or key in _OPTIMIZER_BEFORE
    }
    train = {
        key: value for key, value in train.items() if key not in _LATER or value != _LATER[key]
    }
    return _hash(
        {
            "architecture": network.architecture.key,
            "seed": network.seed,
            "train": train,
            "engine": spec.resources.engine,
            "source": data.source,
            "options": data.options,
            "transforms": data.transforms,
            "validation": None if isinstance(data.validation, str) else data.validation,
            "inputs": sample.for_pipeline(network.pipeline, network.fold).identity(),
            **{key: value for key, value in added.items() if value is not None},
        }
    )


# Settings of training that are newer than 0.1.0, with their defaults: checkpoints of 0.1.0, which
# lack them, remain valid.
_OPTIMIZER_BEFORE = (
    "momentum",
    "nesterov",
    "beta_1",
    "beta_2",
    "epsilon",
    "weight_decay",
    "global_clipnorm",
)
_LATER: dict[str, Any] = {
    "loss": None,
    "loss_weights": None,
    "metrics": [],
    "label_smoothing": 0.0,
    "class_weights": None,
    "start": None,
    "step": None,
    "optimizers": None,
    "compile": False,
    "batch_transforms": [],
}


def trial_identity(
    network: NetworkSpec, spec: Spec, sample: SampleSpec, spec_folder: Path = Path()
) -> str:
    """Return a fingerprint of all that may decide whether a network fails.

    This is its training identity, the number of GPUs that share it, and the files of its ``build:``
    function and of a custom engine.

    Args:
        network: the network to identify.
        spec: spec of the run.
        sample: shape and type of the inputs.
        spec_folder: folder of the spec.
    """
    engine = hash_sources(spec.resources.engine, spec_folder)
    start = network.train.initial_weights
    return _hash(
        {
            "identity": training_identity(network, spec, sample),
            "gpus": [network.min_gpus, network.max_gpus],
            "build_timeout": network.train.build_timeout,
            "code": code_of(
                network,
                spec,
                {path: hash_sources(path, spec_folder) for path in _code_paths(network, spec)},
            ),
            **({"engine": engine} if engine else {}),
            # A file that is missing now may exist next time, or not be needed.
            **({"start": file_checksum(Path(start.file)) or uuid.uuid4().hex} if start else {}),
        }
    )


def file_checksum(file: Path) -> str:
    """Return the beginning of a file's SHA-256; empty if it cannot be read."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:16]
    except OSError:
        return ""


def find_changes(
    network: NetworkSpec, spec: Spec, sample: SampleSpec, code: Code, state: TrainingState
) -> list[str] | None:
    """Return what has changed of a network since a checkpoint: ``args``, and files.

    Args:
        network: the network to compare.
        spec: spec of the run.
        sample: shape and type of the inputs.
        code: current files of its function.
        state: state of the checkpoint, possibly without arrays.

    Returns:
        None if the settings differ. Files of a checkpoint of 0.1.0 are unknown.
    """
    changed = []
    if state.identity != training_identity(network, spec, sample):
        if not state.architecture or network.architecture.kind != "import":
            return None
        before = replace(network, architecture=Architecture(**json.loads(state.architecture)))
        if before.architecture.kind != "import" or state.identity != training_identity(
            before, spec, sample
        ):
            return None
        changed.append(
            "args" if before.architecture.target == network.architecture.target else "build"
        )
    return changed + changed_files(code if state.code is None else state.code, code)


def hash_all_sources(spec: Spec, spec_folder: Path) -> dict[str, Code]:
    """Return the files of all functions that define networks and of the engine, by import path.

    Args:
        spec: spec of the run.
        spec_folder: folder of the spec.
    """
    paths = {spec.resources.engine}
    paths |= {path for network in spec.networks for path in _code_paths(network, spec)}
    paths |= {entry.target for entry in spec.searches.values()}
    return {path: hash_sources(path, spec_folder) for path in paths}


def _code_paths(network: NetworkSpec, spec: Spec) -> tuple[str, ...]:
    """Return the import paths of a network's functions, and of that which makes its inputs."""
    if spec.data.collate is None:
        return network.code_paths
    return (*network.code_paths, spec.data.collate)


def code_of(network: NetworkSpec, spec: Spec, codes: Mapping[str, Code]) -> Code:
    """Return the files that define a network: of its ``build:`` function, own step and collate.

    Args:
        network: the network.
        spec: spec of the run.
        codes: hashes from :func:`hash_all_sources`.

    Returns:
        An empty mapping if they are unknown.
    """
    return {
        file: checksum
        for path in _code_paths(network, spec)
        for file, checksum in (codes.get(path) or {}).items()
    }


def speed_identity(
    network: NetworkSpec,
    resources: Resources,
    sample: SampleSpec,
    machine: Machine,
    codes: Mapping[str, Code],
) -> str:
    """Return a fingerprint of all that determines how fast a network trains.

    Args:
        network: the network to identify.
        resources: resources of the spec.
        sample: shape and type of the inputs.
        machine: the machine on which it trains.
        codes: hashes from :func:`hash_all_sources`.
    """
    inputs = sample.for_pipeline(network.pipeline)
    finish = {} if inputs.deferred_input is None else {"finish": "device"}
    collate = inputs.input.collate if isinstance(inputs.input, RecordSpec) else ""
    return _hash(
        {
            "architecture": network.architecture.key,
            "batch": network.train.batch.size,
            "when_scaled": network.train.batch.when_scaled,
            "precision": network.train.precision,
            "xla": network.train.xla,
            **({"compile": True} if network.train.compile else {}),
            "optimizer": network.train.optimizer.name,
            "deterministic": network.train.deterministic,
            "engine": resources.engine,
            "exchange": resources.exchange,
            "inputs": inputs.identity(),
            "hardware": machine.hardware,
            **finish,
            **({"collate": codes.get(collate)} if collate else {}),
            "ranks_per_core": f"{machine.ranks_per_core:.3g}",
            "code": [codes.get(path) or None for path in (*network.code_paths, resources.engine)],
        }
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
