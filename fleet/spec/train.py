"""The keys of ``train``: batches, optimizers, losses, and when training ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass

from fleet.spec import fields as kinds
from fleet.spec.fields import AboveZero, BelowOne, NotNegative, Positive, Real, unset
from fleet.spec.measures import FIELDS, Measure, check_measures, check_monitor
from fleet.vocabulary.measures import UP, direction_of
from fleet.vocabulary.schedules import schedule_schema
from scheduler.ensemble.policies import POLICIES


def _choosing() -> str:
    """The policies that choose batches."""
    return " and ".join(policy.name for policy in POLICIES.values() if policy.sets_batch)


ByClass = Annotated[
    dict[str, float],
    BeforeValidator(
        lambda found: {str(key): value for key, value in found.items()}
        if isinstance(found, Mapping)
        else found
    ),
]


@dataclass(frozen=True, config=kinds.STRICT)
class Batch:
    """The batch of a training step, which the GPUs of a group share."""

    size: Positive | tuple[Positive, Positive] = Field(
        default=128,
        description=(
            "Number of samples in a training step, over all GPUs of a group together. Or [least, most]: then the policy "
            f"chooses the batch of each epoch, with the number of GPUs. Only for the policy {_choosing()}. How long steps "
            "and exchanges of gradients take is read from `schedule.rates`, or measured before anything trains."
        ),
    )
    when_scaled: Literal["fixed", "per_gpu"] = Field(
        default="fixed",
        description=(
            "What happens on several GPUs. fixed: they split the batch, so that the result does not depend on their "
            "number. per_gpu: each has a batch of this size, and the learning rate is multiplied by the number of GPUs "
            "(the linear scaling rule)."
        ),
    )
    learning_rate: Literal["linear", "sqrt", "fixed"] = Field(
        default="linear",
        description=(
            "Only for a size [least, most]: what becomes of the optimizer's learning rate, which is that of the least "
            "batch, in an epoch of a larger one. linear: it grows as the batch does. sqrt: as the square root of the "
            "batch. fixed: it stays. A schedule still counts steps, of any size."
        ),
    )
    accumulate: Positive = Field(
        default=1,
        description=(
            "Number of training steps whose gradients are averaged before the weights change. The batch of the optimizer "
            "is so many times `size`, while a GPU holds no more rows."
        ),
    )

    @property
    def is_elastic(self) -> bool:
        """Whether the policy chooses the batch, epoch by epoch."""
        return isinstance(self.size, tuple)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest size."""
        if isinstance(self.size, tuple):
            return self.size
        return (self.size, self.size)

    def learning_rate_scale(self, size: int) -> float:
        """The factor of the learning rate in an epoch of this batch.

        >>> [Batch((64, 512), learning_rate=rule).learning_rate_scale(256) for rule in ("linear", "sqrt", "fixed")]
        [4.0, 2.0, 1.0]
        """
        if not self.is_elastic or self.learning_rate == "fixed":
            return 1.0
        times = size / self.bounds[0]
        if self.learning_rate == "linear":
            return times
        return math.sqrt(times)

    @model_validator(mode="after")
    def _is_a_range(self) -> Batch:
        if self.bounds[0] > self.bounds[1]:
            raise ValueError(f"size: {list(self.bounds)} should be [least, most]")
        if self.is_elastic and self.when_scaled == "per_gpu":
            raise ValueError(
                "size: [least, most] and when_scaled: per_gpu: the batch follows the policy, or the GPUs; "
                "should be one of them"
            )
        return self


