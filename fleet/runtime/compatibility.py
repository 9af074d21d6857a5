"""Detection of changed networks and data since checkpoints were saved."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fleet.domain.events import ChangesAccepted, DataChanged, Event, NetworkRolledBack
from fleet.domain.network import DATA, Code, TrainingState
from fleet.errors import UserError
from fleet.runtime.inputs import fingerprint_data
from fleet.runtime.startup import Request
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import CheckpointLookup, find_newest, rewrite_states
from fleet.storage.code import hash_sources
from fleet.storage.files import atomic_write, map_in_threads, remove, storage_errors
from fleet.storage.identity import find_changes, training_identity
from fleet.storage.lease import Fence, fence_check
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import load_run_spec
from preprocess.base import InputError
from preprocess.fingerprint import (
    Fingerprint,
    compare_fingerprints,
    read_fingerprint,
    write_fingerprint,
)
from preprocess.sample import SampleSpec

_MOST_FILES = 20_000  # of which a report sees whether they are newer


def check_fresh(spec: Spec, fresh_networks: Sequence[str]) -> None:
    """Refuse to start over networks that the spec lacks.

    Raises:
        UserError: a name is not in the spec.
    """
    for name in fresh_networks:
        if name not in spec.by_name:
            raise UserError(
                f"--fresh-network {name}: the spec has no such network; it has {', '.join(spec.by_name)}"
            )


@dataclass(frozen=True)
class _Saved:
    """A network's checkpoint, if any, and what has changed since."""

    network: NetworkSpec
    lookup: CheckpointLookup
    changed: list[str]

    @property
    def state(self) -> TrainingState:
        """Of a checkpoint that is there."""
        assert self.lookup.state is not None
        return self.lookup.state


def read_codes(spec: Spec, spec_folder: Path) -> dict[str, Code]:
    """Return the files of each ``build:`` function by its import path."""
    targets = {network.architecture.target for network in spec.networks}
    targets |= {entry.target for entry in spec.searches.values()}
    return {target: hash_sources(target, spec_folder) for target in targets}


def read_known_fingerprint(
    paths: RunPaths, fresh_networks: Sequence[str] = ()
) -> Fingerprint | None:
    """Read the fingerprint of the data on which a run was trained.

    Args:
        fresh_networks: of them nothing counts any more.

    Returns:
        None where nothing was trained, or FLEET 0.1.0 has trained it.
    """
    is_trained = any(path.parent.name not in fresh_networks for path in paths.models.glob("*/*.h5"))
    if is_trained:
        return read_fingerprint(paths.data)
    return None


def describe_data_changes(spec: Spec, before: Fingerprint, now: Fingerprint) -> list[str]:
    """Describe changes of the data, with the path of each split; empty if there are none."""
    split_paths = {"validation": spec.data.validation, "test": spec.data.test}
    changes = []
    for part, words in compare_fingerprints(before, now).items():
        split_path = split_paths.get(part)
        path = split_path if isinstance(split_path, str) else spec.data.path or spec.data.source
        if part in split_paths and not isinstance(split_path, str):
            held_out = f" ({part})"
        else:
            held_out = ""
        changes.append(f"{path}{held_out}: {', '.join(words)}")
    return list(dict.fromkeys(changes))


def find_data_changes(paths: RunPaths) -> list[str]:
    """Describe changes of a run's data as far as they are cheap to detect.

    The data is not looked at where no file of it was touched since it was noted, where it is not
    there, and where code of the user's own reads it.
    """
    try:
        spec = load_run_spec(paths)
        before = read_known_fingerprint(paths)
        if before is None or ":" in spec.data.source:
            return []
        places = (spec.data.path, spec.data.validation, spec.data.test)
        noted_s = paths.data.stat().st_mtime
        if not any(isinstance(path, str) and _is_newer(Path(path), noted_s) for path in places):
            return []
        return describe_data_changes(spec, before, fingerprint_data(spec, before)[1])
    except (UserError, InputError, OSError):
        return []


def _is_newer(path: Path, moment_s: float) -> bool:
    """Return True if a file, or something in a folder, was changed later."""
    paths = itertools.chain([path], path.rglob("*") if path.is_dir() else ())
    return any(entry.stat().st_ctime > moment_s for entry in itertools.islice(paths, _MOST_FILES))


