"""Detection of changed networks and data since checkpoints were saved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.domain.events import ChangesAccepted, DataChanged, Event, NetworkRolledBack
from fleet.domain.network import DATA, Code, TrainingState
from fleet.errors import UserError
from fleet.runtime.startup.request import Request
from fleet.spec import NetworkSpec, Spec
from fleet.storage.checkpoint import CheckpointLookup, find_newest, rewrite_states
from fleet.storage.files import map_in_threads, storage_errors
from fleet.storage.identity import code_of, find_changes, training_identity
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from preprocess.sample import SampleSpec


def check_fresh(spec: Spec, fresh_networks: Sequence[str]) -> None:
    """Refuse to start over networks that the spec lacks.

    Raises:
        UserError: a name is not in the spec.
    """
    for name in fresh_networks:
        if name not in spec.by_name:
            raise UserError(
                f"--fresh-network {name}: the spec has no network of this name; it has "
                f"{', '.join(spec.by_name)}"
            )


@dataclass(frozen=True)
class _Saved:
    """A network's checkpoint, if any, and what has changed since."""

    network: NetworkSpec
    code: Code
    lookup: CheckpointLookup
    changed: list[str]

    @property
    def name(self) -> str:
        """The name of the network."""
        return self.network.name

    @property
    def state(self) -> TrainingState:
        """The state of the existing checkpoint."""
        assert self.lookup.state is not None
        return self.lookup.state


def check_saved_networks(
    spec: Spec,
    paths: RunPaths,
    sample: SampleSpec,
    codes: Mapping[str, Code],
    request: Request,
    fence: Fence,
    data: Sequence[str],
) -> tuple[tuple[Event, ...], dict[str, CheckpointLookup]]:
    """Check that all checkpoints of a run belong to the networks of the spec.

    Args:
        codes: import path of a ``build:`` function -> its files.
        request: says which networks start over, and whether changes are accepted. If the run is
            shared with other launches, nothing is written.
        fence: the fence of this launch's lease.
        data: changes of the data, from :func:`describe_data_changes`.

    Returns:
        Events about changed networks, for the event log; and the checkpoints of unchanged networks.

    Raises:
        UserError: a network, or the data, has changed, and the change was not accepted; nothing was
            written.
    """
    saved = map_in_threads(
        lambda network: _read_saved(
            network, code_of(network, spec, codes), spec, paths, sample, data
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
        if checkpoint.state.code is None and checkpoint.code and not request.shares_run
    ]
    amended = {checkpoint.name: checkpoint for checkpoint in [*changed, *unknown]}
    for checkpoint in amended.values():
        _amend(checkpoint, spec, paths, sample, fence)
    if unknown:
        print(_warn_of_unknown_code(unknown), file=sys.stderr, flush=True)
    restarted = [name for name in request.fresh_network if _start_over(paths, name)]
    epochs = {checkpoint.name: checkpoint.state.epoch for checkpoint in changed}
    events = (
        *((DataChanged(tuple(data), epochs),) if data and changed else ()),
        *(
            NetworkRolledBack(name, "--fresh-network", epochs=0, position=0, afresh=True)
            for name in restarted
        ),
        *(
            ChangesAccepted(checkpoint.name, tuple(checkpoint.changed), checkpoint.state.epoch)
            for checkpoint in changed
        ),
    )
    return events, {
        checkpoint.name: checkpoint.lookup for checkpoint in saved if checkpoint.name not in amended
    }


def _read_saved(
    network: NetworkSpec,
    code: Code,
    spec: Spec,
    paths: RunPaths,
    sample: SampleSpec,
    data: Sequence[str],
) -> _Saved:
    lookup = find_newest(paths, network.name, with_arrays=False)
    if lookup.state is None:
        return _Saved(network, code, lookup, [])
    changed = find_changes(network, spec, sample, code, lookup.state)
    if changed is None:
        prefix = f"the data has changed: {'; '.join(data)}. And " if data else ""
        raise UserError(
            f"{prefix}{paths.root} holds a checkpoint of {network.name} that was trained with "
            "other settings (model, data, transforms, batch, optimizer, engine or seed): restore "
            "the settings, use another output, or start over: this network with "
            f"--fresh-network {network.name}, all networks with --fresh"
        )
    return _Saved(network, code, lookup, [*changed, *([DATA] if data else [])])


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
        f"the data has changed since the networks in {paths.root} were trained: {'; '.join(data)}: "
        "restore the data, start over with --fresh, or continue training with --accept-changes, "
        f"which the history records{code}"
    )


def _explain_code_change(paths: RunPaths, changed: Sequence[_Saved]) -> str:
    details = ", ".join(
        f"{checkpoint.name} ({', '.join(checkpoint.changed)})" for checkpoint in changed
    )
    options = " ".join(f"--fresh-network {checkpoint.name}" for checkpoint in changed)
    return (
        f"{paths.root} holds checkpoints of networks whose code has changed since: {details}: "
        f"start them over with {options}, or continue training with --accept-changes, which the "
        "history records"
    )


def _warn_of_unknown_code(unknown: Sequence[_Saved]) -> str:
    names = ", ".join(checkpoint.name for checkpoint in unknown)
    files = ", ".join(sorted(set().union(*(checkpoint.code for checkpoint in unknown))))
    return (
        f"fleet: WARNING: FLEET 0.1.0 wrote the checkpoints of {names} and did not record the code "
        f"of networks: training continues as if {files} had not changed since; from now on the "
        "code is recorded"
    )


def _amend(
    checkpoint: _Saved, spec: Spec, paths: RunPaths, sample: SampleSpec, fence: Fence
) -> None:
    """Write accepted changes into all checkpoints of a network."""
    new_identity = training_identity(checkpoint.network, spec, sample)
    key = checkpoint.network.architecture.key

    def amended(state: TrainingState) -> TrainingState:
        state = replace(
            state.at_epoch_start() if DATA in checkpoint.changed else state,
            identity=new_identity,
            architecture=key,
            code=checkpoint.code,
        )
        if checkpoint.changed:
            return state.with_accepted_changes(" ".join(checkpoint.changed))
        return state

    rewrite_states(paths, checkpoint.name, amended, fence)


def _start_over(paths: RunPaths, name: str) -> bool:
    """Delete the checkpoints and results of a network; returns whether there were any.

    Raises:
        UserError: its folders hold files that FLEET did not write.
    """
    folders = [folder for folder in (paths.model(name), paths.tensorboard(name)) if folder.exists()]
    for path in paths.foreign_files() if folders else ():
        if any(folder in path.parents for folder in folders):
            raise UserError(
                f"--fresh-network {name}: FLEET did not write {path}; move it elsewhere"
            )
    for folder in folders:
        with storage_errors(folder):
            # It starts again from its initial weights.
            for path in set(folder.iterdir()) - {paths.first(name)}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
    return bool(folders)
