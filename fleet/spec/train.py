"""The keys of ``train``: batches, optimizers, losses, and when training ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ArgsKwargs

from fleet.spec import fields as kinds
from fleet.spec.by_target import (
    ClassWeights,
    Loss,
    MetricsSetting,
    Smoothing,
    TargetSettings,
    list_class_weights,
    list_losses,
)
from fleet.spec.fields import AboveZero, BelowOne, NotNegative, Positive, Real
from fleet.spec.measures import FIELDS, Measure, check_measures, check_monitor, check_single_names
from fleet.spec.old_keys import SHORT_NAMES, with_new_keys
from fleet.spec.section import section
from fleet.vocabulary.measures import UP, direction_of
from fleet.vocabulary.schedules import schedule_schema
from fleet.vocabulary.torch_schedules import without_module
from scheduler.ensemble.policies import POLICIES


def _policies_with_batches() -> str:
    """Name the policies that choose batch sizes."""
    return " and ".join(policy.name for policy in POLICIES.values() if policy.sets_batch)


@section
class Batch:
    """The batch of a training step, shared by the GPUs of a group."""

    size: Positive | tuple[Positive, Positive] = Field(
        default=128,
        description=(
            "Number of samples per training step, over all GPUs of a group. Or [min, max]: the "
            "policy chooses the batch of each epoch together with the number of GPUs. Only for the "
            f"policy {_policies_with_batches()}. The times of steps and gradient exchanges come "
            "from `schedule.rates`, or are measured before training."
        ),
    )
    when_scaled: Literal["fixed", "per_gpu"] = "fixed"
    """How several GPUs share a batch. fixed: they split it, so that the result does not depend on
    their number. per_gpu: each GPU takes a batch of this size, and the learning rate is multiplied
    by the number of GPUs (the linear scaling rule).
    """
    learning_rate: Literal["linear", "sqrt", "fixed"] = "linear"
    """Only for a size [min, max]: how the learning rate, which is meant for the smallest batch,
    scales in an epoch with a larger one. linear: with the batch size. sqrt: with its square root.
    fixed: not at all. A schedule counts steps, whatever their batch size.
    """
    accumulate: Positive = 1
    """Number of training steps whose gradients are averaged before the weights change. The
    effective batch is this many times `size`, without more memory on a GPU.
    """

    @property
    def is_elastic(self) -> bool:
        """Whether the policy chooses the batch size for each epoch."""
        return isinstance(self.size, tuple)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and largest size."""
        if isinstance(self.size, tuple):
            return self.size
        return (self.size, self.size)

    def learning_rate_scale(self, size: int) -> float:
        """Return the factor of the learning rate for a batch size.

        >>> Batch((64, 512), learning_rate="linear").learning_rate_scale(256)
        4.0
        >>> Batch((64, 512), learning_rate="sqrt").learning_rate_scale(256)
        2.0
        """
        if not self.is_elastic or self.learning_rate == "fixed":
            return 1.0
        times = size / self.bounds[0]
        if self.learning_rate == "linear":
            return times
        return math.sqrt(times)

    @model_validator(mode="after")
    def _check_size(self) -> Batch:
        if self.bounds[0] > self.bounds[1]:
            raise ValueError(f"size: {list(self.bounds)} should be [min, max]")
        if self.is_elastic and self.when_scaled == "per_gpu":
            raise ValueError(
                "size: [min, max] and when_scaled: per_gpu exclude each other: the batch follows "
                "either the policy or the number of GPUs; use one of them"
            )
        return self


# Settings of an optimizer that apply to all of its parameters.
UNDIVIDED = frozenset(
    "name groups args foreach fused global_clipnorm clipnorm clipvalue use_ema ema_momentum "
    "ema_overwrite_frequency".split()
)


