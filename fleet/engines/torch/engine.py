"""Build and train plain PyTorch modules."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fleet.engines.torch.settings  # noqa: F401 - registers settings of PyTorch
from fleet.comm.protocols import Group
from fleet.engines.base import EngineContext, count_threads, gpu_index
from fleet.engines.custom import user_code_of
from fleet.engines.own_step import measures_of
from fleet.engines.torch import devices
from fleet.engines.torch.captured_steps import AFTER_STEPS_OF_GPU, Capture
from fleet.engines.torch.collation import Collation
from fleet.engines.torch.compile import compile_module
from fleet.engines.torch.exchange import Exchange, MpiExchange, TorchExchange, exchange_name
from fleet.engines.torch.export import Exported, note_of
from fleet.engines.torch.flat_parameters import FlatParameters
from fleet.engines.torch.fused import FusedNetworks, Programs
from fleet.engines.torch.learning_rates import with_first_rate
from fleet.engines.torch.metrics import make_measures
from fleet.engines.torch.models import build_module
from fleet.engines.torch.network import TorchNetwork
from fleet.engines.torch.optimizer import ModuleOptimizer
from fleet.engines.torch.own_step import TorchStep
from fleet.engines.torch.pretrained import freeze
from fleet.engines.torch.recorded_steps import AFTER_STEPS, RecordedSteps, Recording
from fleet.engines.torch.several_optimizers import SeveralOptimizers
from fleet.engines.torch.steps import TorchSteps
from fleet.spec import NetworkSpec
from fleet.spec.engines import find_engine
from preprocess.sample import SampleSpec
from preprocess.user_code import UserCode, running_user_code

log = logging.getLogger("fleet.engines.torch.engine")

# Parameters of a network that is recorded, which takes about 20 ms for each of them. Python's part
# of the steps of larger ones is small.
_MAX_RECORDED = 100
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # CUDA reads this variable when it starts


class TorchEngine:
    """Builds modules on this rank's device.

    Args:
        setup: setup of this rank.

    Raises:
        UserError: the engine does not support the exchange that the spec names.
    """

    def __init__(self, setup: EngineContext) -> None:
        self._sample = setup.sample
        self._transforms = setup.transforms
        self._folder = setup.folder
        self._defaults = setup.defaults
        # FLEET 0.2 called functions whose parameters do not tell with (targets, outputs).
        self._outputs_first = find_engine("torch").outputs_first and setup.defaults != "0.2"
        self._device = configure_device(setup)
        self._programs: dict[str, Programs] = {}  # of fused networks, by their architecture
        self.exchange_name = exchange_name(setup.resources.exchange, self._device)
        self._exchange_of: Callable[[Group], Exchange] = partial(
            _exchange, self.exchange_name, self._device, setup.folder
        )
        log.info(
            "PyTorch %s on %s with %d threads, gradients by %s",
            torch.__version__,
            self._device,
            torch.get_num_threads(),
            self.exchange_name,
        )

    def enter_thread(self) -> None:
        """See :meth:`fleet.engines.fusing.SupportsFusing.enter_thread`."""
        devices.enter_thread(self._device)

    def fuse(self, trainables: Sequence[TorchNetwork], key: str) -> FusedNetworks:
        """Fuse networks; see :meth:`fleet.engines.fusing.SupportsFusing.fuse`."""
        return FusedNetworks(trainables, self._programs.setdefault(key, {}))

    def build(self, network: NetworkSpec, group: Group) -> TorchNetwork:
        """Build a network; see :meth:`fleet.engines.base.Engine.build`."""
        self.enter_thread()
        code = user_code_of(network)
        with running_user_code(code):
            return self._build(network, group, code)

    def _build(self, network: NetworkSpec, group: Group, code: UserCode | None) -> TorchNetwork:
        train = network.train
        sample = self._sample.for_pipeline(network.pipeline, network.fold)
        built = build_module(
            network.architecture,
            sample.input,
            sample.target,
            network.seed,
            _are_scaled(sample),
            train.step is not None,
        )
        module = built.module
        if train.initial_weights is not None:
            freeze(module, train.initial_weights.freeze)
        exported = Exported(
            built,
            _scales_of(sample),
            sample.target,
            Collation.of(sample.input),
        ).to(self._device)
        own_step = None
        several = None
        if train.optimizers is not None:
            several = SeveralOptimizers(train.optimizers, module)
        if train.step is not None:
            own_step = TorchStep.of(
                train,
                exported,
                sample,
                self._device,
                network.seed,
                () if several is None else several.by_name,
            )
        if own_step is not None:
            measures = measures_of(own_step.metrics)
        else:
            measures = make_measures(train, sample.target, self._device, self._outputs_first)
        flat = FlatParameters(module, measures.metrics.width)
        if train.batch.is_elastic:
            scale = 1.0
        else:
            scale = network.learning_rate_scale(group.size)
        updates = ModuleOptimizer(
            with_first_rate(train),
            scale,
            train.batch.accumulate,
            flat,
            module,
            as_keras=self._defaults == "0.2",
            mode="max" if train.stopping.sign > 0 else "min",
            several=several,
            precision=train.precision,
        )
        note = partial(
            note_of,
            network,
            sample,
            built.dtype,
            self._transforms.get(network.pipeline, ()),
            self._folder,
        )
        steps = TorchSteps(
            exported,
            flat,
            updates,
            sample,
            measures,
            self._exchange_of,
            self._exchange_of(group),
            network.seed,
            train.precision,
            code,
            own_step,
            {} if several is None else several.indices(flat.parameters.values()),
            compile_module(exported) if train.compile else None,
            transforms_batches=bool(train.batch_transforms),
        )
        steps.recorded = _recorded(steps)
        module.train()
        return TorchNetwork(module, steps, note, code)


def _recorded(steps: TorchSteps) -> RecordedSteps | None:
    """Return the recorded steps of a network; None if they would not do what its module does."""
    if steps.parts or steps.transforms_batches:
        return None
    if devices.can_capture(steps.device) and steps.compiled is not None:
        return RecordedSteps(steps, Capture, AFTER_STEPS_OF_GPU)
    if (
        devices.is_gpu(steps.device)
        or steps.compiled is not None
        or steps.code is not None  # what it does in Python would be missed
        or len(steps.flat.parameters) > _MAX_RECORDED
    ):
        return None
    return RecordedSteps(steps, Recording, AFTER_STEPS)


def _are_scaled(sample: SampleSpec) -> bool | dict[str, bool]:
    """Return whether inputs are scaled; of several, by name."""
    if sample.parts:
        return {name: part.affine is not None for name, part in sample.parts.items()}
    return sample.affine is not None


def _scales_of(sample: SampleSpec) -> Any:
    """Return multiplier and offset of inputs, or None; of several, by name."""
    if sample.parts:
        return {name: _scales_of(part) for name, part in sample.parts.items()}
    affine = sample.affine
    return None if affine is None else (affine.multiplier, affine.offset)


def _exchange(name: str, device: torch.device, folder: Path, group: Group) -> Exchange:
    if group.size == 1:
        return Exchange(group)
    if name == "mpi":
        return MpiExchange(group)
    return TorchExchange(group, device, folder)


def configure_device(setup: EngineContext) -> torch.device:
    """Use one GPU and this trainer's share of its memory; without GPUs, a share of the cores.

    Kernels split their sums by the number of threads, so results depend on it; a deterministic
    network uses one thread.

    Args:
        setup: setup of this rank. PyTorch sees the GPUs that the variables of their maker allow,
            such as ``CUDA_VISIBLE_DEVICES``.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers, or none of the kind that
            ``resources.device`` names.
    """
    if setup.deterministic:
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it
    kind, gpus = devices.find_accelerator(setup.resources.device)
    if kind is None:
        if setup.deterministic or "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(count_threads(setup.trainers, setup.deterministic))
        return torch.device("cpu")
    chosen = torch.device(kind.type, gpu_index(setup.index, gpus))
    devices.use(chosen, setup.slot.memory_limit)
    return chosen
