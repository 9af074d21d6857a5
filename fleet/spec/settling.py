"""What a spec leaves open until its data is known: what is monitored, and the weights of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fleet.errors import UserError
from fleet.spec.measures import balanced, class_weight_vector
from fleet.spec.schema import NetworkSpec, Spec
from preprocess.target import TargetSpec


def settled(spec: Spec, told: Mapping[str, tuple[TargetSpec, tuple[int, ...]]]) -> Spec:
    """The spec with all of its networks fully said.

    Args:
        told: of each feed the target of the training data, with its names; and the training samples of each class,
            where they are asked for.

    Raises:
        UserError: weights of classes that there are not.
    """
    return replace(spec, networks=tuple(_settled(network, *told[network.feed]) for network in spec.networks))


def _settled(network: NetworkSpec, target: TargetSpec, counts: tuple[int, ...]) -> NetworkSpec:
    train = network.train
    if train.converge.monitor is None and target.kind != "class":
        train = replace(train, converge=replace(train.converge, monitor="val_loss"))
    if (wanted := train.class_weights) is not None and target.kind in ("class", "mask"):
        try:
            weights = (balanced(counts) if counts else ()) if isinstance(wanted, str) else class_weight_vector(
                wanted, target.names, target.outputs)
        except UserError as error:
            raise UserError(f"{network.name}: {error}") from error
        train = replace(train, class_weights={str(index): weight for index, weight in enumerate(weights)} or wanted)
    return network if train is network.train else replace(network, train=train)
