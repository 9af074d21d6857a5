"""What people, and disks that decay, change between two launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fleet.errors import CheckpointError, ExitStatus
from fleet.storage.checkpoint import find_newest, read_state
from fleet.storage.paths import RunPaths
from fleet.storage.results import Status, read_results
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
    if event.kind == "lose best":
        _lose_best(run)
    if event.kind == "ask too much":
        return _ask_too_much(run, event)
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
    if way == 6:  # the table of its epochs is lost, too
        paths.history(name).unlink(missing_ok=True)
    for file in files if way >= 4 else files[: 1 + (way == 3)]:
        if not file.exists():
            continue
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        if way in (0, 5, 6):
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


def _lose_best(run: _Run) -> None:
    """Delete the best checkpoint of a network whose last epoch is its best."""
    paths = RunPaths(run.folder)
    for row in read_results(run.folder) if paths.results.exists() else ():
        if row.status is Status.FINISHED and row.best_epoch == row.epochs:
            paths.best(row.name).unlink(missing_ok=True)
            run.kernel.note("fault", f"the best checkpoint of {row.name} is lost")
            run.kernel.counts["lost best"] += 1
            run.observer.damaged(row.name, _remaining([paths.last(row.name)]))
            return


def _ask_too_much(run: _Run, event: Event) -> AfterLaunch:
    """Ask for more GPUs, or a larger batch, than there are; the launch must refuse it."""
    spec = run.spec.read_text()
    content = yaml.safe_load(spec)
    if event.target:
        content["models"][0]["train"]["batch"]["size"] = 9_999
    else:
        content["models"][0]["gpus"] = [99, 99]
    run.spec.write_text(yaml.safe_dump(content))

    def restore(launches: Sequence[Launch]) -> None:
        run.spec.write_text(spec)
        statuses = [launch.status for launch in launches]
        if statuses != [ExitStatus.BAD_INPUT]:
            run.observer.object_to(f"too much was asked for, but the launch ends with {statuses}")

    return restore


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