def check_data_unchanged(
    paths: RunPaths, before: Fingerprint | None, again: Fingerprint | None, now: Fingerprint
) -> None:
    """Refuse data that another launch has found changed in the meantime.

    Args:
        before, again: what the data was known by before it was opened, and when this launch had
            entered the folder.

    Raises:
        UserError: another launch has been at work between the two.
    """
    if again is not None and all(
        fingerprint is None or _division_key(fingerprint) != _division_key(again)
        for fingerprint in (before, now)
    ):
        raise UserError(
            f"{paths.root}: another launch has trained on other data in the meantime; start this one again"
        )


def save_fingerprint(
    paths: RunPaths,
    now: Fingerprint,
    folds: np.ndarray | None,
    rows: np.ndarray,
    fence: Fence | None,
) -> None:
    """Save the data's fingerprint and division if they differ from the saved ones.

    Args:
        folds: of the training samples.
        rows: their places in the fingerprint.
    """
    if folds is not None:
        of_all = np.full(len(now.sides), -1, np.int16)
        of_all[rows] = folds
        now = replace(now, folds=of_all)
    saved = read_fingerprint(paths.data)
    if saved is None or _fingerprint_key(saved) != _fingerprint_key(now):
        with atomic_write(paths.data, "wb", check=fence_check(fence)) as file:
            write_fingerprint(file, now)


def _division_key(fingerprint: Fingerprint) -> tuple[str, bytes]:
    return fingerprint.digest, fingerprint.sides.tobytes()


def _fingerprint_key(fingerprint: Fingerprint) -> tuple[str, bytes, str, bytes, str]:
    return (
        *_division_key(fingerprint),
        fingerprint.division,
        fingerprint.folds.tobytes(),
        fingerprint.test_path,
    )


def delete_stale_data(paths: RunPaths, now: Fingerprint) -> None:
    """Delete decoded samples and predictions made from other data."""
    saved = read_fingerprint(paths.data)
    if saved is not None and (saved.test_path != now.test_path or compare_fingerprints(saved, now)):
        for path in (paths.decoded, *paths.all_predictions()):
            remove(path)


def check_saved_networks(
    spec: Spec,
    paths: RunPaths,
    sample: SampleSpec,
    codes: Mapping[str, Code],
    request: Request,
    fence: Fence | None,
    data: Sequence[str],
) -> tuple[tuple[Event, ...], dict[str, CheckpointLookup]]:
    """Check that all checkpoints of a run belong to the networks of the spec.

    Args:
        codes: as :func:`read_codes` has them.
        request: which networks start over, and whether the others go on where they, or the data,
            have changed. Where other launches may be at work, nothing is written.
        fence: this launch's right to write.
        data: what has changed of the data, as :func:`describe_data_changes` says it.

    Returns:
        What was done to networks, for the event log; and of the networks that nothing was done to,
        what was found.

    Raises:
        UserError: a network, or the data, has changed, and nothing was said of it; nothing was
            touched.
    """
    saved = map_in_threads(
        lambda network: _read_saved(
            network, spec, paths, sample, codes[network.architecture.target], data
        ),
        (network for network in spec.networks if network.name not in request.fresh_network),
    )
    existing = [checkpoint for checkpoint in saved if checkpoint.lookup.state is not None]
    changed = [checkpoint for checkpoint in existing if checkpoint.changed]
    if changed and not request.accept_changes:
        raise UserError(_explain_refusal(paths, changed, data))
    unknown = [
        checkpoint
        for checkpoint in existing
        if checkpoint.state.code is None
        and codes[checkpoint.network.architecture.target]
        and not request.shares_run
    ]
    amended = {checkpoint.network.name: checkpoint for checkpoint in [*changed, *unknown]}
    for checkpoint in amended.values():
        _amend(
            checkpoint, spec, paths, sample, codes[checkpoint.network.architecture.target], fence
        )
    if unknown:
        print(_warn_of_unknown_code(unknown, codes), file=sys.stderr, flush=True)
    restarted = [name for name in request.fresh_network if _start_over(paths, name)]
    epochs = {checkpoint.network.name: checkpoint.state.epoch for checkpoint in changed}
    events = (
        *((DataChanged(tuple(data), epochs),) if data and changed else ()),
        *(
            NetworkRolledBack(name, "--fresh-network", epochs=0, position=0, afresh=True)
            for name in restarted
        ),
        *(
            ChangesAccepted(
                checkpoint.network.name, tuple(checkpoint.changed), checkpoint.state.epoch
            )
            for checkpoint in changed
        ),
    )
    return events, {
        checkpoint.network.name: checkpoint.lookup
        for checkpoint in saved
        if checkpoint.network.name not in amended
    }


