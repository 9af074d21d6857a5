"""The Python API: build a spec in code, write it as YAML, run it, read the results.

For example::

    from fleet.api import *

    space = {"dropout": Range(0, 0.5)}
    entry = ModelEntry(family="cnn", search=Search(max_trials=8), space=space)
    write_spec(Document(models=(entry,), data=Data(source="builtin:digits")), "search.yaml")
    run("search.yaml", ranks=5)
    best = read_results("runs/ensemble")[0]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fleet import local_launch
from fleet.api_help import HelpModule, name_meant_keys
from fleet.errors import (
    EXPLAINED,
    ExitStatus,
    FleetError,
    InfrastructureError,
    SpecError,
    UserError,
)
from fleet.live_run import Report, Running, clone
from fleet.local_launch import mpirun
from fleet.monitor.run_history import NetworkEpoch, read_history
from fleet.monitor.view import NotebookView
from fleet.prediction.ensembles import EnsembleResult, read_ensembles
from fleet.predictor import Predictor
from fleet.runtime.warm_start import read_prior_trials as read_earlier
from fleet.search.calls import AddPriorTrial
from fleet.spec import (
    Batch,
    Budget,
    Checkpoint,
    Choices,
    Data,
    Document,
    EntryData,
    ModelEntry,
    Objective,
    Optimizer,
    Pad,
    Prior,
    Profile,
    Prune,
    Range,
    Resources,
    Schedule,
    Search,
    Spec,
    Start,
    Stopping,
    Target,
    Train,
    dump,
    load,
    parse,
)
from fleet.spec.conditions import dependency_order, is_active
from fleet.spec.section import is_section
from fleet.spec.space import space_of
from fleet.storage.event_log import first_line, launch_status, log_position
from fleet.storage.files import atomic_write
from fleet.storage.paths import RunPaths
from fleet.storage.results import NetworkResult, Status, read_results
from launch.mpirun_messages import PATIENCE_S, start
from launch.stale_files import remove_leftovers

__all__ = [
    "Batch",
    "Budget",
    "Checkpoint",
    "Choices",
    "Data",
    "Document",
    "EnsembleResult",
    "EntryData",
    "ExitStatus",
    "FleetError",
    "ModelEntry",
    "NetworkEpoch",
    "NetworkResult",
    "Objective",
    "Optimizer",
    "Pad",
    "Predictor",
    "Prior",
    "Profile",
    "Prune",
    "Range",
    "Report",
    "Resources",
    "Running",
    "Schedule",
    "Search",
    "Spec",
    "SpecError",
    "Start",
    "Status",
    "Stopping",
    "Target",
    "Train",
    "UserError",
    "clone",
    "dependency_order",
    "dump",
    "is_active",
    "launch",
    "load",
    "mpirun",
    "parse",
    "read_ensembles",
    "read_history",
    "read_known",
    "read_results",
    "run",
    "write_spec",
]

sys.modules[__name__].__class__ = HelpModule
for _section in filter(is_section, tuple(globals().values())):
    name_meant_keys(_section)


def write_spec(spec: Document | Mapping[str, Any], path: str | Path) -> Spec:
    """Validate a spec that was built in code, and write it as YAML.

    Args:
        spec: a document, or a mapping with the keys of a spec file.
        path: path of the file.

    Returns:
        The spec with its networks drawn and named.

    Raises:
        SpecError: the spec is invalid; the message lists all mistakes.
    """
    resolved = parse(spec)
    with atomic_write(Path(path)) as file:
        file.write(dump(resolved.document))
    return resolved


def read_known(
    run: str | Path, space: Mapping[str, Any], monitor: str = "val_accuracy", mode: str = "maximize"
) -> list[AddPriorTrial]:
    """Return the results of a run as prior trials, as `search: {warm_start: [RUN]}` does.

    Args:
        run: the run's folder.
        space: name -> list of choices, or a mapping of the attributes of a range.
        monitor: the monitored loss, accuracy or metric.
        mode: ``maximize`` or ``minimize``.

    Returns:
        The networks that have ended and whose values fit the space: ``name``, ``values``, ``curve``
        (the monitored value of each epoch), ``outcome`` and the best ``value``.

    Raises:
        UserError: there is no run, or the space is malformed.
    """
    return read_earlier(run, space_of(space), ((monitor, mode),))[0]


def run(
    spec: str | Path,
    ranks: int,
    *arguments: str,
    launcher: Sequence[str] | None = None,
    log: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ExitStatus:
    """Start a launch, wait for it, and show its output.

    Ctrl-C stops it with everything saved (RESUMABLE); a second one kills it. Messages of mpirun
    about statuses that the launch has explained are left out.

    Args:
        spec: a spec file.
        ranks: number of processes: one preprocessor and the rest trainers, unless the spec sets
            ``resources.preprocessors``.
        arguments: further arguments of ``python -m fleet.run``, such as ``--fresh``.
        launcher: the command to use instead of :func:`mpirun`, up to the Python interpreter;
            ``mpirun(ranks, survive=True)`` for a launch that continues if trainers die.
        log: an open file for the output, instead of standard output.
        environment: further environment variables.

    Returns:
        Whether all networks finished (OK), some failed, or the run was stopped and can be resumed.

    Raises:
        UserError: the spec or an argument is invalid; the reason was printed.
        InfrastructureError: the launch failed; the report was printed.
        KeyboardInterrupt: the user pressed Ctrl-C twice, or before the launch had begun.
    """
    status, ended = local_launch.run([str(spec), *arguments], ranks, launcher, log, environment)
    return _checked_status(spec, status, ended)


def launch(
    spec: str | Path,
    ranks: int,
    *arguments: str,
    launcher: Sequence[str] | None = None,
    log: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Running:
    """Start a launch and return while it runs, to add, watch and prune networks meanwhile.

    It shows a live table on a terminal or in a cell of a notebook; there in the end the results.

    Args:
        spec: a spec file. With `keep_open` it may list no networks, and the launch waits for more
            when all have ended.
        ranks, arguments, launcher, log, environment: as for :func:`run`.

    Returns:
        The launch, a context manager that waits for it at the end.

    Raises:
        SpecError: the spec is invalid.
    """
    events = local_launch.paths_of([str(spec), *arguments]).events
    before = log_position(events)
    stale = first_line(events) if "--fresh" in arguments else b""
    in_notebook = log is None and NotebookView.is_notebook()
    out = open(os.devnull, "w") if in_notebook else log  # noqa: SIM115 (open until the launch ends)
    process, output_thread = start(
        local_launch.command([str(spec), *arguments], ranks, launcher),
        EXPLAINED,
        out,
        local_launch.environment(environment),
        _to_cell if in_notebook else lambda text: None,
    )

    def end(status: int) -> ExitStatus:
        output_thread.join(PATIENCE_S)
        if in_notebook and out is not None:
            out.close()
        remove_leftovers()
        return _checked_status(spec, launch_status(status, events, before), status)

    running = Running(process, RunPaths(load(spec).output), 0 if stale else before[1], end, stale)
    if in_notebook:
        running.show_table()
    return running


def _to_cell(text: bytes) -> None:
    """Show error messages of a launch in a notebook, where the table replaces all other output."""
    sys.stderr.write(text.decode(errors="replace"))


def _checked_status(spec: str | Path, status: int, ended: int) -> ExitStatus:
    """Return the status of a launch that has trained networks, or can be resumed.

    Args:
        spec: the spec file.
        status: status of the launch.
        ended: status of its launcher.

    Raises:
        UserError, InfrastructureError: see :func:`run`.
    """
    if status == ExitStatus.BAD_INPUT:
        raise UserError(f"{spec} cannot be run")
    if status not in (ExitStatus.OK, ExitStatus.NETWORK_FAILED, ExitStatus.RESUMABLE):
        if ended:
            how = f"ended with status {ended}"
        else:
            how = "was killed, perhaps with its node; run it again to resume it"
        raise InfrastructureError(f"the run of {spec} {how}")
    return ExitStatus(status)
