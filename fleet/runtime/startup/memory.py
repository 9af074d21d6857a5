"""The memory of a node: the window of the stream, stored samples, and shared augmented epochs."""

from __future__ import annotations

from fleet.comm.roles import Roles
from fleet.errors import UserError
from fleet.runtime.startup.caching import count_shared_epochs, validation_bytes
from fleet.runtime.startup.data import Inputs
from fleet.spec import Spec
from fleet.stream.layout import Layout, plan_layout, plan_ring, row_bytes
from fleet.units import format_size
from launch.errors import pluralize


def plan_memory(spec: Spec, opened: Inputs, roles: Roles, shared_free: float) -> Layout | None:
    """Plan the window of the stream on a node; None if no window is needed.

    Args:
        shared_free: free bytes of shared memory, on the node that has least.

    Raises:
        UserError: the window is too small.
    """
    if not roles.shared:
        return None
    sample = opened.sample
    samples = len(opened.data.train)
    settings = spec.data
    needed = samples * (sample.wire.nbytes + sample.target.nbytes)
    if settings.folds is not None and needed > settings.shared_memory:
        raise UserError(
            f"data.shared_memory: {format_size(settings.shared_memory)} is too small for "
            f"data.folds: evaluation needs all {pluralize(samples, 'sample')} in memory; set it to "
            f"at least {format_size(needed)}"
        )
    if settings.cache == "memory":
        needed = opened.stored_bytes
        if needed > settings.shared_memory:
            raise UserError(
                f"data.shared_memory: {format_size(settings.shared_memory)} is too small for "
                f"data.cache: memory: {pluralize(samples, 'decoded sample')} take "
                f"{format_size(needed)} on each node; set it to at least that, or use "
                "data.order: ring"
            )
        return None
    if settings.order == "ring":
        return plan_ring(
            sample.wire,
            samples,
            settings.shared_memory,
            settings.shards,
            roles.gpus_per_node,
            sample.target.wire,
        )
    group_sizes = [
        min(network.max_gpus or len(roles.trainers), len(roles.trainers))
        for network in spec.networks
    ]
    largest = max(
        (
            network.largest_batch(gpus)
            for network, gpus in zip(spec.networks, group_sizes, strict=True)
        ),
        default=spec.document.train.batch.bounds[1],
    )
    # Networks can be as far apart as all epochs of the run: one may still train its first epoch
    # while others start and end.
    total_epochs = sum(network.train.stopping.max_epochs for network in spec.networks)
    fitting_epochs = shared_free / 2 / (samples * row_bytes(sample.wire, sample.target.wire))
    return plan_layout(
        sample.wire,
        samples,
        settings.shared_memory,
        largest,
        roles.gpus_per_node,
        sample.target.wire,
        int(min(total_epochs, fitting_epochs)),
    )


def plan_augmented_epochs(spec: Spec, opened: Inputs, roles: Roles, shared_free: float) -> int:
    """Return how many augmented epochs fit into memory together with a node's decoded samples.

    Args:
        spec: the spec with the chosen ``data.cache``, and extreme networks of its searches.
        shared_free: free bytes of shared memory, on the node that has least.
    """
    if spec.data.cache != "memory" or not roles.shared:
        return 0
    used_bytes = shared_bytes(spec, opened, roles, shared_free)
    return count_shared_epochs(spec, opened, used_bytes, shared_free)


def shared_bytes(spec: Spec, opened: Inputs, roles: Roles, shared_free: float) -> int:
    """Return the bytes of the samples that the ranks of a node share.

    Args:
        spec: the spec with the chosen ``data.cache``.
        shared_free: free bytes of shared memory, on the node that has least.

    Raises:
        UserError: the window is too small.
    """
    if not roles.shared:
        return 0
    layout = plan_memory(spec, opened, roles, shared_free)
    training_bytes = opened.stored_bytes if layout is None else layout.window_bytes
    return training_bytes + validation_bytes(opened)
