"""Import engines by their entries in the table of engines; no other module imports an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fleet.engines.base import Engine, EngineContext, ExportedEnsemble, Slot
from fleet.errors import FleetError, NotInstalledError, SpecError, SpecMistake, UserError
from fleet.gc_pause import paused_collection
from fleet.plugins import load_object
from fleet.spec import NetworkSpec, Spec
from fleet.spec.by_target import list_metrics
from fleet.spec.engines import ENGINES, EngineInfo
from fleet.spec.layers import count_for
from fleet.spec.measures import name_of
from fleet.spec.model import one_line, wrapping_errors
from fleet.storage.files import atomic_write_with
from fleet.vocabulary.measures import canonical_name
from preprocess.import_path import import_own
from preprocess.record_target import RecordTarget
from preprocess.sample import SampleSpec
from preprocess.user_code import UserCode
from scheduler.base import RateTable, Span


def make_engine(
    spec: Spec,
    sample: SampleSpec,
    rates: RateTable | None,
    index: int,
    trainers: int,
    slot: Slot = Slot(),  # noqa: B008
    pin: Callable[[Any], object] = lambda memory: None,
    span_of: Callable[[Sequence[int]], Span] = lambda ranks: Span.ANY,
) -> Engine:
    """Return the engine that a spec names.

    Args:
        spec: spec of the run.
        sample: shape and type of the inputs.
        rates: training rates of the networks, if known.
        index: index of this trainer's GPU on its node.
        trainers: number of trainers on this node; without GPUs they share its cores.
        slot: this trainer's share of the GPU.
        pin: registers memory with the GPU's driver.
        span_of: ranks of a group -> how their GPUs lie on nodes.

    Raises:
        UserError: a custom engine does not exist, or its function returns something else.
    """
    engine = _load_function(spec.engine, spec.engine.make)(
        EngineContext(
            sample,
            spec.resources,
            rates,
            index,
            trainers,
            deterministic=any(network.train.deterministic for network in spec.networks),
            slot=slot,
            folder=Path(spec.output).absolute(),
            pin=pin,
            transforms={feed: data.transforms for feed, data in spec.data_by_pipeline.items()},
            defaults=spec.document.defaults,
            span_of=span_of,
        )
    )
    missing = [name for name in ("exchange_name", "build") if not hasattr(engine, name)]
    if missing:
        raise UserError(
            f"resources.engine: {spec.resources.engine} returns a {type(engine).__name__}, which "
            f"has no {' and no '.join(missing)}; it should return an engine as fleet.engines.base "
            "defines it"
        )
    return engine


def check_installed(engine: EngineInfo) -> None:
    """Check that the library of an engine is installed, without importing it.

    Raises:
        NotInstalledError: it is not installed.
    """
    if engine.library and find_spec(engine.library) is None:
        raise _not_installed_error(engine, f"No module named {engine.library!r}")


def check_metrics_installed(spec: Spec) -> None:
    """Check that the packages of the metrics that a spec names are installed.

    Raises:
        SpecError: one is not.
    """
    mistakes: dict[SpecMistake, None] = {}
    for network in spec.networks:
        for metric in list_metrics(network.train.metrics):
            word = spec.engine.words.metrics.get(canonical_name(name_of(metric)))
            if word is not None and word.package and find_spec(word.package) is None:
                mistake = spec.origin.mistake(
                    spec.place_of(network.entry, ("train", "metrics")),
                    f"{name_of(metric)} is a metric of {word.package}, which is not installed",
                    f"install it: pip install {word.package}",
                )
                mistakes[mistake] = None
    if mistakes:
        raise SpecError(list(mistakes))


def import_engine(engine: EngineInfo) -> None:
    """Import an engine, which may take seconds."""
    _load_function(engine, engine.make)


def count_network_parameters(network: NetworkSpec, spec: Spec, sample: SampleSpec) -> int | None:
    """Return the number of parameters of a network; None if it is unknown before building.

    Args:
        network: network whose parameters are counted.
        spec: spec of the run.
        sample: shape and type of the inputs.

    Raises:
        UserError: the network cannot be built, or a library is missing; the message names the
            network.
    """
    try:
        return count_parameters(network, spec, sample)
    except NotInstalledError:
        raise
    except FleetError as error:
        raise UserError(f"{network.name}: {error}") from error
    except Exception as error:  # the user's function may raise anything
        raise UserError(
            f"{network.name}: {network.architecture.target}: {one_line(error)}"
        ) from error


def count_parameters(network: NetworkSpec, spec: Spec, sample: SampleSpec) -> int | None:
    """Count like :func:`count_network_parameters`, but let errors of user code pass through.

    Args:
        network: network whose parameters are counted.
        spec: spec of the run.
        sample: shape and type of the inputs.
    """
    sample = sample.for_pipeline(network.pipeline)
    architecture = network.architecture
    shape = sample.input_shape
    if architecture.kind == "family":
        return count_for(architecture.settings, sample)
    if spec.engine.count_parameters is None:
        return None
    count = _load_function(spec.engine, spec.engine.count_parameters)
    with UserCode().running():
        return int(count(architecture, shape, sample.target.model_outputs, network.seed))


def load_ensemble(
    spec: Spec, files: Sequence[Path], weights: Sequence[float], kind: str | RecordTarget
) -> ExportedEnsemble:
    """Load several exported networks of a run as one.

    Args:
        spec: spec of the run.
        files: the exports.
        weights: weight of each network; they sum to 1.
        kind: kind of the targets (:mod:`preprocess.target`); or several targets.

    Raises:
        UserError: the engine cannot load its exports, or one of the files cannot be loaded.
    """
    if spec.engine.join is None:
        raise UserError(
            f"resources.engine: exports of the engine {spec.engine.name} cannot be loaded again; "
            f"use {' or '.join(name for name, engine in ENGINES.items() if engine.join)}"
        )
    join = _load_function(spec.engine, spec.engine.join)
    with UserCode().running():
        ensemble: ExportedEnsemble = join(files, weights, kind)
    return ensemble


def write_onnx(engine: EngineInfo, file: Path, path: Path) -> None:
    """Write an exported network as ONNX.

    Args:
        engine: the engine that wrote the export.
        file: the export.
        path: path of the ONNX file.

    Raises:
        UserError: the engine does not support it, the network cannot be converted, or a library is
            missing.
        StorageError: the file cannot be written.
    """
    if engine.to_onnx is None:
        raise UserError(
            f"--onnx: the {engine.name} engine cannot write ONNX; use "
            f"{' or '.join(name for name, engine in ENGINES.items() if engine.to_onnx)}"
        )
    write = _load_function(engine, engine.to_onnx)
    with wrapping_errors(f"{file} cannot be written as ONNX:", UserError):
        atomic_write_with(path, lambda temporary: write(file, temporary))


def find_engine_problems(
    engine: EngineInfo, gpus: Sequence[str], exchange: str
) -> list[tuple[str, str]]:
    """Return problems of an engine's libraries on this node; imports the libraries.

    Args:
        engine: engine whose libraries are examined.
        gpus: names of the GPUs of this node.
        exchange: ``resources.exchange`` of the spec.

    Returns:
        Pairs of a problem and its remedy.
    """
    if engine.problems is None:
        return []
    problems: list[tuple[str, str]] = _load_function(engine, engine.problems)(gpus, exchange)
    return problems


def _load_function(engine: EngineInfo, function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that an engine's table entry names."""
    if not isinstance(function, str):
        return function
    if not function.startswith("."):
        return load_object(function, "engine")
    try:
        with paused_collection(), hiding_packages(*engine.unwanted):
            return import_own(function, "fleet.engines")
    except ModuleNotFoundError as error:
        if not engine.extra:
            raise
        raise _not_installed_error(engine, str(error)) from error


def _not_installed_error(engine: EngineInfo, message: str) -> NotInstalledError:
    return NotInstalledError(
        f"{message}; the {engine.name} engine requires: pip install "
        f"'fleet-ensemble[{engine.extra}]'"
    )


@contextmanager
def hiding_packages(*packages: str) -> Iterator[None]:
    """Make packages look uninstalled inside the context, unless they are already imported."""
    hidden = [package for package in packages if package not in sys.modules]
    # An import of a module that is None raises ModuleNotFoundError.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