@dataclass(frozen=True, config=kinds.STRICT)
class Optimizer:
    """A Keras optimizer. A parameter that is not given keeps the default of Keras."""

    name: kinds.OptimizerName = Field(
        default="sgd",
        description=(
            "Which optimizer trains the network: a name of Keras, in lower case, or the import path of your own function, "
            "which is called with learning_rate and `args` and returns a keras.optimizers.Optimizer; for the engine torch "
            "with the parameters first, and it returns a torch.optim.Optimizer."
        ),
    )
    learning_rate: Annotated[
        AboveZero | dict[str, Any] | None, WithJsonSchema(schedule_schema())
    ] = unset(
        "The learning rate: a number, or a schedule of Keras with its arguments, like "
        "{name: CosineDecay, initial_learning_rate: 0.1, decay_steps: 1000}. Without it, the optimizer's default in "
        "Keras: 0.01 for sgd, 0.0025 for schedulefreeadamw, 0.001 for all others; that of your own function, or 0.01 "
        "if it has none."
    )
    momentum: BelowOne | None = unset(
        "Only for sgd, rmsprop and muon: which share of the previous step is added to the next."
    )
    nesterov: bool | None = unset(
        "Only for sgd and muon: whether the momentum is that of Nesterov."
    )
    beta_1: BelowOne | None = unset(
        "Only for the kinds of Adam, lamb and lion: decay of the running mean of the gradients."
    )
    beta_2: BelowOne | None = unset(
        "Only for the kinds of Adam, lamb and lion: decay of the running mean of the squared gradients."
    )
    epsilon: AboveZero | None = unset(
        "Not for sgd, lion, ftrl and adafactor: a small number in the denominator, for numerical stability."
    )
    weight_decay: NotNegative | None = unset(
        "Weight decay: each step takes this share of every weight away, times the learning rate."
    )
    global_clipnorm: AboveZero | None = unset(
        "Largest norm of all gradients together. If it is exceeded, they are scaled down to it."
    )
    clipnorm: AboveZero | None = unset(
        "Largest norm of each variable's gradient. If it is exceeded, the gradient is scaled down to it."
    )
    clipvalue: AboveZero | None = unset("Largest absolute value of a gradient's numbers.")
    use_ema: bool | None = unset(
        "Whether running means of the weights, and of the statistics of batch normalization, are kept, by which the "
        "network is judged and exported."
    )
    ema_momentum: Annotated[float, Field(ge=0, le=1), kinds.NO_FLAG] | None = unset(
        "Decay of the running means of the weights."
    )
    ema_overwrite_frequency: Positive | None = unset(
        "Number of steps after which the weights are set to these means. Without it, never in training."
    )
    rho: BelowOne | None = unset(
        "Only for adadelta and rmsprop: decay of the running mean of the squared gradients."
    )
    beta_2_decay: Real | None = unset("Only for adafactor: decay rate of the second moment.")
    epsilon_1: NotNegative | None = unset(
        "Only for adafactor: a small number that is added to squared gradients."
    )
    epsilon_2: NotNegative | None = unset("Only for adafactor: least scale of a parameter.")
    clip_threshold: NotNegative | None = unset(
        "Only for adafactor: largest root mean square of an update."
    )
    relative_step: bool | None = unset("Only for adafactor: whether steps shrink by themselves.")
    initial_accumulator_value: NotNegative | None = unset(
        "Only for adagrad and ftrl: where the sums of squared gradients begin."
    )
    amsgrad: bool | None = unset(
        "Only for adam and adamw: whether the largest second moment so far is used, as in AMSGrad."
    )
    learning_rate_power: Real | None = unset(
        "Only for ftrl: power by which the learning rate falls, at most 0."
    )
    l1_regularization_strength: NotNegative | None = unset(
        "Only for ftrl: strength of the penalty on absolute values."
    )
    l2_regularization_strength: NotNegative | None = unset(
        "Only for ftrl: strength of the penalty on squares."
    )
    l2_shrinkage_regularization_strength: NotNegative | None = unset(
        "Only for ftrl: strength of the penalty on squares that only shrinks."
    )
    beta: Real | None = unset("Only for ftrl: the number beta of the paper of FTRL.")
    adam_beta_1: BelowOne | None = unset("Only for muon: beta_1 for what Adam trains.")
    adam_beta_2: BelowOne | None = unset("Only for muon: beta_2 for what Adam trains.")
    adam_weight_decay: NotNegative | None = unset(
        "Only for muon: weight decay of what Adam trains."
    )
    exclude_layers: tuple[str, ...] | None = unset(
        "Only for muon: patterns of the paths of layers that Adam trains."
    )
    exclude_embeddings: bool | None = unset("Only for muon: whether Adam trains embeddings.")
    muon_a: Real | None = unset("Only for muon: coefficient a of the iteration.")
    muon_b: Real | None = unset("Only for muon: coefficient b of the iteration.")
    muon_c: Real | None = unset("Only for muon: coefficient c of the iteration.")
    adam_lr_ratio: NotNegative | None = unset(
        "Only for muon: learning rate of what Adam trains, as a multiple."
    )
    ns_steps: Positive | None = unset("Only for muon: number of steps of the iteration.")
    rms_rate: Real | None = unset(
        "Only for muon: factor that brings updates to the size of those of Adam."
    )
    centered: bool | None = unset(
        "Only for rmsprop: whether gradients are divided by an estimate of their variance."
    )
    warmup_steps: Annotated[int, Field(ge=0), kinds.NO_FLAG] | None = unset(
        "Only for schedulefreeadamw: number of steps in which the learning rate rises to its value."
    )
    args: dict[str, Any] | None = unset(
        "Only for a function of your own: its further arguments, by name."
    )

    @model_validator(mode="after")
    def _clips_in_one_way(self) -> Optimizer:
        if (
            sum(
                getattr(self, clip) is not None
                for clip in ("clipnorm", "clipvalue", "global_clipnorm")
            )
            > 1
        ):
            raise ValueError("clipnorm, clipvalue and global_clipnorm: should be one of them")
        return self


