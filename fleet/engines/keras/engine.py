"""Build networks with Keras 3 on TensorFlow."""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fleet.engines.keras.settings  # noqa: F401 - registers settings of Keras
from fleet.comm.protocols import Group
from fleet.engines.base import EngineContext, count_threads, gpu_index
from fleet.engines.custom import user_code_of, with_default_rate
from fleet.engines.keras.devices import find_gpus, hide_gpus
from fleet.engines.keras.exchange import find_horovod, make_exchange
from fleet.engines.keras.gradients import keep_gradients_with_graphs
from fleet.engines.keras.graphs import StepGraphs
from fleet.engines.keras.kernels import use_kernels
from fleet.engines.keras.metrics import make_measures
from fleet.engines.keras.models import build_model, returns_predictions
from fleet.engines.keras.named_parts import integer_inputs
from fleet.engines.keras.network import KerasNetwork
from fleet.engines.keras.optimizer import (
    ScalableRate,
    extract_hyperparameters,
    graph_key_settings,
    make_optimizer,
)
from fleet.engines.keras.own_step import KerasStep
from fleet.engines.keras.pretrained import freeze
from fleet.engines.keras.step_queue import InputBuffers, StepQueue
from fleet.engines.keras.steps import KerasSteps
from fleet.engines.keras.variables import NetworkVariables
from fleet.engines.own_step import measures_of
from fleet.errors import UserError
from fleet.spec import NetworkSpec
from preprocess.user_code import UserCode, running_user_code

log = logging.getLogger("fleet.engines.keras.engine")


class KerasEngine:
    """Builds Keras networks on this rank's device.

    Args:
        setup: setup of this rank; the exchange ``auto`` uses Horovod if it is installed.

    Raises:
        UserError: the spec asks for Horovod, which is not installed.
    """

    def __init__(self, setup: EngineContext) -> None:
        keep_gradients_with_graphs()
        self._sample = setup.sample
        exchange = setup.resources.exchange
        configure_device(setup)
        self._horovod: Any
        self._horovod, horovod = (None, "not used") if exchange == "mpi" else find_horovod()
        if exchange == "library":
            raise UserError(
                "resources.exchange: the keras engine does not support library; use auto, horovod "
                "or mpi"
            )
        if exchange == "horovod" and self._horovod is None:
            raise UserError(
                "resources.exchange: horovod requires Horovod with MPI, which is not installed; "
                "install it, or use mpi or auto"
            )
        self.exchange_name = "mpi" if self._horovod is None else "horovod"
        # Exempt imported modules from garbage collection; clear_session spent a third of a second
        # on them.
        if not gc.get_freeze_count():
            gc.freeze()
        # The network built last, and the key of networks that can use its graphs.
        self._cached: tuple[NetworkSpec, KerasNetwork] | None = None
        self._inputs = InputBuffers(setup.pin)
        log.info(
            "TensorFlow %s, Keras %s, gradients by %s; Horovod: %s",
            tf.__version__,
            keras.__version__,
            self.exchange_name,
            horovod,
        )

    def build(self, network: NetworkSpec, group: Group) -> KerasNetwork:
        """Build a network; see :meth:`fleet.engines.base.Engine.build`.

        Creating the graphs of a network takes longer than its weights. They are cached for the next
        network, which often differs only in learning rate, momentum, weight decay or seed.

        Args:
            network: network to build.
            group: group that trains it.
        """
        code = user_code_of(network)
        with running_user_code(code):
            return self._build(network, group, code)

    def _build(self, network: NetworkSpec, group: Group, code: UserCode | None) -> KerasNetwork:
        # The scaling of inputs is part of the graph, and folds may differ in it.
        has_folds = self._sample.for_pipeline(network.pipeline).folds
        key = _graph_key(network, group, network.fold if has_folds else None)
        cached = self._cached
        self._cached = None
        if cached is not None and (cached[0] != key or not cached[1].is_closed):
            cached = None
        keras.backend.clear_session()  # free the names and memory of the previous network
        train = network.train
        sample = self._sample.for_pipeline(network.pipeline, network.fold)
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(train.precision)
        try:
            model = build_model(
                network.architecture,
                sample.input_shape,
                sample.target.model_outputs,
                network.seed,
                sample.target,
                train.single.loss,
                train.step is not None,
                integer_inputs(sample),
            )
        finally:
            keras.config.set_dtype_policy(policy)
        if train.initial_weights is not None:
            freeze(model, train.initial_weights.freeze)
        settings = with_default_rate(train.optimizer)
        rate = ScalableRate(settings)
        if train.batch.is_elastic:
            scale = rate.scale
        else:
            scale = network.learning_rate_scale(group.size)
        mode = "max" if train.stopping.sign > 0 else "min"
        optimizer = make_optimizer(settings, scale, train.batch.accumulate, mode)
        if train.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        own_step = None
        if train.step is not None:  # its first call may build the model
            own_step = KerasStep.of(train, model, sample)
        optimizer.build(model.trainable_variables)
        if cached is not None:
            cached[1].reset_as(model, optimizer, rate, group)
            self._cached = cached
            return cached[1]
        use_kernels(model, optimizer)
        free = extract_hyperparameters(optimizer)
        if own_step is not None:
            measures = measures_of(own_step.metrics)
        else:
            measures = make_measures(train, sample.target)
        variables = NetworkVariables(model, optimizer)
        exchange_of = partial(make_exchange, horovod=self._horovod)
        graphs = StepGraphs(
            variables,
            sample,
            measures,
            exchange_of(group),
            train.xla,
            has_code=code is not None,
            own_step=own_step,
            transforms_batches=bool(train.batch_transforms),
        )
        steps = KerasSteps(graphs, exchange_of, code, network.seed, StepQueue(self._inputs))
        built = KerasNetwork(
            model,
            optimizer,
            sample,
            measures,
            variables,
            graphs,
            steps,
            free,
            rate,
            code,
            own_step,
            own_step is None
            or returns_predictions(
                model, sample.input_shape, sample.target, integer_inputs(sample)
            ),
        )
        if network.architecture.kind == "import":
            built.check_export()  # fail now, not after the last epoch
        self._cached = None if key is None else (key, built)
        return built


