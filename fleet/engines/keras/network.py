"""Keras 3 on TensorFlow: the engine that trains real networks.

A step is one ``tf.function``. Each rank sums the losses of its own rows and divides by the rows of the
*global* batch; the exchange sums over the ranks; what could not be read is corrected for afterwards.
So uneven shares are right, and a rank without rows takes part with zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fleet.comm.base import Group
from fleet.engines.base import Arrays, PeerFailed, Setup, StepResult
from fleet.engines.keras.device import take_device
from fleet.engines.keras.exchange import GradientExchange, HorovodExchange, NoExchange, _import_horovod, make_exchange
from fleet.engines.keras.models import build_model
from fleet.errors import CheckpointError, UserError
from fleet.spec import NetworkSpec, Optimizer
from fleet.storage.files import replace_by
from preprocess.sample import SampleSpec

log = logging.getLogger("fleet.engines.keras.network")


class KerasEngine:
    """Builds Keras networks on this rank's device.

    Args:
        inputs: what networks are fed with.
        exchange: auto | horovod | mpi; auto takes Horovod where it is installed.
        index: the place of this trainer among those of its node.
        trainers: on this node.

    Raises:
        UserError: Horovod is asked for and is not installed.
    """

    def __init__(self, inputs: SampleSpec, exchange: str, index: int, trainers: int) -> None:
        self._inputs = inputs
        take_device(index, trainers)
        self._horovod = None if exchange == "mpi" else _import_horovod()
        if exchange == "horovod" and self._horovod is None:
            raise UserError("resources.exchange: horovod is asked for, and Horovod is not installed with MPI; "
                            "right would be: mpi, or auto")
        self.exchange_name = "mpi" if self._horovod is None else "horovod"
        log.info("TensorFlow %s, Keras %s, gradients by %s", tf.__version__, keras.__version__, self.exchange_name)

    def build(self, network: NetworkSpec, group: Group) -> KerasNetwork:  # noqa: D102 - Engine says it
        keras.backend.clear_session()  # names and memory of the network before this one
        train = network.train
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(train.precision)
        try:
            model = build_model(network.architecture, self._inputs.image.shape, self._inputs.classes, network.seed)
        finally:
            keras.config.set_dtype_policy(policy)
        optimizer = make_optimizer(train.optimizer, network.learning_rate_scale(group.size))
        if train.precision == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        return KerasNetwork(model, optimizer, self._inputs, partial(make_exchange, horovod=self._horovod), group,
                            train.xla)


def make(setup: Setup) -> KerasEngine:
    """The engine of a trainer."""
    return KerasEngine(setup.inputs, setup.resources.exchange, setup.index, setup.trainers)


def make_optimizer(settings: Optimizer, scale: float) -> keras.optimizers.Optimizer:
    """The Keras optimizer of a spec; ``scale`` multiplies its learning rate."""
    rate = settings.learning_rate
    if isinstance(rate, dict):
        arguments = dict(rate)
        schedule = getattr(keras.optimizers.schedules, arguments.pop("name"))(**arguments)
        rate = schedule if scale == 1 else _Scaled(schedule, scale)
    else:
        rate = rate * scale
    names = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "weight_decay", "global_clipnorm")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}
    return kinds[settings.name](learning_rate=rate, **given)


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """Another schedule, multiplied."""

    def __init__(self, schedule: Any, scale: float) -> None:
        self._schedule, self._scale = schedule, scale

    def __call__(self, step: Any) -> Any:
        return self._schedule(step) * self._scale

    def get_config(self) -> dict[str, Any]:
        return {"schedule": keras.optimizers.schedules.serialize(self._schedule), "scale": self._scale}


# ---- one network -------------------------------------------------------------------------------


class KerasNetwork:
    """A Keras model in training, on one rank of its group.

    Args:
        exchange_of: makes the gradient exchange of a group; a network may go from one group to another.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer, inputs: SampleSpec,
                 exchange_of: Callable[[Group], GradientExchange], group: Group, xla: bool) -> None:
        self._model, self._optimizer, self._exchange_of = model, optimizer, exchange_of
        self._affine = inputs.affine
        self._exchange = exchange_of(group)
        self._ranks = tf.Variable(float(group.size), trainable=False)  # in no graph as a number: groups change
        signature = [tf.TensorSpec((None, *inputs.image.shape), inputs.image.dtype), tf.TensorSpec((None,), tf.int64),
                     tf.TensorSpec((), tf.float32), tf.TensorSpec((), tf.float32)]
        compiled = {"input_signature": signature, "jit_compile": xla or None}
        self._local = tf.function(self._compute, **compiled)
        self._update = tf.function(self._apply)
        # The exchange is inside of these graphs, so each kind of it has its own; XLA does not know Horovod's operation.
        self._fused: dict[type, Any] = {
            NoExchange: tf.function(self._compute_exchange_apply, **compiled),
            HorovodExchange: tf.function(self._compute_exchange_apply, input_signature=signature)}
        self._fused_empty = tf.function(self._exchange_apply)  # a rank alone has rows
        self._judge = tf.function(self._evaluate, input_signature=signature[:2])

    # ---- what the trainer calls ----

    def step(self, images: np.ndarray, labels: np.ndarray, size: int,  # noqa: D102 - Trainable says it
             stop: bool = False) -> StepResult:
        scale, wish = np.float32(size), np.float32(stop)
        if self._exchange.is_in_graph:
            return self._step_in_graph(images, labels, scale, wish)
        gradients: Sequence[Any] = self._empty()
        sums: Any = _no_sums(wish)
        error: Exception | None = None
        try:
            if len(labels):
                gradients, sums = self._local(images, labels, scale, wish)
        except Exception as caught:  # the other ranks wait for this one's part
            error = caught
        gradients, sums = self._exchange.sum(gradients, sums, error)
        if float(sums[2]):
            self._update(gradients, scale / sums[2])
        return _result(sums)

    def _step_in_graph(self, images: np.ndarray, labels: np.ndarray, scale: np.float32, wish: np.float32
                       ) -> StepResult:
        try:
            if len(labels):
                sums = self._fused[type(self._exchange)](images, labels, scale, wish)
            else:
                # The zeros come from outside: of constants TensorFlow would take the sum once, and keep it.
                sums = self._fused_empty(self._empty(), tf.constant(_no_sums(wish)), scale)
        except Exception as error:
            # Wakes the ranks that wait inside the exchange: they raise as well.
            self._exchange.close()
            if "Horovod has been shut down" in str(error):
                raise PeerFailed("another rank of the group failed in this step") from error
            raise
        return _result(sums)

    def evaluate(self, images: np.ndarray, labels: np.ndarray) -> StepResult:  # noqa: D102
        loss, correct, count = map(float, self._judge(images, labels))
        return StepResult(loss, correct, count)

    def average_statistics(self) -> None:
        """Give all ranks the mean of the floating-point variables that are not trained.

        These are the moving means and variances of batch normalisation, which each rank has gathered on
        its own rows.
        """
        if self._exchange.group.size == 1:
            return
        for variable in self._model.non_trainable_variables:
            if "float" in variable.dtype:
                value = np.asarray(variable.numpy(), np.float64)
                self._exchange.group.sum(value)
                variable.assign(value / self._exchange.group.size)

    def learning_rate(self) -> float:  # noqa: D102
        return float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {name: np.array(variable.numpy()) for name, variable in self._named()}

    def load(self, arrays: Arrays) -> None:  # noqa: D102
        named = dict(self._named())
        wrong = [name for name in named if name not in arrays or arrays[name].shape != tuple(named[name].shape)]
        if wrong or len(named) != len(arrays):
            raise CheckpointError("a checkpoint of another network: it differs in "
                                  + ", ".join([*wrong, *(name for name in arrays if name not in named)][:5]))
        for name, variable in named.items():
            variable.assign(arrays[name])

    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network as a ``.keras`` file that plain Keras loads in safe mode.

        The file takes samples as the stream carries them (images of 0 to 255, where ``scale`` is the last
        transform) and gives logits.
        """
        self.load(arrays)
        model = self._model
        if self._affine is not None:
            raw = keras.Input(model.input_shape[1:], name="raw_image")
            scaled = keras.layers.Rescaling(self._affine.multiplier.tolist(), self._affine.offset.tolist())(raw)
            model = keras.Model(raw, model(scaled), name=model.name)
        replace_by(path, model.save)

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._exchange.close()
        self._exchange = self._exchange_of(group)
        self._ranks.assign(group.size)

    def close(self) -> None:  # noqa: D102
        self._exchange.close()

    # ---- what runs inside a graph ----

    def _inputs(self, images: tf.Tensor) -> tf.Tensor:
        images = tf.cast(images, tf.float32)
        if self._affine is None:
            return images
        return images * self._affine.multiplier + self._affine.offset

    def _compute(self, images: tf.Tensor, labels: tf.Tensor, size: tf.Tensor, wish: tf.Tensor
                 ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This rank's share of the gradient of the mean loss, and its sums (loss, correct, count, wish to stop)."""
        valid = labels >= 0
        with tf.GradientTape() as tape:
            logits = tf.cast(self._model(self._inputs(images), training=True), tf.float32)
            losses = _losses(logits, labels, valid)
            loss = tf.reduce_sum(losses) / size
            # A penalty on weights belongs to the whole batch once: each rank brings its share of it.
            extra = [tf.cast(extra, tf.float32) for extra in self._model.losses]
            if extra:
                loss += tf.add_n(extra) / self._ranks
            scaled = self._optimizer.scale_loss(loss)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # dense, also of embeddings
        return gradients, tf.concat([_sums(losses, logits, labels, valid), [wish]], axis=0)

    def _apply(self, gradients: Sequence[tf.Tensor], correction: tf.Tensor) -> None:
        self._optimizer.apply(
            [gradient * tf.cast(correction, gradient.dtype) for gradient in gradients],
            self._model.trainable_variables)

    def _compute_exchange_apply(self, images: tf.Tensor, labels: tf.Tensor, size: tf.Tensor, wish: tf.Tensor
                                ) -> tf.Tensor:
        return self._exchange_apply(*self._compute(images, labels, size, wish), size)

    def _exchange_apply(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        gradients, sums = self._exchange.sum_in_graph(gradients, sums)
        # A batch of which no sample could be read changes nothing.
        tf.cond(sums[2] > 0, lambda: self._apply(gradients, size / sums[2]), lambda: None)
        return sums

    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        valid = labels >= 0
        logits = tf.cast(self._model(self._inputs(images), training=False), tf.float32)
        return _sums(_losses(logits, labels, valid), logits, labels, valid)

    # ---- small things ----

    def _empty(self) -> list[tf.Tensor]:
        return [tf.zeros(variable.shape, variable.value.dtype) for variable in self._model.trainable_variables]

    def _named(self) -> list[tuple[str, Any]]:
        """All variables by a name that the same network has in every process: place and path."""
        pairs = [*(("model", variable) for variable in self._model.variables),
                 *(("optimizer", variable) for variable in self._optimizer.variables)]
        return [(f"{owner}/{place:04d}/{variable.path}", variable) for place, (owner, variable) in enumerate(pairs)]


def _no_sums(wish: np.float32) -> np.ndarray:
    """What a rank without rows brings: (loss, correct, count, wish to stop)."""
    return np.array([0, 0, 0, wish], np.float32)


def _result(sums: Any) -> StepResult:
    loss, correct, count, wish = map(float, sums)
    return StepResult(loss, correct, count, wish > 0)


def _losses(logits: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """The cross entropy of each sample, 0 for those that could not be read."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return tf.where(valid, losses, tf.zeros_like(losses))


def _sums(losses: tf.Tensor, logits: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int64), labels)
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(tf.cast(hits, tf.float32)),
                     tf.reduce_sum(tf.cast(valid, tf.float32))])


# ---- exchanging gradients ----------------------------------------------------------------------