def _check_group(group: Any) -> dict[str, Any]:
    """Check the settings of a group of parameters, and return them with a list of patterns."""
    if not isinstance(group, Mapping):
        raise ValueError("should be a mapping, like {match: '*.bias', weight_decay: 0}")
    match = group.get("match")
    patterns = [match] if isinstance(match, str) else match
    if not (isinstance(patterns, list | tuple) and patterns and all(map(_is_text, patterns))):
        raise ValueError("needs `match`: a pattern of parameter names, like '*.bias', or several")
    settings = {key: value for key, value in group.items() if key != "match"}
    undivided = sorted(UNDIVIDED & settings.keys())
    if undivided:
        raise ValueError(f"{undivided[0]} applies to all parameters; write it beside `groups`")
    if not isinstance(settings.get("learning_rate"), int | float | None):
        raise ValueError("lr should be a number; a schedule of the optimizer scales it")
    try:
        checked = TypeAdapter(Optimizer).validate_python(settings)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        problem = f"{mistake['loc'][0]}: {mistake['msg']}"
        if mistake["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            problem = f"unknown key {mistake['loc'][0]!r}"
        raise ValueError(problem) from None
    return {"match": list(patterns), **{key: getattr(checked, key) for key in settings}}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_Group = Annotated[
    dict[str, Any],
    BeforeValidator(_check_group),
    WithJsonSchema(
        {
            "type": "object",
            "required": ["match"],
            "properties": {
                "match": {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    ],
                    "description": "Pattern of the names of parameters, or several patterns.",
                }
            },
        }
    ),
]


