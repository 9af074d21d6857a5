"""Networks that are not what they were when they were saved: refused, unless it is said what is to become of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import amend, newest
from fleet.storage.code import Code, code_of
from fleet.storage.events import ChangesAccepted, Event, NetworkFellBack
from fleet.storage.files import storing
from fleet.storage.identity import changes, identity
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from fleet.storage.state import State
from preprocess.sample import SampleSpec


@dataclass(frozen=True)
class Wishes:
    """What the command line says of networks that have changed.

    Attributes:
        fresh_networks: these start over.
        accepts_changes: the others go on from their checkpoints.
    """

    fresh_networks: tuple[str, ...] = ()
    accepts_changes: bool = False

    def check(self, spec: Spec) -> None:
        """Refuse names that no network has.

        Raises:
            UserError: there is one.
        """
        for name in self.fresh_networks:
            if name not in spec.by_name:
                raise UserError(f"--fresh-network {name}: the spec has no such network; it has "
                                f"{', '.join(spec.by_name)}")


@dataclass(frozen=True)
class _Saved:
    """A network that has a checkpoint, and what has changed about it since."""

    network: NetworkSpec
    state: State
    changed: list[str]


def codes_of(spec: Spec, beside: Path) -> dict[str, Code]:
    """What is built -> the files of its ``build:`` function; none for families and ``keras.applications``."""
    targets = {network.architecture.target for network in spec.networks}
    targets |= {entry.target for entry in spec.searches.values()}
    return {target: code_of(target, beside) for target in targets}


def take_up(spec: Spec, paths: RunPaths, sample: SampleSpec, codes: Mapping[str, Code], wishes: Wishes,
            fence: Fence | None = None, are_others: bool = False) -> tuple[Event, ...]:
    """See to it that all checkpoints of a run are of the networks that the spec names now.

    Args:
        codes: as :func:`codes_of` has them.
        fence: this launch's right to write.
        are_others: other launches may be at work, so nothing is written.

    Returns:
        What was done to networks, for the event log.

    Raises:
        UserError: a network has changed, and nothing was said of it; nothing was touched.
    """
    saved = [_look_at(network, spec, paths, sample, codes[network.architecture.target]) for network in spec.networks
             if network.name not in wishes.fresh_networks]
    there = [one for one in saved if one is not None]
    changed = [one for one in there if one.changed]
    if changed and not wishes.accepts_changes:
        raise UserError(_refusal(paths, changed))
    unknown = [one for one in there if one.state.code is None and codes[one.network.architecture.target]
               and not are_others]
    for one in {one.network.name: one for one in [*changed, *unknown]}.values():
        _amend(one, spec, paths, sample, codes[one.network.architecture.target], fence)
    if unknown:
        print(_warning(unknown, codes), file=sys.stderr, flush=True)
    restarted = [name for name in wishes.fresh_networks if _start_over(paths, name)]
    return (*(NetworkFellBack(name, "--fresh-network", epochs=0, position=0) for name in restarted),
            *(ChangesAccepted(one.network.name, tuple(one.changed), one.state.epoch) for one in changed))


def _look_at(network: NetworkSpec, spec: Spec, paths: RunPaths, sample: SampleSpec, code: Code) -> _Saved | None:
    state = newest(paths, network.name, with_arrays=False).state
    if state is None:
        return None
    changed = changes(network, spec, sample, code, state)
    if changed is None:
        raise UserError(f"{paths.root} holds a checkpoint of {network.name} that was trained with other settings "
                        "(model, data, transforms, batch, optimizer, engine or seed): go back to them, name another "
                        f"output, or start over: this network with --fresh-network {network.name}, all with --fresh")
    return _Saved(network, state, changed)


def _refusal(paths: RunPaths, changed: Sequence[_Saved]) -> str:
    names = [one.network.name for one in changed]
    shown = ", ".join(f"{one.network.name} ({', '.join(one.changed)})" for one in changed)
    over = " ".join(f"--fresh-network {name}" for name in names)
    return (f"{paths.root} holds checkpoints of networks whose code has changed since: {shown}: train them from the "
            f"start with {over}, or go on from what was trained with --accept-changes, which the history will say")


def _warning(unknown: Sequence[_Saved], codes: Mapping[str, Code]) -> str:
    names = ", ".join(one.network.name for one in unknown)
    files = ", ".join(sorted({file for one in unknown for file in codes[one.network.architecture.target]}))
    return (f"fleet: WARNING: FLEET 0.1.0 wrote the checkpoints of {names}, and did not note the code of networks: "
            f"they go on as if {files} had not changed since then; from now on it is noted")


def _amend(one: _Saved, spec: Spec, paths: RunPaths, sample: SampleSpec, code: Code, fence: Fence | None) -> None:
    """Have all checkpoints of a network say what it is now, and what of that was accepted."""
    mine, key = identity(one.network, spec, sample), one.network.architecture.key

    def now(state: State) -> State:
        state = replace(state, identity=mine, architecture=key, code=code)
        return state.accepting(" ".join(one.changed)) if one.changed else state

    amend(paths, one.network.name, now, fence)


def _start_over(paths: RunPaths, name: str) -> bool:
    """Delete what was trained of a network; returns whether there was anything.

    Raises:
        UserError: there are files beside it that FLEET did not write.
    """
    folders = [folder for folder in (paths.model(name), paths.tensorboard(name)) if folder.exists()]
    for path in paths.foreign() if folders else ():
        if any(folder in path.parents for folder in folders):
            raise UserError(f"--fresh-network {name}: {path} is no file that FLEET wrote; move it away")
    for folder in folders:
        with storing(folder):
            for path in set(folder.iterdir()) - {paths.first(name)}:  # it begins there again
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
    return bool(folders)