def _graph_key(network: NetworkSpec, group: Group, fold: int | None = None) -> NetworkSpec | None:
    """Return a key that is equal for networks with equal graphs; None if user code varies.

    Args:
        network: network to build.
        group: group that trains it.
        fold: fold of the network, if graphs of folds differ.
    """
    if user_code_of(network) is not None:
        return None
    optimizer = network.train.optimizer
    if isinstance(optimizer.learning_rate, dict) and network.learning_rate_scale(group.size) != 1:
        return None  # the schedule and its scale are part of the graph
    return NetworkSpec(
        "",
        network.architecture,
        replace(network.train, optimizer=graph_key_settings(optimizer)),
        seed=0,
        pipeline=network.pipeline,
        fold=fold,
    )


def configure_device(setup: EngineContext) -> None:
    """Use one GPU and only the memory needed; without GPUs, a fair share of the cores.

    Without GPUs graphs run as they are traced. Rewriting them first (Grappler) takes a quarter of
    the first step of a small network and does not make later steps faster.

    If trainers share a GPU, the first takes what it needs, so a network that is retried alone has
    all the memory. The others are limited to an equal share, or take what they need if the memory
    is unknown.

    Kernels split their sums by the number of threads, so results depend on it; a deterministic
    network uses one thread, so its results do not depend on which trainers share a node.

    Args:
        setup: setup of this rank. TensorFlow sees the GPUs that the variables of their maker allow,
            such as ``CUDA_VISIBLE_DEVICES``.

    Raises:
        UserError: the node shows fewer GPUs than it has trainers, or none of the kind that
            ``resources.device`` names.
    """
    if setup.deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = find_gpus(setup.resources.device)
    if not gpus:
        if setup.resources.device == "cpu":
            hide_gpus()
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        if "TF_NUM_INTRAOP_THREADS" not in os.environ:
            tf.config.threading.set_intra_op_parallelism_threads(
                count_threads(setup.trainers, setup.deterministic)
            )
        return
    chosen = gpus[gpu_index(setup.index, len(gpus))]
    tf.config.set_visible_devices([chosen], chosen.device_type)
    if setup.slot.memory_limit is None:
        tf.config.experimental.set_memory_growth(chosen, True)
    else:
        part = tf.config.LogicalDeviceConfiguration(memory_limit=setup.slot.memory_limit)
        tf.config.set_logical_device_configuration(chosen, [part])