@section
class Optimizer:
    """An optimizer of Keras or of torch.optim. Missing parameters have the library's defaults."""

    name: kinds.OptimizerName = "sgd"
    """Optimizer: a class of Keras or, for the engine torch, of torch.optim, in upper or lower case;
    or the import path of your own function, which is called with learning_rate and `args` and
    returns a keras.optimizers.Optimizer. For torch it is a class or a function that takes the
    parameters first, then lr or learning_rate, and returns a torch.optim.Optimizer.
    """
    learning_rate: Annotated[
        AboveZero | dict[str, Any] | None,
        BeforeValidator(without_module),
        WithJsonSchema(schedule_schema()),
    ] = None
    """Learning rate, also written lr: a number, or a schedule with its arguments, like {name:
    CosineDecay, initial_learning_rate: 0.1, decay_steps: 1000}. Default: that of the optimizer, in
    Keras 0.01 for sgd, 0.0025 for schedulefreeadamw, 0.001 for all others; for your own function
    its default, or 0.01 if it has none.
    """
    momentum: BelowOne | None = None
    """Only for sgd, rmsprop and muon: momentum."""
    nesterov: bool | None = None
    """Only for sgd and muon: use Nesterov momentum."""
    beta_1: BelowOne | None = None
    """Only for Adam and its variants, lamb and lion: decay of the running mean of the gradients."""
    beta_2: BelowOne | None = None
    """Only for Adam and its variants, lamb and lion: decay of the running mean of the squared
    gradients.
    """
    epsilon: AboveZero | None = None
    """Not for sgd, lion, ftrl and adafactor: a small number in the denominator, for numerical
    stability.
    """
    weight_decay: NotNegative | None = None
    """Weight decay, multiplied by the learning rate."""
    global_clipnorm: AboveZero | None = None
    """Clip all gradients together to this norm."""
    clipnorm: AboveZero | None = None
    """Clip the gradient of each variable to this norm."""
    clipvalue: AboveZero | None = None
    """Clip gradients to this absolute value."""
    use_ema: bool | None = None
    """Evaluate and export the network with running means of its weights and of its batch
    normalization statistics.
    """
    ema_momentum: Annotated[float, Field(ge=0, le=1), kinds.NO_FLAG] | None = None
    """Decay of the running means of the weights."""
    ema_overwrite_frequency: Positive | None = None
    """Number of steps after which the weights are set to their running means. Default: never during
    training.
    """
    rho: BelowOne | None = None
    """Only for adadelta and rmsprop: decay of the running mean of the squared gradients."""
    beta_2_decay: Real | None = None
    """Only for adafactor: decay rate of the second moment."""
    epsilon_1: NotNegative | None = None
    """Only for adafactor: a small number that is added to squared gradients."""
    epsilon_2: NotNegative | None = None
    """Only for adafactor: smallest scale of a parameter."""
    clip_threshold: NotNegative | None = None
    """Only for adafactor: largest root mean square of an update."""
    relative_step: bool | None = None
    """Only for adafactor: shrink the learning rate automatically."""
    initial_accumulator_value: NotNegative | None = None
    """Only for adagrad and ftrl: initial value of the sums of squared gradients."""
    amsgrad: bool | None = None
    """Only for adam and adamw: use the largest second moment so far, as in AMSGrad."""
    learning_rate_power: Real | None = None
    """Only for ftrl: power by which the learning rate decays, at most 0."""
    l1_regularization_strength: NotNegative | None = None
    """Only for ftrl: strength of the L1 penalty."""
    l2_regularization_strength: NotNegative | None = None
    """Only for ftrl: strength of the L2 penalty."""
    l2_shrinkage_regularization_strength: NotNegative | None = None
    """Only for ftrl: strength of the L2 penalty that only shrinks weights."""
    beta: Real | None = None
    """Only for ftrl: beta in the paper of FTRL."""
    adam_beta_1: BelowOne | None = None
    """Only for muon: beta_1 of Adam."""
    adam_beta_2: BelowOne | None = None
    """Only for muon: beta_2 of Adam."""
    adam_weight_decay: NotNegative | None = None
    """Only for muon: weight decay of Adam."""
    exclude_layers: tuple[str, ...] | None = None
    """Only for muon: patterns of the paths of layers that Adam trains."""
    exclude_embeddings: bool | None = None
    """Only for muon: train embeddings with Adam."""
    muon_a: Real | None = None
    """Only for muon: coefficient a of the Newton-Schulz iteration."""
    muon_b: Real | None = None
    """Only for muon: coefficient b of the Newton-Schulz iteration."""
    muon_c: Real | None = None
    """Only for muon: coefficient c of the Newton-Schulz iteration."""
    adam_lr_ratio: NotNegative | None = None
    """Only for muon: learning rate of Adam, as a multiple of `learning_rate`."""
    ns_steps: Positive | None = None
    """Only for muon: number of steps of the Newton-Schulz iteration."""
    rms_rate: Real | None = None
    """Only for muon: factor that scales updates to the size of Adam's."""
    centered: bool | None = None
    """Only for rmsprop: divide gradients by an estimate of their variance."""
    warmup_steps: Annotated[int, Field(ge=0), kinds.NO_FLAG] | None = None
    """Only for schedulefreeadamw: number of steps over which the learning rate rises to its value.
    """
    betas: tuple[BelowOne, BelowOne] | None = None
    """Only for torch: decays of the running means of the gradients and of their squares."""
    eps: NotNegative | tuple[NotNegative | None, NotNegative] | None = None
    """Only for torch: a small number in the denominator; for adafactor two numbers."""
    dampening: Real | None = None
    """Only for sgd of torch: dampening of the momentum."""
    maximize: bool | None = None
    """Only for torch: maximize the loss instead."""
    foreach: bool | None = None
    """Only for torch: update all weights in few calls. Default: on GPUs, and on CPUs where this
    computes the same numbers.
    """
    fused: bool | None = None
    """Only for sgd, adam, adamw and adagrad of torch: update all weights in one kernel."""
    alpha: Real | None = None
    """Only for rmsprop of torch: decay of the running mean of the squared gradients. For asgd the
    power of its learning rate.
    """
    lr_decay: NotNegative | None = None
    """Only for adagrad of torch: decay of the learning rate."""
    lambd: NotNegative | None = None
    """Only for asgd of torch: decay term."""
    t0: Real | None = None
    """Only for asgd of torch: number of the update at which averaging begins."""
    momentum_decay: NotNegative | None = None
    """Only for nadam of torch: decay of the momentum."""
    decoupled_weight_decay: bool | None = None
    """Only for adam, nadam and radam of torch: decay weights as AdamW does."""
    beta2_decay: Real | None = None
    """Only for adafactor of torch: decay rate of the second moment."""
    d: AboveZero | None = None
    """Only for adafactor of torch: largest root mean square of an update."""
    etas: tuple[AboveZero, AboveZero] | None = None
    """Only for rprop of torch: factors by which step sizes fall and rise."""
    step_sizes: tuple[NotNegative, NotNegative] | None = None
    """Only for rprop of torch: smallest and largest step size."""
    ns_coefficients: tuple[Real, Real, Real] | None = None
    """Only for muon of torch: coefficients of the Newton-Schulz iteration."""
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    """Only for muon of torch: how the learning rate follows the shape of a weight."""
    groups: tuple[_Group, ...] | None = None
    """Only for torch: parameters with settings of their own, like [{match: ['*.bias', 'norm*'],
    weight_decay: 0}, {match: 'head.*', lr: 0.01}]. `match` is a pattern of the parameters' names,
    or several; the other keys are arguments of the optimizer. Where several groups match, a
    parameter gets the settings of all, of the last one where they contradict each other.
    """
    args: dict[str, Any] | None = None
    """Only for your own function: more arguments, by name."""

    @model_validator(mode="after")
    def _check_clipping(self) -> Optimizer:
        clips = (self.clipnorm, self.clipvalue, self.global_clipnorm)
        if sum(clip is not None for clip in clips) > 1:
            raise ValueError(
                "clipnorm, clipvalue and global_clipnorm exclude each other; use one of them"
            )
        return self


