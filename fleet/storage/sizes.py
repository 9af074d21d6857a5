"""How much of the disk checkpoints will take, as far as that is known before any is written (pure)."""

from __future__ import annotations

from fleet.errors import UserError
from fleet.spec import NetworkSpec, Spec
from fleet.spec.layers import count_for
from fleet.units import counted, format_size
from preprocess.sample import SampleSpec


def checkpoint_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Bytes of one checkpoint's arrays: the weights, so many, and what the optimizer keeps of each."""
    return spec.engine.checkpoint_bytes(parameters, network.train.optimizer.slots)


def folder_bytes(parameters: int, network: NetworkSpec, spec: Spec) -> int:
    """Bytes of all that a network may have on disk at once.

    These are the last checkpoint, the one before, one that is being written, the best, and the export in float32.
    """
    copies = 3 if spec.checkpoint.keep == "last" else 4
    return copies * checkpoint_bytes(parameters, network, spec) + 4 * parameters


def check_quota(spec: Spec, sample: SampleSpec) -> None:
    """Refuse a quota that cannot be enough, as far as parameters can be counted without building networks.

    Raises:
        UserError: it is less than what is kept of each network, and one checkpoint that is being written.
    """
    quota = spec.checkpoint.quota
    if quota is None or not spec.engine.learns:
        return
    sizes = [checkpoint_bytes(count_for(network.architecture.settings, sample.of(network.feed)), network, spec)
             for network in spec.networks if network.architecture.kind == "family"]
    kept = 1 if spec.checkpoint.keep == "last" else 2
    if (least := kept * sum(sizes) + max(sizes, default=0)) > quota:
        raise UserError(f"checkpoint.quota: {format_size(quota)} is too small: {spec.checkpoint.keep} of "
                        f"{counted(len(sizes), 'network')}, and one being written, need at least {format_size(least)}")
