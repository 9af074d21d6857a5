"""A Keras model in training: its steps, evaluation, state and export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from fleet.comm.protocols import Group
from fleet.engines.base import (
    Arrays,
    EpochProgress,
    Rows,
    StepResult,
    StepTotals,
    select_readable,
    with_indices,
)
from fleet.engines.custom import runs_user_code
from fleet.engines.keras.export import check_config, export_model, try_load
from fleet.engines.keras.graphs import StepGraphs
from fleet.engines.keras.inputs import as_bytes, as_rows, takes_cut_rows
from fleet.engines.keras.losses import check_losses
from fleet.engines.keras.memory import activation_bytes
from fleet.engines.keras.optimizer import ScalableRate, epoch_schedule_of
from fleet.engines.keras.outputs import joined_outputs, targets_of
from fleet.engines.keras.own_step import KerasStep
from fleet.engines.keras.pretrained import load_pretrained
from fleet.engines.keras.steps import KerasSteps
from fleet.engines.keras.variables import NetworkVariables, named_variables
from fleet.engines.measures import Measures
from fleet.engines.steps import StepBatches, StepCapabilities, UserSteps
from fleet.errors import ModelError
from fleet.storage.files import atomic_write_with
from preprocess.sample import SampleSpec
from preprocess.user_code import UserCode


@dataclass(eq=False)
class KerasNetwork:
    """A Keras model in training, on one rank of its group.

    Attributes:
        free: hyperparameters that are not part of a graph
            (:func:`fleet.engines.keras.optimizer.extract_hyperparameters`).
        rate: the learning rate, if the batch changes.
        code: user code that computes a part of a step.
        own_step: a step of the user; None without one.
        has_predictions: whether the model returns predictions of the target.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    sample: SampleSpec
    measures: Measures
    variables: NetworkVariables
    graphs: StepGraphs
    steps: KerasSteps
    free: Mapping[str, tf.Variable]
    rate: ScalableRate
    code: UserCode | None
    own_step: KerasStep | None = None
    has_predictions: bool = True
    is_closed: bool = False

    @property
    def capabilities(self) -> StepCapabilities:  # noqa: D102 - see SupportsSteps
        capabilities = self.steps.capabilities
        if not self.sample.varying:
            return capabilities
        is_cut = not self.graphs.is_compiled and takes_cut_rows(self.model, self.sample)
        return replace(capabilities, max_steps_per_call=1, lengths="any" if is_cut else "one")

    def begin_steps(self, batches: StepBatches) -> Callable[[], StepResult]:  # noqa: D102
        return self.steps.begin(batches)

    @property
    def user_steps(self) -> UserSteps | None:
        """See :class:`fleet.engines.steps.UserSteps`."""
        if self.own_step is None:
            return None
        return UserSteps(
            self.own_step.returns_accuracy,
            self.has_predictions,
            self.steps.begin,
            self._evaluate_by_user,
        )

    @runs_user_code
    def _evaluate_by_user(self, rows: Rows, indices: np.ndarray) -> StepTotals:
        readable_rows = select_readable(with_indices(rows, indices))
        if not len(readable_rows[1]):
            return StepTotals()
        with self.steps.seeded_generators(), self.variables.running_means():
            rows = (as_rows(readable_rows[0], self.sample), *map(as_bytes, readable_rows[1:]))
            return StepTotals.unpack(self.graphs.evaluation(*rows).numpy())

    @runs_user_code
    def evaluate(self, *rows: np.ndarray) -> StepTotals:  # noqa: D102
        return StepTotals.unpack(self._run_evaluation(rows)[0].numpy())

    @runs_user_code
    def predict(self, *rows: np.ndarray) -> tuple[StepTotals, np.ndarray]:  # noqa: D102
        if self.own_step is not None:
            with self.steps.seeded_generators(), self.variables.running_means():
                return StepTotals(), self.graphs.prediction(as_rows(rows[0], self.sample)).numpy()
        sums, outputs = self._run_evaluation(rows)
        return StepTotals.unpack(sums.numpy()), outputs.numpy()

    def _run_evaluation(self, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
        with self.steps.seeded_generators(), self.variables.running_means():
            sums, outputs = self.graphs.evaluation(
                as_rows(rows[0], self.sample), *map(as_bytes, rows[1:])
            )
            return sums, outputs

    @runs_user_code
    def scores(self, metric_totals: Sequence[float]) -> dict[str, float]:  # noqa: D102
        return self.measures.metrics.scores(metric_totals)

    @runs_user_code
    def learning_rate(self) -> float:  # noqa: D102
        return float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))

    def scale_learning_rate(self, factor: float) -> None:  # noqa: D102 - see SupportsRateScaling
        self.rate.set(self.optimizer, factor)

    @runs_user_code
    def begin_epoch(self, progress: EpochProgress) -> None:  # noqa: D102 - see SupportsEpochs
        schedule = epoch_schedule_of(self.optimizer)
        if schedule is not None:
            inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
            schedule.begin_epoch(progress, int(inner._iterations))

    def average_statistics(self) -> None:  # noqa: D102
        self.variables.average_over(self.graphs.exchange.group)

    def state(self) -> dict[str, np.ndarray]:  # noqa: D102
        return self.variables.state()

    @runs_user_code
    def load(self, arrays: Arrays) -> None:  # noqa: D102
        self.variables.load(arrays)

    @runs_user_code
    def load_pretrained(self, file: Path, skip: Sequence[str]) -> None:  # noqa: D102
        load_pretrained(self.model, file, skip)

    @runs_user_code
    def export(self, arrays: Arrays, path: Path) -> None:
        """Write the network as a ``.keras`` file that plain Keras loads in safe mode.

        The file takes samples as the stream carries them (images of 0 to 255 if ``scale`` is the
        last transform) and returns logits.
        """
        self.load(arrays)
        with self.variables.running_means():
            atomic_write_with(path, self._exported_model().save)

    def _exported_model(self) -> keras.Model:
        """Return the model to write; one that cannot be called with samples is written as it is."""
        try:
            return export_model(self.model, self.sample)
        except ModelError:
            if self.has_predictions:
                raise
            return self.model

    @runs_user_code
    def check_export(self) -> None:
        """Check, without writing anything, that the network can be exported.

        Raises:
            ModelError: it cannot be exported.
        """
        check_config(self._exported_model())

    @runs_user_code
    def try_export(self, folder: Path) -> str:  # noqa: D102 - see SupportsInspection
        path = folder / "best.keras"
        self.check_export()
        self.export(self.state(), path)
        with self.variables.running_means():
            return try_load(path, self.model, self.sample, self.has_predictions)

    @runs_user_code
    def count_parameters(self) -> int:  # noqa: D102
        return self.model.count_params()

    @runs_user_code
    def check_learns(self, inputs: np.ndarray, targets: np.ndarray) -> None:  # noqa: D102
        if self.own_step is not None:
            _check_user_step(self, self.own_step, with_indices((inputs, targets), None))
            return
        with tf.GradientTape() as tape:
            inputs_of_model = self.graphs.inputs(tf.constant(as_rows(inputs, self.sample)))
            returned = self.model(inputs_of_model, training=True)
            outputs = joined_outputs(self.model, returned, self.sample.target)
        if not np.isfinite(outputs).all():
            raise ModelError(
                "the untrained model returns NaN or infinity for samples of the data; check its "
                "initial weights and the scale of its inputs"
            )
        target_rows = tf.constant(as_bytes(targets))
        check_losses(self.measures.losses, outputs, targets_of(target_rows, self.sample.target))
        if not any(
            gradient is not None
            for gradient in tape.gradient(outputs, self.model.trainable_variables)
        ):
            raise ModelError(
                "the outputs of the model depend on no trainable weight, so it cannot learn"
            )

    @runs_user_code
    def row_bytes(self) -> int | None:  # noqa: D102
        return activation_bytes(self.graphs.local.get_concrete_function().graph)

    def regroup(self, group: Group) -> None:  # noqa: D102
        self.steps.regroup(group)

    def close(self) -> None:  # noqa: D102
        self.steps.close()
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
        for name, variable in self.free.items():
            variable.assign(getattr(inner, name))
        self.rate.reset_as(rate)
        self.load({name: variable.numpy() for name, variable in named_variables(model, optimizer)})
        self.steps.reopen(group)
        self.is_closed = False


def _check_user_step(network: KerasNetwork, step: KerasStep, rows: Rows) -> None:
    """Check on samples of the data that the loss is finite and depends on weights."""
    before = network.variables.state()
    in_graph = (as_rows(rows[0], network.sample), *map(as_bytes, rows[1:]))
    inputs, indices, *targets = map(tf.constant, in_graph)
    with tf.GradientTape() as tape:
        batch = step.batch_of(network.graphs.inputs(inputs), indices, *targets)
        returned = step.read(step.user_step(network.model, batch, True), len(rows[0]))
        loss = tf.reduce_sum(returned.losses)
    gradients = tape.gradient(
        loss, [variable.value for variable in network.model.trainable_variables]
    )
    network.variables.load(before)
    if not np.isfinite(loss):
        raise step.user_step.error(
            f"returned a loss of {float(loss)} for samples of the data; it should be finite"
        )
    if not any(gradient is not None and np.any(gradient) for gradient in gradients):
        raise step.user_step.error(
            "returned a loss that does not depend on the weights that it trains, so the network "
            "cannot learn"
        )