def with_optimizer_name(value: Any) -> Any:
    """Return the settings of an optimizer; its name alone stands for the defaults.

    >>> with_optimizer_name("adam")
    {'name': 'adam'}
    """
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping | Optimizer):
        raise ValueError("should be the name of an optimizer, like adam, or a mapping")
    return value


@section
class Stopping:
    """When the training of a network ends: as soon as one of the conditions is met."""

    max_epochs: Positive = 60
    """Maximum number of epochs of a network."""
    patience: Positive | None = None
    """Number of epochs without an improvement of `monitor` after which training ends. Default:
    training does not stop early.
    """
    monitor: kinds.Monitor | None = None
    """Quantity that decides which epoch is the best and when training ends: loss, accuracy or a
    metric, with val_ in front for validation data; of one of several targets with its name, like
    val_kind_accuracy. Default: val_accuracy for classes, val_loss otherwise. Ties go to the epoch
    with the lowest loss, on validation data if there is any.
    """
    min_delta: NotNegative = 0.0
    """Smallest change of `monitor` that counts as an improvement."""
    stop_at: Real | None = None
    """Value of `monitor` at which training ends."""
    max_time: Annotated[kinds.Duration, Field(gt=0)] | None = None
    """Time limit of a network, like 2h: the time of its training and validation, over all launches,
    without pauses. At the limit the current epoch ends early: the network is evaluated and saved,
    and this is its last epoch. Default: there is no limit.
    """
    direction: Literal["max", "min"] | None = None
    """Whether high (max) or low (min) values of `monitor` are better. Only required for your own
    metrics.
    """

    @property
    def metric(self) -> str:
        """The monitored metric; val_accuracy if neither spec nor data decides."""
        return self.monitor or "val_accuracy"

    def max_epochs_of(self, epoch_s: float) -> int:
        """Return the largest number of epochs of a network, each of which takes some seconds.

        >>> Stopping(max_epochs=9, max_time=60).max_epochs_of(25)
        3
        """
        if self.max_time is None:
            return self.max_epochs
        return min(self.max_epochs, max(1, math.ceil(self.max_time / epoch_s)))

    @property
    def sign(self) -> int:
        """1 if high values of the metric are better, else -1."""
        if (self.direction or direction_of(self.metric)) == UP:
            return 1
        return -1


