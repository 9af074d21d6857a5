"""Compute the steps of a Keras model in graphs.

A step is one ``tf.function``, or two if MPI is called in between; a call of the former can take
several steps. Each rank sums the losses of its own rows and divides by the rows of the *global*
batch; the exchange sums over the ranks; a later correction accounts for unreadable rows. Penalties
are split likewise (:mod:`fleet.engines.keras.penalties`). So uneven shares are exact, and a rank
without rows contributes zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from fleet.engines.base import INDEX, WIDTH
from fleet.engines.batch_transforms import transformed_sample
from fleet.engines.keras.exchange import Exchange, HorovodExchange, NoExchange
from fleet.engines.keras.inputs import Inputs, model_inputs, row_spec
from fleet.engines.keras.losses import OPS
from fleet.engines.keras.named_parts import integer_inputs
from fleet.engines.keras.optimizer import drop_unconnected
from fleet.engines.keras.outputs import joined_outputs, target_spec, targets_of
from fleet.engines.keras.own_step import KerasStep
from fleet.engines.keras.penalties import penalty, sums_over_rows
from fleet.engines.keras.variables import NetworkVariables
from fleet.engines.measures import Measures
from fleet.engines.several_targets import LossOfTargets
from preprocess.sample import SampleSpec


class StepGraphs:
    """The graphs of a network, each traced when it is first called.

    Args:
        exchange: exchange of the present group.
        xla: True to compile steps.
        has_code: True if user code computes a part of a step; its ``if`` and ``while`` may depend
            on tensors, so AutoGraph converts it. Converting FLEET's code, too, would take half a
            second per process.
        own_step: a step of the user, instead of the loss of ``measures``; None without one. The
            rows of samples in the data set then follow their inputs.
        transforms_batches: True if batches of training are those of
            :mod:`fleet.engines.batch_transforms`.

    Attributes:
        exchange: exchange of the present group.
        local: computes this rank's gradients and totals.
        update: applies gradients.
        strides: takes several steps including the exchange, by kind of exchange; see
            :meth:`stride_of`.
        compiled: takes a step of a group of one rank by XLA; None without XLA.
        evaluation: computes totals and outputs; only totals of a step of the user.
        prediction: computes outputs.
        connected: True for variables that the loss depends on; empty before tracing.
    """

    def __init__(
        self,
        variables: NetworkVariables,
        sample: SampleSpec,
        measures: Measures,
        exchange: Exchange,
        xla: bool,
        has_code: bool,
        own_step: KerasStep | None = None,
        transforms_batches: bool = False,
    ) -> None:
        self.exchange = exchange
        self.connected: list[bool] = []
        self._own_step = own_step
        self.width = WIDTH + measures.metrics.width
        self._model = variables.model
        self._optimizer = variables.optimizer
        self._inner = variables.inner
        self._statistics = variables.statistics
        self._sample = sample
        self._measures = measures
        self._are_sums = sums_over_rows(self._model, sample.input_shape, integer_inputs(sample))
        self._transforms_batches = transforms_batches
        own_rows = [] if own_step is None else [tf.TensorSpec((None,), tf.int64)]
        evaluated = _specs_of(sample, own_rows)
        rows = evaluated
        if transforms_batches:
            rows = _specs_of(transformed_sample(sample), own_rows)
        flags = tf.TensorSpec((self.width,), tf.float32)
        signature = [tf.TensorSpec((), tf.float32), flags, *rows]
        compiled = {"input_signature": signature, "jit_compile": xla or None}
        graph_of = partial(_graph_of, autograph=has_code)
        self.local = graph_of(self._compute, **compiled)
        self.update = graph_of(self._apply)
        several = [tf.TensorSpec((None,), tf.float32), tf.TensorSpec((None,), tf.int32), flags]
        # These graphs include the exchange, so each kind of exchange has its own graph. XLA does
        # not support Horovod's operation.
        self.strides: dict[type, Any] = {
            kind: graph_of(self._take_steps, input_signature=[*several, *rows])
            for kind in (NoExchange, HorovodExchange)
        }
        self._traced_strides: dict[type, Any] = {}
        self.compiled = None
        if xla:  # XLA needs static sizes, so it takes steps one by one
            del self.strides[NoExchange]
            self.compiled = graph_of(self._compute_exchange_apply, **compiled)
        evaluate = self._evaluate if own_step is None else self._evaluate_own
        self.evaluation = graph_of(evaluate, input_signature=evaluated)
        self.prediction = graph_of(self._predict, input_signature=evaluated[:1])

    def stride_of(self, kind: type) -> Callable[..., tf.Tensor] | None:
        """Return the graph of :attr:`strides` for a kind of exchange, traced; None without one.

        Python takes 0.2 ms longer to call a ``tf.function``, which compares the types of its
        arguments with those of its graphs.
        """
        if kind not in self._traced_strides and kind in self.strides:
            self._traced_strides[kind] = self.strides[kind].get_concrete_function()
        return self._traced_strides.get(kind)

    @property
    def is_compiled(self) -> bool:
        """True if XLA compiles steps, which need static sizes."""
        return self.compiled is not None

    @property
    def sample(self) -> SampleSpec:
        """Shape and type of the samples."""
        return self._sample

    @property
    def has_own_step(self) -> bool:
        """True if a step of the user computes the losses."""
        return self._own_step is not None

    def inputs(self, inputs: tf.Tensor) -> Inputs:
        """Return the inputs of the model, augmented and scaled, from samples as they travel."""
        return model_inputs(inputs, self._sample)

    def _compute(
        self,
        rows: tf.Tensor,
        flags: tf.Tensor,
        *local_rows: tf.Tensor,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return this rank's share of the gradient of the mean loss, and of the totals.

        Args:
            rows: number of rows of the global batch.
            flags: (6 + metrics,), added to the totals.
            local_rows: (n, ...), (n, ...) and (n,): inputs, targets and weights of this rank's
                rows; classes need no weights.

        Returns:
            The gradient of each trainable variable, in its shape and type, and the totals
            (6 + metrics,).
        """
        valid = local_rows[-1] >= 0
        with tf.GradientTape() as tape:
            losses, sums_of = self._losses(local_rows, valid)
            loss = tf.reduce_sum(losses) / rows
            penalties = self._model.losses
            if penalties:
                # This rank's share of all rows; `_apply` corrects for unreadable rows.
                share = tf.reduce_sum(tf.cast(valid, tf.float32)) / rows
                loss += penalty(penalties, self._are_sums, share)
            scaled = self._optimizer.scale_loss(loss)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(scaled, variables)
        self.connected = [gradient is not None for gradient in gradients]
        # Gradients of embeddings become dense.
        gradients = [
            tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return gradients, sums_of() + flags

    def _losses(
        self, local_rows: Sequence[tf.Tensor], valid: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[], tf.Tensor]]:
        """Return the weighted training losses of rows, and a function that returns their totals."""
        if self._own_step is not None:
            own_step = self._own_step
            inputs, indices, *targets = local_rows
            batch = own_step.batch_of(self.inputs(inputs), indices, *targets)
            losses, values = own_step.losses(self._model, batch, True)
            return losses, partial(own_step.sums, losses, values)
        inputs, target_rows, *weights = local_rows
        if not self._transforms_batches:
            inputs = self.inputs(inputs)
        targets = targets_of(target_rows, self._sample.target)
        outputs = joined_outputs(
            self._model, self._model(inputs, training=True), self._sample.target
        )
        loss_of = self._measures.losses.training
        losses, by_target = _weighted(loss_of, outputs, targets, valid, *weights)
        if self._transforms_batches:
            targets = OPS.most_likely(targets, self._sample.target)
        return losses, partial(self._sums, losses, outputs, targets, valid, by_target)

    def _apply(self, gradients: Sequence[tf.Tensor], correction: tf.Tensor | None = None) -> None:
        """Apply gradients, multiplied by ``correction`` if some rows were unreadable."""
        variables = self._model.trainable_variables
        gradients = [
            tf.cast(gradient, variable.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        if correction is not None:
            gradients = [gradient * tf.cast(correction, gradient.dtype) for gradient in gradients]
        gradients, variables = drop_unconnected(self._inner, gradients, variables, self.connected)
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
                lambda: (self.zeros(), flags),
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
        assert isinstance(self.exchange, NoExchange)
        gradients, sums = self.exchange.sum_in_graph(gradients, sums)
        count = sums[INDEX["count"]]
        # A batch without readable samples changes nothing.
        tf.cond(count > 0, lambda: self._apply(gradients, rows / count), lambda: None)
        return sums

    def _evaluate(
        self, inputs: tf.Tensor, target_rows: tf.Tensor, weights: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the totals of some rows, (6 + metrics,), and the outputs for them."""
        valid = (target_rows if weights is None else weights) >= 0
        targets = targets_of(target_rows, self._sample.target)
        outputs = self._predict(inputs)
        loss_of = self._measures.losses.evaluation
        losses, by_target = _weighted(loss_of, outputs, targets, valid, weights)
        return self._sums(losses, outputs, targets, valid, by_target), outputs

    def _evaluate_own(
        self, inputs: tf.Tensor, indices: tf.Tensor, *targets: tf.Tensor
    ) -> tf.Tensor:
        """Return the totals that a step of the user computes for readable rows."""
        assert self._own_step is not None
        batch = self._own_step.batch_of(self.inputs(inputs), indices, *targets)
        return self._own_step.sums(*self._own_step.losses(self._model, batch, False))

    def _predict(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs for some rows."""
        returned = self._model(self.inputs(inputs), training=False)
        return joined_outputs(self._model, returned, self._sample.target)

    def _sums(
        self,
        losses: tf.Tensor,
        outputs: tf.Tensor,
        targets: Any,
        valid: tf.Tensor,
        by_target: Mapping[str, tf.Tensor],
    ) -> tf.Tensor:
        """Return the totals of some rows, (6 + metrics,) float32.

        Args:
            losses: (n,) weighted losses.
            outputs: (n, ...).
            targets: (n, ...); of several, by name.
            valid: (n,), True for readable rows.
            by_target: (n,) weighted losses of each of several targets.
        """
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
        if by_target:
            counted = tf.cast(valid, tf.float32)
            states = metrics.sums(
                outputs,
                targets,
                {name: tf.reduce_sum(values) for name, values in by_target.items()},
                lambda values: tf.reduce_sum(values * counted),
                tf.reduce_sum(counted),
                valid,
            )
            return tf.concat([sums, states], axis=0)
        if metrics.width:
            return tf.concat([sums, metrics.sums(outputs, targets, valid)], axis=0)
        return sums

    def zeros(self) -> list[tf.Tensor]:
        """Return the gradients of a rank without rows."""
        return [
            tf.zeros(variable.shape, variable.value.dtype)
            for variable in self._model.trainable_variables
        ]


def _specs_of(sample: SampleSpec, own_rows: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return the specs of inputs, ``own_rows``, targets and, except for plain classes, weights."""
    target = sample.target
    return [
        row_spec(sample),
        *own_rows,
        target_spec(target),
        *([] if target.is_plain else [tf.TensorSpec((None,), tf.float32)]),
    ]


def _graph_of(function: Callable[..., Any], **options: Any) -> Any:
    """Return a ``tf.function`` of one network, whose tracings are counted separately.

    TensorFlow warns about functions that are traced often. It counts by code object, so many
    networks that are each traced once would look like one function traced many times. A partial has
    no code object.
    """
    return tf.function(partial(function), **options)


def _weighted(
    loss_of: Callable[..., tf.Tensor],
    outputs: tf.Tensor,
    targets: Any,
    valid: tf.Tensor,
    weights: tf.Tensor | None = None,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted losses of samples, (n,), and those of each of several targets."""
    if not isinstance(loss_of, LossOfTargets):
        return _weighted_losses(loss_of(outputs, targets), valid, weights), {}
    by_target = {
        name: _weighted_losses(losses, valid, weights)
        for name, losses in loss_of.by_target(outputs, targets).items()
    }
    return loss_of.total(by_target), by_target


def _weighted_losses(losses: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
    """Return the weighted losses of samples, 0 for unreadable ones: (n,)."""
    if weights is not None:
        losses *= weights
    return tf.where(valid, losses, tf.zeros_like(losses))
