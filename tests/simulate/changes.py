"""What people, and disks that decay, change between two launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import CheckpointError, ExitStatus
from fleet.storage.checkpoint import find_newest, read_state
from fleet.storage.paths import RunPaths
from fleet.storage.results import read_results
from tests.simulate import features

if TYPE_CHECKING:
    from tests.simulate.cases import Event
    from tests.simulate.cluster import Launch
    from tests.simulate.run import _Run

AfterLaunch = Callable[[Sequence["Launch"]], None]
_EDITED = ("mine/nets/models.py", "mine/layers.py", "simulated_helper.py")


def before_launch(run: _Run, event: Event) -> AfterLaunch:
    """Let an event happen before a launch; returns what to do once it has ended."""
    if event.kind == "damage":
        _damage(run, event)
    if event.kind == "edit code":
        return _edit_code(run, event)
    return lambda launches: None


def _damage(run: _Run, event: Event) -> None:
    """Damage or delete one of a network's checkpoints, or all."""
    paths = RunPaths(run.folder)
    names = (
        sorted(path.name for path in paths.models.glob("[!.]*")) if paths.models.exists() else []
    )
    if not names:
        return
    name = names[event.target % len(names)]
    files = (paths.last(name), paths.previous(name), paths.best(name))
    way = int(6 * event.amount)
    # The arrays of a network that has ended are not read again.
    has_ended = name in {row.name for row in read_results(run.folder) if row.reason}
    for file in files if way >= 4 else files[: 1 + (way == 3)]:
        if not file.exists():
            continue
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        if way in (0, 5):
            file.unlink()
            continue
        if way == 1 or has_ended:
            del content[middle:]
        else:
            content[middle : middle + 64] = bytes(64)
            content[-64:] = bytes(64)
        file.write_bytes(content)
    run.kernel.note("fault", f"damage {name}, way {way}")
    run.kernel.counts["damage"] += 1
    run.observer.damaged(name, _remaining(files[1:]))


def _remaining(files: Sequence[Path]) -> tuple[int, int]:
    """Return epochs and position of the first whole checkpoint among some."""
    for file in files:
        with suppress(CheckpointError):
            state = read_state(file)
            return state.epoch, state.position
    return 0, 0


def _edit_code(run: _Run, event: Event) -> AfterLaunch:
    """Edit a file of a model function; the launch must refuse to go on with old checkpoints."""
    name = _EDITED[event.target % len(_EDITED)]
    path = run.disk.shared / name
    has_checkpoint = find_newest(RunPaths(run.folder), "n0", with_arrays=False).state is not None
    path.write_text(f"{features.FILES[name]}# edited\n")
    run.kernel.counts["edited code"] += 1

    def restore(launches: Sequence[Launch]) -> None:
        path.write_text(features.FILES[name])
        statuses = [launch.status for launch in launches]
        if has_checkpoint and statuses != [ExitStatus.BAD_INPUT]:
            run.observer.object_to(f"{name} was edited, but the launch ends with {statuses}")

    return restore