@dataclass(frozen=True, config=kinds.STRICT)
class Stopping:
    """When the training of a network ends: at the first of these conditions."""

    max_epochs: Positive = Field(
        default=60, description="Largest number of epochs that a network is trained."
    )
    patience: Positive | None = Field(
        default=None,
        description=(
            "Number of epochs without an improvement of `monitor` after which training ends. Without it, training does not "
            "end early."
        ),
    )
    monitor: kinds.Monitor | None = Field(
        default=None,
        description=(
            "The quantity that decides which epoch is the best, and when training ends: loss, accuracy or a metric, with "
            "val_ before it that of the validation data. Without it, val_accuracy for classes and val_loss for all else. "
            "Of epochs with equal values, the one with the least loss is the best: of validation, or of training without "
            "validation data."
        ),
    )
    min_delta: NotNegative = Field(
        default=0.0,
        description=(
            "How much better than its best value so far `monitor` must be to count as an improvement."
        ),
    )
    stop_at: Real | None = Field(
        default=None, description="Value of `monitor` that is good enough to end training."
    )
    direction: Literal["max", "min"] | None = Field(
        default=None,
        description=(
            "Whether `monitor` is better when it is larger (max) or smaller (min). Only a metric of your own needs it."
        ),
    )

    @property
    def metric(self) -> str:
        """What is monitored; val_accuracy where nobody has said it, neither the spec nor the data."""
        return self.monitor or "val_accuracy"

    @property
    def sign(self) -> int:
        """1 where more of what is monitored is better, else -1."""
        if (self.direction or direction_of(self.metric)) == UP:
            return 1
        return -1


@dataclass(frozen=True, config=kinds.STRICT)
class Start:
    """The weights with which a network begins, instead of random ones."""

    file: str = Field(
        min_length=1,
        description=(
            "The file of weights: for Keras `.weights.h5` or `.keras`, for PyTorch `.safetensors`. Weights go by their "
            "names; those that only the file or only the network has are a mistake, and so are those of another shape."
        ),
    )
    skip: tuple[str, ...] = Field(
        default=(),
        description=(
            "Patterns of names, like `head.*`, of weights that are not taken from the file: they begin at random."
        ),
    )
    freeze: tuple[str, ...] = Field(
        default=(),
        description=(
            "Patterns of names of weights that training leaves as they are. A normalisation whose statistics are among "
            "them works with these."
        ),
    )


# Told apart, so that a mistake in the one is not explained by the other.
_FileOrStart = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("file")] | Annotated[Start, Tag("start")],
    Discriminator(lambda said: "file" if isinstance(said, str) else "start"),
]


@dataclass(frozen=True, config=kinds.STRICT)
class Train:
    """How networks are trained: in which batches, by which optimizer, and for how long."""

    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    stopping: Stopping = Stopping()
    loss: Measure | None = Field(
        default=None,
        description=(
            "The loss: a name of Keras, like mean_absolute_error, or the import path of your own function of (targets, "
            "outputs), or of (outputs, targets) if its parameters are named so, which gives a number for each sample, or "
            "each pixel of masks; or one of them with its parameters, "
            "like {huber: {delta: 2}}. Without it, the softmax cross-entropy for class, the sigmoid "
            "cross-entropy for multilabel, the mean squared error for value, the cross-entropy of each pixel for mask."
        ),
    )
    metrics: tuple[Measure, ...] = Field(
        default=(),
        description=(
            "What else is computed of each epoch: names of Keras, like AUC or mean_absolute_error, and import paths of "
            "your own functions of (targets, outputs), which give a number for each sample; with parameters, like {AUC: "
            "{curve: PR, name: auc_pr}}, where `name` is that of the column. Outputs are then probabilities, except of "
            "value."
        ),
    )
    label_smoothing: BelowOne = Field(
        default=0.0,
        description=(
            "Share of a class, or label, that the loss spreads over all of them. Only for class, multilabel and mask."
        ),
    )
    start: _FileOrStart | None = Field(
        default=None,
        description=(
            "With which weights the network begins: a file, or a mapping. A network that goes on from a checkpoint, or "
            "begins with the weights of another one, reads no file."
        ),
    )
    class_weights: Literal["balanced"] | ByClass | None = Field(
        default=None,
        description=(
            "How much the samples, or the pixels, of each class count in the loss of training: a number from 0 for names "
            "or numbers of classes, 1 for the others. balanced: so that all classes count the same; for mask every mask is "
            "read first."
        ),
    )
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = Field(
        default="float32",
        description=(
            "Precision of the computations, as a dtype policy of Keras. The mixed ones compute with 16 bits and keep the "
            "weights in 32."
        ),
    )
    xla: bool = Field(default=False, description="Whether XLA compiles the training steps.")
    deterministic: bool = Field(
        default=False,
        description=(
            "Whether the same training gives the same numbers, bit for bit, on one machine, with one version of the engine "
            "and groups of one size, so that --replay is exact. If one network asks for it, all of the launch are trained "
            "so: the engine takes deterministic kernels, and each rank without a GPU computes in one thread, which is "
            "slower."
        ),
    )
    build_timeout: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=300.0,
        json_schema_extra=kinds.written_as("5min"),
        description=(
            "How long building the network may take, like 5min. In fleet check the same is true of a training step and "
            "of the export. A network that takes longer has failed."
        ),
    )

    @property
    def initial_weights(self) -> Start | None:
        """With which weights, as a mapping says it."""
        if isinstance(self.start, str):
            return Start(self.start)
        return self.start

    @model_validator(mode="after")
    def _is_measured(self) -> Train:
        labels = check_measures(self.loss, self.metrics, self.class_weights)
        check_monitor(self.stopping.monitor, [*FIELDS, *labels])
        return self