def _read_saved(
    network: NetworkSpec,
    spec: Spec,
    paths: RunPaths,
    sample: SampleSpec,
    code: Code,
    data: Sequence[str],
) -> _Saved:
    lookup = find_newest(paths, network.name, with_arrays=False)
    if lookup.state is None:
        return _Saved(network, lookup, [])
    changed = find_changes(network, spec, sample, code, lookup.state)
    if changed is None:
        prefix = f"the data has changed: {'; '.join(data)}. And " if data else ""
        raise UserError(
            f"{prefix}{paths.root} holds a checkpoint of {network.name} that was trained with other settings "
            "(model, data, transforms, batch, optimizer, engine or seed): go back to them, name another "
            f"output, or start over: this network with --fresh-network {network.name}, all with --fresh"
        )
    return _Saved(network, lookup, [*changed, *([DATA] if data else [])])


def _explain_refusal(paths: RunPaths, changed: Sequence[_Saved], data: Sequence[str]) -> str:
    if not data:
        return _explain_code_change(paths, changed)
    code_changes = [
        replace(checkpoint, changed=files)
        for checkpoint in changed
        if (files := [file for file in checkpoint.changed if file != DATA])
    ]
    code = f". {_explain_code_change(paths, code_changes)}" if code_changes else ""
    return (
        f"the data is not what the networks in {paths.root} were trained on: {'; '.join(data)}: go back to what it "
        "was, start over with --fresh, or go on from what was trained with --accept-changes, which the history "
        f"will say{code}"
    )


def _explain_code_change(paths: RunPaths, changed: Sequence[_Saved]) -> str:
    names = [checkpoint.network.name for checkpoint in changed]
    details = ", ".join(
        f"{checkpoint.network.name} ({', '.join(checkpoint.changed)})" for checkpoint in changed
    )
    over = " ".join(f"--fresh-network {name}" for name in names)
    return (
        f"{paths.root} holds checkpoints of networks whose code has changed since: {details}: train them from the "
        f"start with {over}, or go on from what was trained with --accept-changes, which the history will say"
    )


def _warn_of_unknown_code(unknown: Sequence[_Saved], codes: Mapping[str, Code]) -> str:
    names = ", ".join(checkpoint.network.name for checkpoint in unknown)
    files = ", ".join(
        sorted(
            {
                file
                for checkpoint in unknown
                for file in codes[checkpoint.network.architecture.target]
            }
        )
    )
    return (
        f"fleet: WARNING: FLEET 0.1.0 wrote the checkpoints of {names}, and did not note the code of networks: "
        f"they go on as if {files} had not changed since then; from now on it is noted"
    )


def _amend(
    checkpoint: _Saved,
    spec: Spec,
    paths: RunPaths,
    sample: SampleSpec,
    code: Code,
    fence: Fence | None,
) -> None:
    """Write accepted changes into all checkpoints of a network."""
    new_identity = training_identity(checkpoint.network, spec, sample)
    key = checkpoint.network.architecture.key

    def now(state: TrainingState) -> TrainingState:
        state = replace(
            state.at_epoch_start() if DATA in checkpoint.changed else state,
            identity=new_identity,
            architecture=key,
            code=code,
        )
        if checkpoint.changed:
            return state.with_accepted_changes(" ".join(checkpoint.changed))
        return state

    rewrite_states(paths, checkpoint.network.name, now, fence)


def _start_over(paths: RunPaths, name: str) -> bool:
    """Delete what was trained of a network; returns whether there was anything.

    Raises:
        UserError: there are files beside it that FLEET did not write.
    """
    folders = [folder for folder in (paths.model(name), paths.tensorboard(name)) if folder.exists()]
    for path in paths.foreign_files() if folders else ():
        if any(folder in path.parents for folder in folders):
            raise UserError(
                f"--fresh-network {name}: {path} is no file that FLEET wrote; move it away"
            )
    for folder in folders:
        with storage_errors(folder):
            for path in set(folder.iterdir()) - {paths.first(name)}:  # it begins there again
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
    return bool(folders)
