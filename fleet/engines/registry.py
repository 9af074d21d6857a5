"""The engines that a spec can ask for."""

from __future__ import annotations

from fleet.engines.base import Engine
from fleet.spec import Spec
from preprocess.sample import SampleSpec
from scheduler.base import RateTable


def make_engine(spec: Spec, inputs: SampleSpec, rates: RateTable | None, index: int, trainers: int) -> Engine:
    """The engine that a spec asks for.

    Args:
        rates: of the networks, where they are known.
        index: the place of this trainer among those of its node, which is that of its GPU.
        trainers: on this node; without GPUs they share its cores.
    """
    if spec.resources.engine == "numpy":
        from fleet.engines.softmax import NumpyEngine

        return NumpyEngine(inputs)
    if spec.resources.engine == "emulated":
        from fleet.engines.emulated import EmulatedEngine

        assert rates is not None  # a spec that emulates says where they are
        return EmulatedEngine(inputs, rates, spec.resources.time_scale)
    from fleet.engines.keras.network import KerasEngine

    return KerasEngine(inputs, spec.resources.exchange, index, trainers)
