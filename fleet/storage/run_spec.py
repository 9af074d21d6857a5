"""The spec of a run, as its folder keeps it."""

from __future__ import annotations

from fleet.domain.events import Started
from fleet.errors import UserError
from fleet.plugins import look_last_in
from fleet.spec import Spec, load
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths


def spec_of(paths: RunPaths) -> Spec:
    """The spec of a run; modules that it names are found where its launches found them, too.

    Raises:
        UserError: the folder is no run's, or the spec cannot be read.
    """
    if not paths.spec.is_file():
        raise UserError(f"{paths.root} has no {paths.spec.name}: it is no run, or has not begun")
    for start in (start for log in paths.event_logs() for start in events_of(log, Started)):
        for folder in start.folders:
            look_last_in(folder)
    return load(str(paths.spec), paths.root)
