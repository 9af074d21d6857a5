"""Train one Keras model on one rank of its group.

A step is one ``tf.function``, or two if MPI is called in between; a call of the former can take
several steps. Steps run while Python prepares the next batch
(:mod:`fleet.engines.keras.step_queue`); with MPI, a step ends when the next one begins. Each rank
sums the losses of its own rows and divides by the rows of the *global* batch; the exchange sums
over the ranks; a later correction accounts for unreadable rows. Penalties are split likewise
(:mod:`fleet.engines.keras.penalties`). So uneven shares are exact, and a rank without rows
contributes zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from fleet.comm.protocols import Group
from fleet.engines.base import (
    WIDTH,
    Arrays,
    PeerFailed,
    Rows,
    StepResult,
    StepTotals,
    check_arrays,
    pack_rows,
    select_readable,
)
from fleet.engines.custom import running_user_code, runs_user_code
from fleet.engines.keras.deferred_augmentation import augment_deferred
from fleet.engines.keras.exchange import Exchange, HorovodExchange, MpiExchange, NoExchange
from fleet.engines.keras.export import check_config, export_model, try_load
from fleet.engines.keras.losses import check_losses
from fleet.engines.keras.memory import activation_bytes
from fleet.engines.keras.optimizer import ScalableRate, drop_unconnected
from fleet.engines.keras.penalties import penalty, sums_over_rows
from fleet.engines.keras.pretrained import load_pretrained
from fleet.engines.keras.step_queue import InputBuffers, StepQueue
from fleet.engines.measures import Measures
from fleet.errors import ModelError
from fleet.storage.files import atomic_write_with
from preprocess.sample import SampleSpec
from preprocess.user_code import UserCode, exclusive_generators, seed_host_generators

_Local: TypeAlias = tuple[list[tf.Tensor], Any]  # gradients and totals of this rank
_COUNT = [field.name for field in fields(StepTotals)].index("count")


class KerasNetwork:
    """A Keras model in training, on one rank of its group.

    Args:
        exchange_of: creates the gradient exchange of a group; a network may move between groups.
        free: hyperparameters that are not part of a graph
            (:func:`fleet.engines.keras.optimizer.extract_hyperparameters`).
        code: user code that computes a part of a step; its ``if`` and ``while`` may depend on
            tensors, so AutoGraph converts it. Converting FLEET's code, too, would take half a
            second per process.
        seed: seed of the generators of Python and NumPy, from which that code may draw.
        rate: the learning rate, if the batch changes.
        inputs: input buffers of this rank.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        sample: SampleSpec,
        measures: Measures,
        exchange_of: Callable[[Group], Exchange],
        group: Group,
        xla: bool,
        code: UserCode | None,
        seed: int,
        free: Mapping[str, tf.Variable],
        rate: ScalableRate,
        inputs: InputBuffers,
    ) -> None:
        self._rate = rate
        self._model = model
        self._optimizer = optimizer
        self._exchange_of = exchange_of
        self._sample = sample
        self._affine = sample.affine
        self._measures = measures
        self._exchange = exchange_of(group)
        self._free = free
        self._queue = StepQueue(inputs)
        self.is_closed = False
        # Ends the running step, if MPI is called on the host.
        self._end_previous: Callable[[bool], StepResult] | None = None
        self._are_sums = sums_over_rows(model, sample.image.shape)
        self._inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._statistics = _with_means(model) if self._inner.use_ema else []
        # True for variables that the loss depends on; empty before tracing.
        self._connected: list[bool] = []
        target = sample.target
        rows = [
            tf.TensorSpec((None, *sample.wire.shape), sample.wire.dtype),
            tf.TensorSpec((None, *target.shape), target.dtype),
            *([] if target.is_plain else [tf.TensorSpec((None,), tf.float32)]),
        ]
        signature = [
            tf.TensorSpec((), tf.float32),
            tf.TensorSpec((WIDTH + measures.metrics.width,), tf.float32),
            *rows,
        ]
        compiled = {"input_signature": signature, "jit_compile": xla or None}
        self.code = code
        self._seed = seed
        graph_of = partial(_graph_of, autograph=code is not None)
        self._local = graph_of(self._compute, **compiled)
        self._update = graph_of(self._apply)
        several = [
            tf.TensorSpec((None,), tf.float32),
            tf.TensorSpec((None,), tf.int32),
            signature[1],
            *rows,
        ]
        # These graphs include the exchange, so each kind of exchange has its own graph. XLA does
        # not support Horovod's operation.
        self._strides: dict[type, Any] = {
            kind: graph_of(self._take_steps, input_signature=several)
            for kind in (NoExchange, HorovodExchange)
        }
        self._compiled = None
        if xla:  # XLA needs static sizes, so it takes steps one by one
            del self._strides[NoExchange]
            self._compiled = graph_of(self._compute_exchange_apply, **compiled)
        self._evaluate_graph = graph_of(self._evaluate, input_signature=rows)

    # ---- methods that the trainer calls ----

    def step(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        size: int,
        stop: bool = False,
        weights: np.ndarray | None = None,
    ) -> StepTotals:
        return self.begin_together(
            images, targets, [size], [len(targets)], StepTotals(stop=stop), weights
        )().sums[0]

    def can_stride(self) -> bool:  # noqa: D102 - see SupportsAsyncGroupSteps
        return type(self._exchange) in self._strides

    def begin_together(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        rows: Sequence[int],
        local_flags: StepTotals,
        weights: np.ndarray | None = None,
    ) -> Callable[[], StepResult]:
        with running_user_code(self.code, quick=True), self._seeded_generators():
            return self._begin_together(images, targets, sizes, rows, local_flags, weights)

    @contextmanager
    def _seeded_generators(self) -> Iterator[None]:
        """Seed the generators for user code: numbers drawn during tracing are part of the graph."""
        if self.code is None:
            yield
            return
        with exclusive_generators():
            seed_host_generators(self._seed)
            yield

    def _begin_together(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        sizes: Sequence[int],
        rows: Sequence[int],
        local_flags: StepTotals,
        weights: np.ndarray | None,
    ) -> Callable[[], StepResult]:
        zeros = (0.0,) * self._measures.metrics.width
        local_rows = pack_rows(images, targets, weights)
        flags = replace(local_flags, metric_totals=zeros).pack().astype(np.float32)
        exchange = self._exchange
        if isinstance(exchange, MpiExchange):
            return self._begin_on_host(
                exchange, select_readable(local_rows), np.float32(sizes[0]), flags
            )
        with self._failing_peers(exchange):
            if self.can_stride():
                sums = self._begin_several(
                    self._strides[type(exchange)], sizes, rows, tf.constant(flags), local_rows
                )
            else:
                sums = self._begin_compiled(
                    select_readable(local_rows),
                    tf.constant(sizes[0], tf.float32),
                    tf.constant(flags),
                )
        return partial(self._read, exchange, self._queue.read_async(sums))

    def _begin_several(
        self,
        graph: Callable[..., tf.Tensor],
        sizes: Sequence[int],
        rows: Sequence[int],
        flags: tf.Tensor,
        local_rows: Rows,
    ) -> tf.Tensor:
        """Run several steps by one graph for any number of steps, so results are bit-identical."""
        rows, local_rows = _readable_of_each(rows, local_rows)
        return self._queue.call(
            graph,
            tf.constant(sizes, tf.float32),
            tf.constant(rows, tf.int32),
            flags,
            *self._queue.inputs.upload(local_rows),
        )

    def _begin_compiled(self, local_rows: Rows, rows: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
        """Run a step of a group of one rank; a step without rows changes nothing."""
        assert self._compiled is not None
        if len(local_rows[1]):
            return self._queue.call(
                self._compiled, rows, flags, *self._queue.inputs.upload(local_rows)
            )
        return flags

    def _read(self, exchange: NoExchange, wait: Callable[[], StepResult]) -> StepResult:
        with self._failing_peers(exchange), running_user_code(self.code, quick=True):
            return wait()

    @contextmanager
    def _failing_peers(self, exchange: NoExchange) -> Iterator[None]:
        """Make the ranks that wait inside the exchange fail if this rank fails."""
        try:
            yield
        except BaseException as error:
            exchange.close()
            if "Horovod has been shut down" in str(error):
                raise PeerFailed("another rank of the group failed in this step") from error
            raise

    def _begin_on_host(
        self, exchange: MpiExchange, local_rows: Rows, rows: np.float32, flags: np.ndarray
    ) -> Callable[[], StepResult]:
        """Begin this rank's part of a step; it ends when the next step begins or a caller waits."""
        if self._end_previous is not None:
            self._end_previous(True)
        local: _Local = [], flags
        error: BaseException | None = None
        try:
            if len(local_rows[1]):
                local = self._queue.call(
                    self._local,
                    tf.constant(rows),
                    tf.constant(flags),
                    *self._queue.inputs.upload(local_rows),
                )
            else:
                # Its totals wait for the previous step, which still reads the exchange's memory.
                if not self._connected:
                    self._local.get_concrete_function()
                local = self._zeros(), self._queue.call(tf.identity, tf.constant(flags))
        except BaseException as caught:  # even an exit: the other ranks wait for this rank's part
            error = caught
        results: list[StepResult] = []

        def end(is_async: bool = False) -> StepResult:
            if not results:
                self._end_previous = None
                results.append(self._end_on_host(exchange, local, rows, error, is_async))
            return results[0]

        self._end_previous = end
        return end

    def _end_on_host(
        self,
        exchange: MpiExchange,
        local: _Local,
        rows: np.float32,
        error: BaseException | None,
        is_async: bool,
    ) -> StepResult:
        """Sum the parts of all ranks and apply the step.

        Args:
            exchange: exchange of the group.
            local: gradients and totals of this rank.
            rows: number of rows of the global batch.
            error: error of this rank, if it failed.
            is_async: True to return before the update has been computed; the next step waits for
                it.
        """
        gradients, sums = local
        try:
            sums = np.asarray(sums)  # waits for the whole graph
        except BaseException as caught:
            error = error or caught
        if error is not None:
            gradients = self._zeros()
            sums = np.zeros(WIDTH + self._measures.metrics.width, np.float32)
        summed, total = exchange.sum_on_host(gradients, sums, error)
        if total.count:
            if total.count == rows:
                step: tuple[Any, ...] = (summed,)
            else:
                step = (summed, tf.constant(rows / np.float32(total.count)))
            if is_async:
                self._queue.call(self._update, *step)
            else:
                self._update(*step)
        return StepResult([total], time.perf_counter())

    @runs_user_code
    def evaluate(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> StepTotals:
        return StepTotals.unpack(self._run_evaluation(images, targets, weights)[0].numpy())

    @runs_user_code
    def predict(  # noqa: D102
        self,
        images: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> tuple[StepTotals, np.ndarray]:
        sums, outputs = self._run_evaluation(images, targets, weights)
        return StepTotals.unpack(sums.numpy()), outputs.numpy()

    def _run_evaluation(
        self, images: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with self._seeded_generators(), self._averaged_weights():
            sums, outputs = self._evaluate_graph(*pack_rows(images, targets, weights))
            return sums, outputs

    @runs_user_code
    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:  # noqa: D102
        return self._measures.metrics.scores(metric_totals)

    def average_statistics(self) -> None:
        """Average the untrained floating-point variables across ranks.

        These are the moving means and variances of batch normalization, which each rank collects on
        its own rows.
        """
        if self._exchange.group.size == 1:
            return
        means = [mean for _, mean in self._statistics]
        for variable in (*self._model.non_trainable_variables, *means):
            if "float" in variable.dtype:
                value = np.asarray(variable.numpy(), np.float64)
                self._exchange.group.sum(value)
                variable.assign(value / self._exchange.group.size)

    @runs_user_code
    def learning_rate(self) -> float:  # noqa: D102
        return float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self._rate.set(self._optimizer, factor)

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {
            name: np.array(variable.numpy())
            for name, variable in _named_variables(self._model, self._optimizer, self._statistics)
        }

    @runs_user_code
    def load(self, arrays: Arrays) -> None:  # noqa: D102
        named = dict(_named_variables(self._model, self._optimizer, self._statistics))
        # A checkpoint of FLEET 0.2 has no running means of statistics; they begin with the
        # statistics.
        initial_means = {
            name: arrays.get(name.replace("statistics/", "model/", 1))
            for name in named
            if name.startswith("statistics/")
        }
        arrays = {
            **{name: array for name, array in initial_means.items() if array is not None},
            **arrays,
        }
        check_arrays({name: variable.shape for name, variable in named.items()}, arrays)
        for name, variable in named.items():
            variable.assign(arrays[name])

    @runs_user_code
    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:  # noqa: D102
        load_pretrained(self._model, file, skip)

    @runs_user_code
    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network as a ``.keras`` file that plain Keras loads in safe mode.

        The file takes samples as the stream carries them (images of 0 to 255 if ``scale`` is the
        last transform) and returns logits.
        """
        self.load(arrays)
        with self._averaged_weights():
            atomic_write_with(path, export_model(self._model, self._sample).save)

    @runs_user_code
    def check_export(self) -> None:
        """Check, without writing anything, that the network can be exported.

        Raises:
            ModelError: it cannot be exported.
        """
        check_config(export_model(self._model, self._sample))

    @runs_user_code
    def try_export(self, folder: Path) -> str:  # noqa: D102 - see SupportsInspection
        path = folder / "best.keras"
        self.check_export()
        self.export(self.state(), path)
        with self._averaged_weights():
            return try_load(path, self._model, self._sample)

    @runs_user_code
    def count_parameters(self) -> int:  # noqa: D102
        return self._model.count_params()

    @runs_user_code
    def check_learns(self, images: np.ndarray, targets: np.ndarray) -> None:  # noqa: D102
        with tf.GradientTape() as tape:
            outputs = tf.cast(
                self._model(self._inputs(tf.constant(images)), training=True), tf.float32
            )
        if not np.isfinite(outputs).all():
            raise ModelError(
                "the untrained model returns NaN or infinity for samples of the data; check its "
                "initial weights and the scale of its inputs"
            )
        check_losses(self._measures.losses, outputs, tf.constant(targets))
        if not any(
            gradient is not None
            for gradient in tape.gradient(outputs, self._model.trainable_variables)
        ):
            raise ModelError(
                "the outputs of the model depend on no trainable weight, so it cannot learn"
            )

    @runs_user_code
    def row_bytes(self) -> int | None:  # noqa: D102
        return activation_bytes(self._local.get_concrete_function().graph)

    def regroup(self, group: Group) -> None:  # noqa: D102
        self._exchange.close()
        self._exchange = self._exchange_of(group)

    def close(self) -> None:  # noqa: D102
        self._queue.close()
        self._exchange.close()
        self.is_closed = True

    def reset_as(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        rate: ScalableRate,
        group: Group,
    ) -> None:
        """Turn a closed network into another one of equal architecture, keeping the graphs.

        Args:
            model, optimizer, rate: initial state of the other network: its variables, and its
                hyperparameters that are not part of a graph.
            group: group of the other network.
        """
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        for name, variable in self._free.items():
            variable.assign(getattr(inner, name))
        self._rate.reset_as(rate)
        self.load({name: variable.numpy() for name, variable in _named_variables(model, optimizer)})
        self._exchange = self._exchange_of(group)
        self._queue = StepQueue(self._queue.inputs)
        self.is_closed = False
        self._end_previous = None

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Use the running means of weights and statistics inside the context, if kept."""
        if not self._inner.use_ema:
            yield
            return
        weights = self._model.trainable_variables
        variables = [*weights, *(statistic for statistic, _ in self._statistics)]
        before = [np.array(variable.numpy()) for variable in variables]
        self._inner.finalize_variable_values(weights)
        for statistic, mean in self._statistics:
            statistic.assign(mean)
        try:
            yield
        finally:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

    # ---- inside a graph ----

    def _inputs(self, images: tf.Tensor) -> tf.Tensor:
        images = augment_deferred(images, self._sample)
        if self._affine is None:
            return images
        if len(self._sample.image.shape) != 3:
            scaled = images * self._affine.multiplier + self._affine.offset
            return tf.cast(scaled, tf.float32)
        height, width, channels = self._sample.image.shape
        multiplier, offset = self._affine.along_row(width)
        # TensorFlow is slow with operands of three numbers.
        rows = tf.reshape(images, (-1, height, width * channels))
        scaled = tf.cast(rows * multiplier + offset, tf.float32)
        return tf.reshape(scaled, (-1, height, width, channels))

    def _compute(
        self,
        rows: tf.Tensor,
        flags: tf.Tensor,
        images: tf.Tensor,
        targets: tf.Tensor,
        weights: tf.Tensor | None = None,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return this rank's share of the gradient of the mean loss, and of the totals.

        Args:
            rows: number of rows of the global batch.
            flags: (6 + metrics,), added to the totals.
            images, targets, weights: (n, ...), (n, ...) and (n,), this rank's rows; classes need no
                weights.

        Returns:
            The gradient of each trainable variable, in its shape and type, and the totals
            (6 + metrics,).
        """
        valid = (targets if weights is None else weights) >= 0
        with tf.GradientTape() as tape:
            outputs = tf.cast(self._model(self._inputs(images), training=True), tf.float32)
            losses = _weighted_losses(
                self._measures.losses.training(outputs, targets), valid, weights
            )
            loss = tf.reduce_sum(losses) / rows
            penalties = self._model.losses
            if penalties:
                # This rank's share of all rows; `_apply` corrects for unreadable rows.
                share = tf.reduce_sum(tf.cast(valid, tf.float32)) / rows
                loss += penalty(penalties, self._are_sums, share)
            scaled = self._optimizer.scale_loss(loss)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(scaled, variables)
        self._connected = [gradient is not None for gradient in gradients]
        # Gradients of embeddings become dense.
        gradients = [
            tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return gradients, self._sums(losses, outputs, targets, valid) + flags

    def _apply(self, gradients: Sequence[tf.Tensor], correction: tf.Tensor | None = None) -> None:
        """Apply gradients, multiplied by ``correction`` if some rows were unreadable."""
        variables = self._model.trainable_variables
        gradients = [
            tf.cast(gradient, variable.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        if correction is not None:
            gradients = [gradient * tf.cast(correction, gradient.dtype) for gradient in gradients]
        gradients, variables = drop_unconnected(self._inner, gradients, variables, self._connected)
        is_first = self._inner.iterations == 0
        self._optimizer.apply(gradients, variables)
        for statistic, mean in self._statistics:  # averaged like weights in Keras
            momentum = tf.where(is_first, 0.0, self._inner.ema_momentum)
            mean.assign(mean * momentum + statistic * (1.0 - momentum))

    def _compute_exchange_apply(
        self, rows: tf.Tensor, flags: tf.Tensor, *local_rows: tf.Tensor
    ) -> tf.Tensor:
        return self._exchange_apply(*self._compute(rows, flags, *local_rows), rows)

    def _take_steps(
        self, sizes: tf.Tensor, rows: tf.Tensor, flags: tf.Tensor, *local_rows: tf.Tensor
    ) -> tf.Tensor:
        """Take several steps one after another.

        Args:
            sizes: (steps,) rows of each global batch.
            rows: (steps,) rows of this rank in each batch.
            flags: (6 + metrics,), added to the totals of each step.
            local_rows: the rows of all batches, concatenated.

        Returns:
            The totals of each step, (steps, 6 + metrics).
        """
        steps = tf.shape(sizes)[0]

        def take(step: tf.Tensor, first: tf.Tensor, sums: tf.TensorArray) -> tuple[Any, ...]:
            last = first + rows[step]
            batch = [part[first:last] for part in local_rows]
            gradients, local_sums = tf.cond(
                last > first,
                lambda: self._compute(sizes[step], flags, *batch),
                lambda: (self._zeros(), flags),
            )
            return (
                step + 1,
                last,
                sums.write(step, self._exchange_apply(gradients, local_sums, sizes[step])),
            )

        *_, sums = tf.while_loop(
            lambda step, *_: step < steps,
            take,
            (0, 0, tf.TensorArray(tf.float32, steps, element_shape=flags.shape)),
            parallel_iterations=1,
        )
        return sums.stack()

    def _exchange_apply(
        self, gradients: Sequence[tf.Tensor], sums: tf.Tensor, rows: tf.Tensor
    ) -> tf.Tensor:
        assert isinstance(self._exchange, NoExchange)
        gradients, sums = self._exchange.sum_in_graph(gradients, sums)
        count = sums[_COUNT]
        # A batch without readable samples changes nothing.
        tf.cond(count > 0, lambda: self._apply(gradients, rows / count), lambda: None)
        return sums

    def _evaluate(
        self, images: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the totals of some rows, (6 + metrics,), and the outputs for them."""
        valid = (targets if weights is None else weights) >= 0
        outputs = tf.cast(self._model(self._inputs(images), training=False), tf.float32)
        losses = _weighted_losses(
            self._measures.losses.evaluation(outputs, targets), valid, weights
        )
        return self._sums(losses, outputs, targets, valid), outputs

    def _sums(
        self, losses: tf.Tensor, outputs: tf.Tensor, targets: tf.Tensor, valid: tf.Tensor
    ) -> tf.Tensor:
        """Return the totals of some rows, (6 + metrics,) float32."""
        correct = self._measures.losses.correct(outputs, targets)
        sums = tf.stack(
            [
                tf.reduce_sum(losses),
                tf.reduce_sum(correct * tf.cast(valid, tf.float32)),
                tf.reduce_sum(tf.cast(valid, tf.float32)),
                *3 * [tf.constant(0.0)],
            ]
        )
        metrics = self._measures.metrics
        if metrics.width:
            return tf.concat([sums, metrics.sums(outputs, targets, valid)], axis=0)
        return sums

    def _zeros(self) -> list[tf.Tensor]:
        """Return the gradients of a rank without rows."""
        return [
            tf.zeros(variable.shape, variable.value.dtype)
            for variable in self._model.trainable_variables
        ]


def _named_variables(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    statistics: Sequence[tuple[Any, Any]] = (),
) -> list[tuple[str, Any]]:
    """Return all variables with names that are equal in every process: index and path.

    Args:
        model: model of the network.
        optimizer: optimizer of the network.
        statistics: statistics of the model, each with its running mean.
    """
    pairs = [
        *(("model", variable) for variable in model.variables),
        *(("optimizer", variable) for variable in optimizer.variables),
    ]
    mean_of = {id(statistic): mean for statistic, mean in statistics}
    named = [
        (f"{owner}/{index:04d}/{variable.path}", variable)
        for index, (owner, variable) in enumerate(pairs)
    ]
    return named + [
        (name.replace("model/", "statistics/", 1), mean_of[id(variable)])
        for name, variable in named
        if id(variable) in mean_of
    ]


def _with_means(model: keras.Model) -> list[tuple[Any, Any]]:
    """Return the statistics of batch normalization, each with a variable for its mean."""
    return [
        (variable, keras.Variable(variable.numpy(), trainable=False))
        for variable in model.non_trainable_variables
        if variable.name in ("moving_mean", "moving_variance")
    ]


def _readable_of_each(rows: Sequence[int], local_rows: Rows) -> tuple[Sequence[int], Rows]:
    """Return the number of readable rows of each batch, and these rows."""
    valid = local_rows[-1] >= 0
    if valid.all():
        return rows, local_rows
    counts = [int(np.count_nonzero(part)) for part in np.split(valid, np.cumsum(rows)[:-1])]
    return counts, tuple(part[valid] for part in local_rows)


def _graph_of(function: Callable[..., Any], **options: Any) -> Any:
    """Return a ``tf.function`` of one network, whose tracings are counted separately.

    TensorFlow warns about functions that are traced often. It counts by code object, so many
    networks that are each traced once would look like one function traced many times. A partial has
    no code object.
    """
    return tf.function(partial(function), **options)


def _weighted_losses(losses: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    """Return the weighted losses of samples, 0 for unreadable ones: (n,)."""
    if weights is not None:
        losses *= weights
    return tf.where(valid, losses, tf.zeros_like(losses))
