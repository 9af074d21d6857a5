"""Clone a network of a run that no launch trains now: the next one trains the clone."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from fleet.domain.added_networks import with_added_networks
from fleet.domain.events import CommandReceived, NetworkAdded
from fleet.domain.run import RunState
from fleet.errors import UserError
from fleet.prediction.sample_file import read_sample
from fleet.spec import NetworkSpec, Spec
from fleet.spec.clones import Clone, CloneRequest, describe_clone
from fleet.spec.fit_checks import find_misfits
from fleet.spec.resolve import with_entry
from fleet.storage.checkpoint import copy_parent
from fleet.storage.event_log import EventLog, RunTail, read_run_state
from fleet.storage.lease import Lease, Process
from fleet.storage.paths import RunPaths
from fleet.storage.quota import Quota
from fleet.storage.run_spec import load_run_spec

_MANY = 2**62  # samples: how many there are is known at the next launch


def clone_event(
    command: str,
    entry: Mapping[str, Any],
    position: int,
    clone: Clone,
    networks: Sequence[NetworkSpec],
) -> CommandReceived:
    """Return the event of a clone.

    Args:
        command: name of the command.
        entry: the entry of the clone.
        position: the number of entries before it.
        clone: its description.
        networks: its networks.
    """
    return CommandReceived(
        command,
        "add",
        tuple(network.name for network in networks),
        entry,
        position,
        clone.source.name,
        clone.values,
        clone.is_warm,
    )


def clone_for_next_launch(paths: RunPaths, request: CloneRequest) -> list[str]:
    """Add a clone to a run without a launch; return the names of its networks.

    Args:
        paths: files of the run.
        request: what to clone.

    Raises:
        UserError: a launch has just begun, the clone cannot be trained, or its source has no
            weights that fit.
        StorageError: there is no room for the weights.
    """
    process = Process()
    lease = Lease(process, process.me)
    lease.take(paths.lease)
    try:
        run = read_run_state(paths)
        spec = with_added_networks(load_run_spec(paths), run)
        clone = describe_clone(spec, spec.by_name, request)
        position = len(spec.document.models)
        extended, networks = with_entry(spec, clone.entry, spec.by_name, drawn=clone.values)
        _check_fit(paths, replace(extended, networks=networks), run)
        make_room = Quota(paths, spec.checkpoint).make_room
        added = []
        for network in networks:
            paths.first(network.name).unlink(missing_ok=True)
            parent = clone.parent_of(network)
            epoch = 0
            if parent:
                key = network.architecture.key
                epoch = copy_parent(paths, network.name, parent, key, make_room, lease.fence)
            added.append(
                NetworkAdded(
                    network.name,
                    "",
                    -1,
                    network.parameters,
                    (network.min_gpus, network.max_gpus),
                    network.train.stopping.max_epochs,
                    parent,
                    epoch,
                )
            )
        command = f"{time.time_ns():020d}-{os.uname().nodename}-{os.getpid()}"
        # A launch that was killed early may have left an empty log, in which nothing has a date.
        newest = max(RunTail(paths).poll(), key=lambda event: event.at, default=None)
        if newest is None:
            raise UserError(f"{paths.root} has no event of any launch; start one first")
        with closing(EventLog(newest.log)) as log:
            log.add(clone_event(command, clone.entry, position, clone, networks), newest.t_s)
            for event in added:
                log.add(event, newest.t_s)
    finally:
        lease.release()
    return [network.name for network in networks]


def _check_fit(paths: RunPaths, spec: Spec, run: RunState) -> None:
    """Check that networks can be trained on the samples of a run.

    Raises:
        UserError: they cannot, or the run has not read its data yet.
    """
    sample = read_sample(paths, spec.networks[0].pipeline)
    epochs = [record for status in run.statuses.values() for record in status.history]
    is_validated = not epochs or any(math.isfinite(record.val_loss) for record in epochs)
    problems = find_misfits(spec, sample, _MANY, is_validated)
    if problems:
        raise UserError(
            "; ".join(f"{wrong}; {right}" if right else wrong for _, _, wrong, right in problems)
        )