@section
class Start:
    """Initial weights of a network, instead of random ones."""

    file: str = Field(min_length=1)
    """Weights file: `.weights.h5` or `.keras` for Keras, `.safetensors` for PyTorch. Weights are
    matched by name. It is an error if only the file or only the network has a name, or if shapes
    differ.
    """
    skip: tuple[str, ...] = ()
    """Name patterns, like `head.*`, of weights to initialize at random instead."""
    freeze: tuple[str, ...] = ()
    """Name patterns of weights that training does not change. A frozen normalization layer uses its
    stored statistics.
    """


# What applies to all optimizers of `train.optimizers`.
_AROUND = frozenset(
    {
        "name",
        "learning_rate",
        "global_clipnorm",
        "clipnorm",
        "clipvalue",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
    }
)

# Tagged, so that a mistake in one form is not explained by the other.
_FileOrStart = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("file")] | Annotated[Start, Tag("start")],
    Discriminator(lambda value: "file" if isinstance(value, str) else "start"),
]


@section
class Train:
    """How networks are trained: batches, optimizer, and stopping."""

    batch: Batch = Batch()
    optimizer: Annotated[
        Optimizer,
        BeforeValidator(with_optimizer_name),
        kinds.OR_OPTIMIZER_NAME,
    ] = Optimizer()
    stopping: Stopping = Stopping()
    loss: Loss | None = None
    """Loss: a Keras name, like mean_absolute_error, or the import path of your own function of
    (targets, outputs), or (outputs, targets) if its parameters have these names, which returns a
    number for each sample, or for each pixel of masks; or one of these with parameters, like
    {huber: {delta: 2}}. Default: softmax cross-entropy for class, sigmoid cross-entropy for
    multilabel, mean squared error for value, and the cross-entropy of each pixel for mask. Of
    several targets, a mapping of their names to losses, like {price: huber, kind:
    categorical_crossentropy}; the loss is then their sum.
    """
    loss_weights: dict[str, NotNegative] | None = None
    """Only for several targets: the factor of each target's loss in the sum, by name. Default: 1.
    """
    metrics: MetricsSetting = ()
    """More metrics to compute in each epoch: Keras names, like AUC or mean_absolute_error, and
    import paths of your own functions of (targets, outputs), which return a number for each sample;
    with parameters, like {AUC: {curve: PR, name: auc_pr}}, where `name` is the name of the column.
    Outputs are probabilities, except for value. Of several targets, a list applies to each target
    that it fits; or a mapping of their names to such lists.
    """
    step: kinds.ImportPath | None = None
    """Import path of your own training step, a function of (model, batch, training). `batch` maps
    input, target, weight and index to arrays of the engine. It returns the loss of each sample, or
    a mapping of `loss` and further numbers, each of which becomes a metric.
    """
    optimizers: kinds.ImportPath | None = None
    """Only with `step`: import path of a function of the model that returns several optimizers by
    name, each with the parameters that it steps. The step then returns a loss by each name. Of
    `optimizer` only clipping, running means and a learning rate apply, which multiplies theirs.
    """
    batch_transforms: tuple[Measure, ...] = ()
    """Functions that change each training batch before the step, in this order: mixup, cutmix, and
    import paths of your own functions of (batch, rng); with parameters, like {mixup: {alpha: 0.2}}.
    A batch maps input, target and weight to NumPy arrays with rows first; classes are shares,
    (rows, classes). The numbers that rng draws, and the rows, do not depend on the number of GPUs.
    """
    label_smoothing: Smoothing = 0.0
    """Label smoothing: the share of each target that the loss spreads evenly over all classes or
    labels. Only for class, multilabel and mask. Of several targets, also a mapping by name.
    """
    start: _FileOrStart | None = None
    """Initial weights: a file or a mapping. A network that resumes from a checkpoint, or starts
    from the weights of another network, does not read the file.
    """
    class_weights: ClassWeights | None = None
    """Weight of the samples, or pixels, of each class in the training loss: a mapping of class
    names or indices to numbers of at least 0; missing classes have 1. balanced: all classes get the
    same total weight; for mask, all masks are read first. Of several targets, a mapping of their
    names to these.
    """
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    """Precision of computations, as a Keras dtype policy. The mixed policies compute in 16 bits and
    keep weights in 32.
    """
    xla: bool = False
    """Compile training steps with XLA."""
    compile: bool = False
    """Only for torch: compile the module with torch.compile, for training steps. The first step
    takes longer, often minutes. On an NVIDIA or AMD GPU, steps of a network alone are also captured
    as CUDA graphs, if they can be.
    """
    deterministic: bool = False
    """Make training bitwise reproducible on the same machine, with the same version of the engine
    and the same group sizes, so that --replay is exact. If one network sets it, it applies to the
    whole launch: the engine uses deterministic kernels, and each rank without a GPU computes in one
    thread, which is slower.
    """
    build_timeout: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=300.0, json_schema_extra={"default": "5min"}
    )
    """Time limit for building the network, like 5min. In fleet check it also applies to the
    training step and to the export. A network that takes longer fails.
    """

    @model_validator(mode="before")
    @classmethod
    def _expand_short_keys(cls, data: Any) -> Any:
        """Read short keys of a section that is made in code; those of a file are read already."""
        keys = data.kwargs if isinstance(data, ArgsKwargs) else data
        if not isinstance(keys, Mapping) or not SHORT_NAMES & set(keys):
            return data
        translation = with_new_keys(keys, section="train")
        if translation.mistakes:
            raise ValueError(translation.mistakes[0].text)
        if isinstance(data, ArgsKwargs):
            return ArgsKwargs(data.args, translation.content)
        return translation.content

    @property
    def single(self) -> TargetSettings:
        """The settings of the only target; see :mod:`fleet.spec.target_settings`."""
        settings: Any = (self.loss, self.metrics, self.label_smoothing, self.class_weights)
        return TargetSettings(*settings)

    @property
    def initial_weights(self) -> Start | None:
        """The settings of `start` as a mapping."""
        if isinstance(self.start, str):
            return Start(self.start)
        return self.start

    @model_validator(mode="after")
    def _check_metrics(self) -> Train:
        labels = check_measures(
            list_losses(self.loss),
            self.metrics,
            list_class_weights(self.class_weights),
        )
        check_single_names("batch_transforms", self.batch_transforms, "{mixup: {alpha: 0.2}}")
        if self.step is None:
            check_monitor(self.stopping.monitor, [*FIELDS, *labels])
        return self

    def _check_around(self, path: str) -> None:
        """Check that `optimizer` says only what FLEET does around several optimizers."""
        unused = [
            item.name
            for item in fields(self.optimizer)
            if item.name not in _AROUND and getattr(self.optimizer, item.name) is not None
        ]
        if self.optimizer.name != "sgd":
            unused.insert(0, "name")
        if unused:
            raise ValueError(
                f"optimizer: {unused[0]} has no effect, because {path} creates the optimizers; "
                f"leave it out, and use only {', '.join(sorted(_AROUND - {'name'}))}"
            )

    @model_validator(mode="after")
    def _check_step(self) -> Train:
        if self.optimizers is not None and self.step is None:
            raise ValueError(
                f"optimizers: {self.optimizers} needs `step`, which returns a loss for each of them"
            )
        if self.optimizers is not None:
            self._check_around(self.optimizers)
        if self.step is None:
            return self
        if self.compile:
            raise ValueError(
                "compile: true has no effect, because the function of `step` calls the module; "
                "leave it out"
            )
        computed = ("loss", "metrics", "label_smoothing", "class_weights", "batch_transforms")
        for key in (*computed, "loss_weights"):
            if getattr(self, key):
                raise ValueError(
                    f"{key}: {getattr(self, key)} has no effect, because the function of `step` "
                    "computes the loss and the metrics; compute it there, and leave this out"
                )
        return self
