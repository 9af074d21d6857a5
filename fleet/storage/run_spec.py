"""Read the spec of a run from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.domain.events import LaunchStarted
from fleet.errors import SpecError, UserError
from fleet.plugins import append_import_path
from fleet.spec import NetworkSpec, Spec, load
from fleet.spec.engine_keys import RATE_OF_0_2
from fleet.spec.entries import with_extreme_networks
from fleet.spec.schema import Document
from fleet.spec.yaml_file import read_yaml
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from fleet.storage.results import describe_spec_as_run
from fleet.vocabulary.torch_optimizers import changed_arguments


def load_run_spec(paths: RunPaths) -> Spec:
    """Return the spec of a run; its modules are also imported from the folders of its launches.

    Raises:
        UserError: the folder holds no run, or the spec cannot be read.
    """
    if not paths.spec.is_file():
        raise UserError(
            f"{paths.root} has no {paths.spec.name}: it is no run, or has not begun"
            f"{describe_spec_as_run(paths.root)}"
        )
    for start in (start for log in paths.event_logs() for start in events_of(log, LaunchStarted)):
        for folder in start.folders:
            append_import_path(folder)
    return load(str(paths.spec), paths.root, **_defaults_of(paths))


def spec_for_run(
    path: str | Path, run: RunPaths | None = None, is_fresh: bool = False
) -> tuple[Spec, str]:
    """Read a spec file, with the defaults of the FLEET version that began its run.

    Args:
        path: path of the spec.
        run: the run that it is for; by default the one of its ``output``.
        is_fresh: True if the run starts over.

    Returns:
        The spec, and a line on defaults that differ from today's; empty if none does.

    Raises:
        SpecError: with every mistake, each with file, line and key.
    """
    spec = load(path)
    paths = run or RunPaths(Path(spec.output))
    defaults = {} if is_fresh else _defaults_of(paths)
    if not defaults:
        return spec, ""
    as_begun = load(path, **defaults)
    if as_begun.engine.had_keras_optimizers:
        return as_begun, (
            f"{paths.root} began with FLEET 0.2, so its optimizers keep the formulas and defaults "
            "of Keras; in new runs, and with --fresh, they are those of torch.optim"
        )
    if _networks_of(as_begun) == _networks_of(spec):
        return as_begun, ""
    return as_begun, (
        f"{paths.root} began with FLEET 0.2, so the default learning rate stays {RATE_OF_0_2} "
        "there; in new runs, and with --fresh, it is the optimizer's default"
    )


def changed_defaults(spec: Spec) -> str:
    """Return a line on optimizers that mean something else than in FLEET 0.2; empty if none does.

    With the engine torch these are now PyTorch's. A spec that sets ``defaults`` knows.
    """
    if not spec.engine.had_keras_optimizers or ("defaults",) in spec.origin.lines:
        return ""
    changes: dict[str, None] = {}
    for network in spec.networks:
        optimizer = network.train.optimizer
        for change in changed_arguments(optimizer):
            changes.setdefault(f"{optimizer.name}: {change}")
    if not changes:
        return ""
    return (
        "optimizers of the engine torch are those of torch.optim, with its defaults, no longer "
        f"Keras' as in FLEET 0.2 ({'; '.join(changes)}); write `defaults: 0.2` to keep these, or "
        "`defaults: 0.3` to silence this line"
    )


def _networks_of(spec: Spec) -> tuple[NetworkSpec, ...]:
    """Return the networks of a spec, and those at the bounds of its search spaces."""
    return *spec.networks, *with_extreme_networks(spec).networks


def _defaults_of(paths: RunPaths) -> dict[str, Any]:
    """Return the key of a spec that selects a run's defaults; empty for today's."""
    if not (paths.marker.exists() and paths.spec.is_file()):
        return {}
    try:
        saved, _ = read_yaml(paths.spec)
    except SpecError:  # damaged: the next launch rewrites it
        return {}
    version = str(saved.get("defaults", "0.2"))
    if version == Document.defaults:
        return {}
    return {"defaults": version}
