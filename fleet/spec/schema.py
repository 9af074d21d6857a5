"""The keys of a spec file: frozen dataclasses, from the document down to one network.

What a key means is said once, in its ``Field(description=...)``: the JSON Schema and ``docs/spec.md`` come from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator
from pydantic.dataclasses import dataclass

from fleet.plugins import find_policy
from fleet.spec.engines import ENGINES, EngineInfo, find_engine
from fleet.spec.fields import (
    DeltaText,
    Duration,
    EngineName,
    Family,
    ImportPath,
    Monitor,
    OptimizerName,
    PolicyName,
    Share,
    ShareOrPath,
    Size,
    Source,
    TransformItem,
)
from fleet.spec.learning_rate import check_schedule, schedule_schema
from fleet.spec.measures import FIELDS, UP, check_measures, check_monitor, direction_of
from fleet.spec.model import Architecture
from fleet.spec.optimizers import foreign, slots_of
from fleet.spec.origin import Origin
from fleet.spec.space import Grid, Space
from fleet.units import parse_delta
from scheduler.base import Options
from scheduler.ensemble.policies import POLICIES, Policy

_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

MOST_NETWORKS = 10_000  # of one entry; more are a slip of the keyboard, and would fill the memory

Positive = Annotated[int, Field(ge=1)]
ByClass = Annotated[dict[str, float], BeforeValidator(
    lambda found: {str(key): value for key, value in found.items()} if isinstance(found, Mapping) else found)]


def _read_by(setting: str) -> str:
    """Which policies read a key of the schedule; for others it is a mistake."""
    return f"Only for {' and '.join(policy.name for policy in POLICIES.values() if setting in policy.reads)}."


def _as(default: str) -> dict[str, JsonValue]:
    """A default as people write it."""
    return {"default": default}


@dataclass(frozen=True, config=_STRICT)
class Target:
    """What networks are to answer for a sample."""

    kind: Literal["class", "multilabel", "value", "mask"] = Field(description=(
        "class: one of some. multilabel: each of some, or not. value: numbers. mask: a class for each pixel."))
    outputs: Positive | None = Field(default=None, description=(
        "Number of classes, labels or values. Without it, as many as the data shows."))
    names: tuple[str, ...] = Field(default=(), description="Names of the classes, labels or values.")
    ignore: int | None = Field(default=None, description="Value of the pixels of masks that count for nothing.")


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Where samples come from, and what happens to them before a network sees them."""

    source: Source = Field(default="image_folder", description=(
        "What kind of data is read: folders of images (by class, or with masks beside them), a table, arrays, files of "
        "many samples, a data set of Hugging Face, or one of two built-in data sets to try things with. An import path "
        "names a function of your own that opens the data."))
    path: str | None = Field(default=None, description=(
        "File or folder with the data. The built-in data sets need none."))
    options: dict[str, Any] = Field(default_factory=dict, description=(
        "Further arguments of the source, by name. If one is unknown, the message lists those that there are."))
    validation: ShareOrPath | None = Field(default=0.1, description=(
        "The data that networks are judged by: a path, or the share of the samples of each class that is held out, "
        "like 10%. Data that has a validation part of its own is not split. With null, nothing is held out."))
    test: ShareOrPath | None = Field(default=None, description=(
        "Data that chooses nothing, neither epochs nor networks: a path, or the share of the training samples of each "
        "class that is set aside before any other, like 10%. Each finished network is judged on it once, in the "
        "columns test_loss and test_accuracy of the results."))
    target: Literal["class", "multilabel", "value", "mask"] | Target | None = Field(default=None, description=(
        "What networks are to answer for a sample, where the source cannot tell: class (one of some), multilabel (each "
        "of some, or not), value (numbers) or mask (a class for each pixel); or a mapping that says more."))
    folds: Annotated[int, Field(ge=2)] | None = Field(default=None, description=(
        "Number of folds of cross-validation, instead of `validation`. Each network stands for so many, NAME-fold0, "
        "NAME-fold1, ...: each is judged by a fold of the training samples and trains on the others."))
    transforms: tuple[TransformItem, ...] = Field(default=("decode",), description=(
        "What is done to each sample, in this order: names of transforms, with their parameters where they have some, "
        "and import paths of your own functions."))
    window: Size = Field(default=2 * 10**9, json_schema_extra=_as("2GB"), description=(
        "How much memory each node uses for prepared samples, like 2GB. Networks that share a stream are at most this "
        "far apart."))
    order: Literal["strict", "ring"] = Field(default="strict", description=(
        "strict: all networks read the samples of an epoch in the same order, at most a window apart. ring: the data "
        "set is cut into shards that circulate, and each network takes those it still lacks, at its own pace. A ring "
        "is for data sets that are larger than the window."))
    shards: Annotated[int, Field(ge=2)] = Field(default=50, description=(
        "Number of shards into which order: ring cuts the data set. A batch is drawn from a single shard."))
    cache: Literal["none", "memory", "file"] = Field(default="none", description=(
        "none: samples are decoded anew in every epoch. memory: decoded samples stay in the window, so that each "
        "network trains at its own pace; all of them must fit. file: samples are decoded once, into a file in the "
        "run's folder."))
    stall: Annotated[Duration, Field(gt=0)] = Field(default=1800.0, json_schema_extra=_as("30min"), description=(
        "How long the run waits for a sample before it ends and names the cause, like 30min."))
    max_bad: Annotated[Share, Field(ge=0, le=1)] = Field(default=0.01, json_schema_extra=_as("1%"), description=(
        "Largest share of samples that may be unreadable, like 1%. Such samples are left out and reported; when there "
        "are more, the run ends."))

    @model_validator(mode="after")
    def _agree(self) -> Data:
        if self.order == "ring" and self.cache == "memory":
            raise ValueError("order: ring is for data sets larger than the window, cache: memory for those that fit "
                             "into it; should be one of them")
        return self


@dataclass(frozen=True, config=_STRICT)
class Batch:
    """The batch of a training step, which the GPUs of a group share."""

    size: Positive = Field(default=128, description=(
        "Number of samples in a training step, over all GPUs of a group together."))
    when_scaled: Literal["fixed", "per_gpu"] = Field(default="fixed", description=(
        "What happens on several GPUs. fixed: they split the batch, so that the result does not depend on their "
        "number. per_gpu: each has a batch of this size, and the learning rate is multiplied by the number of GPUs "
        "(the linear scaling rule)."))
    accumulate: Positive = Field(default=1, description=(
        "Number of training steps whose gradients are averaged before the weights change. The batch of the optimizer "
        "is so many times `size`, while a GPU holds no more rows."))


@dataclass(frozen=True, config=_STRICT)
class Optimizer:
    """A Keras optimizer. A parameter that is not given keeps the default of Keras."""

    name: OptimizerName = Field(default="sgd", description=(
        "Which optimizer trains the network: a name of Keras, in lower case, or the import path of your own function, "
        "which is called with learning_rate and `args` and returns a keras.optimizers.Optimizer."))
    learning_rate: Annotated[Annotated[float, Field(gt=0)] | dict[str, Any], WithJsonSchema(schedule_schema())] = Field(
        default=0.01, description=("The learning rate: a number, or a schedule of Keras with its arguments, like "
                           "{name: CosineDecay, initial_learning_rate: 0.1, decay_steps: 1000}."))
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for sgd, rmsprop and muon: which share of the previous step is added to the next."))
    nesterov: bool | None = Field(default=None, description=(
        "Only for sgd and muon: whether the momentum is that of Nesterov."))
    beta_1: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for the kinds of Adam, lamb and lion: decay of the running mean of the gradients."))
    beta_2: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for the kinds of Adam, lamb and lion: decay of the running mean of the squared gradients."))
    epsilon: Annotated[float, Field(gt=0)] | None = Field(default=None, description=(
        "Not for sgd, lion, ftrl and adafactor: a small number in the denominator, for numerical stability."))
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Weight decay: each step takes this share of every weight away, times the learning rate."))
    global_clipnorm: Annotated[float, Field(gt=0)] | None = Field(default=None, description=(
        "Largest norm of all gradients together. If it is exceeded, they are scaled down to it."))

    clipnorm: Annotated[float, Field(gt=0)] | None = Field(default=None, description=(
        "Largest norm of each variable's gradient. If it is exceeded, the gradient is scaled down to it."))
    clipvalue: Annotated[float, Field(gt=0)] | None = Field(default=None, description=(
        "Largest absolute value of a gradient's numbers."))
    use_ema: bool | None = Field(default=None, description=(
        "Whether running means of the weights are kept, by which the network is judged and exported."))
    ema_momentum: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description=(
        "Decay of the running means of the weights."))
    ema_overwrite_frequency: Positive | None = Field(default=None, description=(
        "Number of steps after which the weights are set to these means. Without it, never in training."))
    rho: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for adadelta and rmsprop: decay of the running mean of the squared gradients."))
    beta_2_decay: float | None = Field(default=None, description=(
        "Only for adafactor: decay rate of the second moment."))
    epsilon_1: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for adafactor: a small number that is added to squared gradients."))
    epsilon_2: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for adafactor: least scale of a parameter."))
    clip_threshold: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for adafactor: largest root mean square of an update."))
    relative_step: bool | None = Field(default=None, description=(
        "Only for adafactor: whether steps shrink by themselves."))
    initial_accumulator_value: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for adagrad and ftrl: where the sums of squared gradients begin."))
    amsgrad: bool | None = Field(default=None, description=(
        "Only for adam and adamw: whether the largest second moment so far is used, as in AMSGrad."))
    learning_rate_power: float | None = Field(default=None, description=(
        "Only for ftrl: power by which the learning rate falls, at most 0."))
    l1_regularization_strength: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for ftrl: strength of the penalty on absolute values."))
    l2_regularization_strength: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for ftrl: strength of the penalty on squares."))
    l2_shrinkage_regularization_strength: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for ftrl: strength of the penalty on squares that only shrinks."))
    beta: float | None = Field(default=None, description=(
        "Only for ftrl: the number beta of the paper of FTRL."))
    adam_beta_1: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for muon: beta_1 for what Adam trains."))
    adam_beta_2: Annotated[float, Field(ge=0, lt=1)] | None = Field(default=None, description=(
        "Only for muon: beta_2 for what Adam trains."))
    adam_weight_decay: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for muon: weight decay of what Adam trains."))
    exclude_layers: tuple[str, ...] | None = Field(default=None, description=(
        "Only for muon: patterns of the paths of layers that Adam trains."))
    exclude_embeddings: bool | None = Field(default=None, description=(
        "Only for muon: whether Adam trains embeddings."))
    muon_a: float | None = Field(default=None, description=(
        "Only for muon: coefficient a of the iteration."))
    muon_b: float | None = Field(default=None, description=(
        "Only for muon: coefficient b of the iteration."))
    muon_c: float | None = Field(default=None, description=(
        "Only for muon: coefficient c of the iteration."))
    adam_lr_ratio: Annotated[float, Field(ge=0)] | None = Field(default=None, description=(
        "Only for muon: learning rate of what Adam trains, as a multiple."))
    ns_steps: Positive | None = Field(default=None, description=(
        "Only for muon: number of steps of the iteration."))
    rms_rate: float | None = Field(default=None, description=(
        "Only for muon: factor that brings updates to the size of those of Adam."))
    centered: bool | None = Field(default=None, description=(
        "Only for rmsprop: whether gradients are divided by an estimate of their variance."))
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(default=None, description=(
        "Only for schedulefreeadamw: number of steps in which the learning rate rises to its value."))
    args: dict[str, Any] | None = Field(default=None, description=(
        "Only for a function of your own: its further arguments, by name."))

    @property
    def slots(self) -> int:
        """How many numbers it keeps for each parameter, at most."""
        own = 0 if ":" in self.name else slots_of(self.name, bool(self.momentum))
        return own + bool(self.use_ema) + bool(self.amsgrad) + bool(self.centered)

    @model_validator(mode="after")
    def _fits_the_name(self) -> Optimizer:
        given = [item.name for item in fields(self) if item.name not in ("name", "learning_rate")
                 and getattr(self, item.name) is not None]
        wrong = foreign(self.name, given)
        problems = [f"{self.name} takes no {', '.join(wrong)}"] if wrong else []
        if sum(getattr(self, clip) is not None for clip in ("clipnorm", "clipvalue", "global_clipnorm")) > 1:
            problems.append("clipnorm, clipvalue and global_clipnorm: should be one of them")
        if isinstance(self.learning_rate, dict):
            try:
                check_schedule(self.learning_rate)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return self


@dataclass(frozen=True, config=_STRICT)
class Converge:
    """When the training of a network ends: at the first of these conditions."""

    max_epochs: Positive = Field(default=60, description="Largest number of epochs that a network is trained.")
    patience: Positive | None = Field(default=None, description=(
        "Number of epochs without an improvement of `monitor` after which training ends. Without it, training does not "
        "end early."))
    monitor: Monitor | None = Field(default=None, description=(
        "The quantity that decides which epoch is the best, and when training ends: loss, accuracy or a metric, with "
        "val_ before it that of the validation data. Without it, val_accuracy for classes and val_loss for all else. "
        "Of epochs with equal values, the one with the least loss is the best: of validation, or of training without "
        "validation data."))
    min_delta: Annotated[float, Field(ge=0)] = Field(default=0.0, description=(
        "How much better than its best value so far `monitor` must be to count as an improvement."))
    target: float | None = Field(default=None, description="Value of `monitor` that is good enough to end training.")
    direction: Literal["max", "min"] | None = Field(default=None, description=(
        "Whether `monitor` is better when it is larger (max) or smaller (min). Only a metric of your own needs it."))

    @property
    def watched(self) -> str:
        """What is monitored; val_accuracy where nobody has said it, neither the spec nor the data."""
        return self.monitor or "val_accuracy"

    @property
    def sign(self) -> int:
        """1 where more of what is monitored is better, else -1."""
        return 1 if (self.direction or direction_of(self.watched)) == UP else -1


@dataclass(frozen=True, config=_STRICT)
class Train:
    """How networks are trained: in which batches, by which optimizer, and for how long."""

    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    converge: Converge = Converge()
    loss: str | None = Field(default=None, description=(
        "The loss: a name of Keras, like mean_absolute_error, or the import path of your own function of (targets, "
        "outputs), which gives a number for each sample. Without it, the softmax cross-entropy for class, the sigmoid "
        "cross-entropy for multilabel, the mean squared error for value, the cross-entropy of each pixel for mask."))
    metrics: tuple[str, ...] = Field(default=(), description=(
        "What else is computed of each epoch: names of Keras, like AUC or mean_absolute_error, and import paths of "
        "your own functions of (targets, outputs), which give a number for each sample. Outputs are then "
        "probabilities, except of value."))
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, description=(
        "Share of a class, or label, that the loss spreads over all of them. Only for class, multilabel and mask."))
    class_weights: Literal["balanced"] | ByClass | None = Field(default=None, description=(
        "How much the samples, or the pixels, of each class count in the loss of training: a number from 0 for names "
        "or numbers of classes, 1 for the others. balanced: so that all classes count the same (not for mask)."))
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = Field(default="float32", description=(
        "Precision of the computations, as a dtype policy of Keras. The mixed ones compute with 16 bits and keep the "
        "weights in 32."))
    xla: bool = Field(default=False, description="Whether XLA compiles the training steps.")
    deterministic: bool = Field(default=False, description=(
        "Whether the same training gives the same numbers, bit for bit, on one machine, with one version of TensorFlow "
        "and groups of one size, so that --replay is exact. If one network asks for it, all of the launch are trained "
        "so: TensorFlow takes deterministic kernels, and each rank without a GPU computes in one thread, which is "
        "slower."))
    build_timeout: Annotated[Duration, Field(gt=0)] = Field(default=300.0, json_schema_extra=_as("5min"), description=(
        "How long building the network may take, like 5min. In fleet check the same is true of a training step and of "
        "the export. A network that takes longer has failed."))

    @model_validator(mode="after")
    def _is_measured(self) -> Train:
        labels = check_measures(self.loss, self.metrics, self.class_weights)
        check_monitor(self.converge.monitor, self.converge.direction, [*FIELDS, *labels])
        return self


@dataclass(frozen=True, config=_STRICT)
class ModelEntry:
    """An entry of `models`, which stands for one network or for many."""

    family: Family | None = Field(default=None, description=(
        "A family of networks that FLEET builds, or the name of a network of keras.applications."))
    build: ImportPath | None = Field(default=None, description=(
        "Instead of a family: the import path of your own function, which returns a keras.Model. Its module may stand "
        "beside the spec."))
    name: str | None = Field(default=None, description=(
        "Name of the network in all results; without it, that of the family or function. If the entry stands for "
        "several networks, they are numbered."))
    args: dict[str, Any] = Field(default_factory=dict, description=(
        "Arguments of the family or function, by name: the same for all networks of the entry."))
    count: Annotated[int, Field(ge=1, le=MOST_NETWORKS)] | None = Field(default=None, description=(
        "Number of networks to draw at random from `space`."))
    space: Space | None = Field(default=None, description=(
        "What differs between networks that are drawn at random: for an argument, or a setting like "
        "train.optimizer.learning_rate, a list of values or a range {low, high, log, integer}."))
    grid: Grid | None = Field(default=None, description=(
        "What differs between networks that cover all combinations: for an argument, or a setting like "
        "train.batch.size, a list of values."))
    gpus: Positive | tuple[Positive, Positive] | None = Field(default=None, description=(
        "Number of GPUs that train the network, or [least, most]. Without it, there may be as many as make it faster."))
    train: dict[str, Any] = Field(default_factory=dict, description=(
        "Training settings of this entry. What they do not name is taken from `train` at the top."))

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ModelEntry:
        if (self.family is None) == (self.build is None):
            raise ValueError("needs exactly one of `family:` (resnet, densenet, cnn, a keras.applications name) "
                             "and `build: module:function`")
        if self.space is not None and self.grid is not None:
            raise ValueError("needs `space:` (random draws) or `grid:` (the full product), not both")
        if (self.space is None) != (self.count is None):
            raise ValueError("`count:` and `space:` go together: count random draws from the space")
        if isinstance(self.gpus, tuple) and self.gpus[0] > self.gpus[1]:
            raise ValueError(f"gpus: {list(self.gpus)} should be [least, most]")
        return self


@dataclass(frozen=True, config=_STRICT)
class Schedule:
    """Which networks train when, and on how many GPUs."""

    policy: PolicyName = Field(default="global", description=(
        "Policy that decides which networks train when, or the import path of your own. "
        + " ".join(f"{policy.name}: {policy.help}." for policy in POLICIES.values())))
    delta: DeltaText = Field(default="15%", description=(
        "How close to the fastest the networks of a flotilla train: within a share of its rate, like 15%, or within a "
        "number of samples per second, like 20/s. " + _read_by("delta")))
    alpha: Annotated[Share, Field(gt=0, le=1)] = Field(default=0.8, json_schema_extra=_as("80%"), description=(
        "A round ends when fewer than this share of the GPUs train, like 80%. " + _read_by("alpha")))
    peak_limited: bool = Field(default=True, description=(
        "Whether a network gets only GPUs that make it faster. With false, spare GPUs are given away as in Algorithm 2 "
        "of the paper, and rates beyond the measured ones are estimated by its Equation 5 from twice the GPUs of a "
        "node, as with --literal of fleet plan. " + _read_by("peak_limited")))
    rates: str | None = Field(default=None, description=(
        "File with the training rates of the networks, such as the profile.json of an earlier run. Without it, "
        "`profile` says how rates are found out."))


@dataclass(frozen=True, config=_STRICT)
class Profile:
    """How it is found out how fast networks train."""

    when: Literal["online", "before"] = Field(default="online", description=(
        "online: training begins at once, by estimates that its own steps correct; no other key is read. before: every "
        "network is measured on made-up samples before any is trained (appendix B.3 of the paper)."))
    batches: Annotated[int, Field(ge=2)] = Field(default=48, description=(
        "Number of training steps of one measurement, at most."))
    timed: Positive = Field(default=20, description=(
        "How many of these steps are timed: the last ones. Those before them warm up."))
    seconds: Annotated[Duration, Field(gt=0)] = Field(default=30.0, json_schema_extra=_as("30s"), description=(
        "How long the steps of one measurement may take, like 30s. The first half of it may be spent on warming up."))
    spread: Annotated[Share, Field(ge=0, le=1)] = Field(default=0.01, json_schema_extra=_as("1%"), description=(
        "A measurement ends before its last step once the standard error of its rate is at most this share of it, like "
        "1%. 0 takes all steps."))
    max_gpus: Positive | None = Field(default=None, description=(
        "Largest number of GPUs on which a network is measured. Without it, two nodes, or as many GPUs as the slowest "
        "network needs to keep up with the fastest if that is more (appendix B.3 of the paper)."))

    @model_validator(mode="after")
    def _timed_is_a_part(self) -> Profile:
        if self.timed >= self.batches:
            raise ValueError(f"timed: {self.timed} should be less than batches: {self.batches}, "
                             "because the first batches warm up")
        return self


@dataclass(frozen=True, config=_STRICT)
class Resources:
    """How the ranks of the launch are used."""

    engine: EngineName = Field(default="keras", description=(
        "What trains the networks, or the import path of an engine of your own. "
        + " ".join(f"{engine.name}: {engine.help}." for engine in ENGINES.values())))
    time_scale: Annotated[float, Field(gt=0)] = Field(default=1.0, description=(
        "Only for the engine emulated: how many seconds a second of training takes."))
    preprocessors: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(default="auto", description=(
        "Number of ranks that prepare samples. auto: all ranks that are not needed for GPUs; without GPUs, one in "
        "eight on each node."))
    gpus_per_node: Positive | Literal["auto"] = Field(default="auto", description=(
        "Number of ranks on each node that train. auto: one for each GPU; without GPUs, all that do not prepare "
        "samples."))
    exchange: Literal["auto", "horovod", "mpi"] = Field(default="auto", description=(
        "How the GPUs of a group exchange gradients. horovod: while the backward pass runs. mpi: by one MPI reduction "
        "after each step. auto: by Horovod where it is installed, else by MPI."))


@dataclass(frozen=True, config=_STRICT)
class Checkpoint:
    """What is kept on disk, and how often it is saved."""

    every: Annotated[Duration, Field(gt=0)] | None = Field(default=None, description=(
        "How often a network is saved within an epoch, like 10min. At the end of an epoch it is always saved."))
    keep: Literal["best+last", "last"] = Field(default="best+last", description=(
        "What is kept of each network. best+last: the best epoch, which is exported, and the last one, from which "
        "training goes on. last: only the last, which is then exported. If there is room, the checkpoint before the "
        "last is kept as well, in case the last is damaged."))
    quota: Annotated[Size, Field(gt=0)] | None = Field(default=None, description=(
        "How much disk space all checkpoints and exports of the run may take, like 20GB. Without it, there is no "
        "limit."))


@dataclass(frozen=True, config=_STRICT)
class Document:
    """A spec: the networks of an ensemble, the data they learn from, and how they are trained."""

    models: Annotated[tuple[ModelEntry, ...], Field(min_length=1)] = Field(description=(
        "The networks to train: a list of entries, each of which stands for one network or for many."))
    name: str = Field(default="ensemble", description=(
        "Name of the run: letters, digits, dots, dashes and underscores."))
    seed: Annotated[int, Field(ge=0, lt=2**64)] = Field(default=0, description=(
        "Seed of everything that is random: which networks are drawn, their first weights, the order of the samples "
        "and how they are augmented."))
    data: Data = Data()
    train: Train = Train()
    schedule: Schedule = Schedule()
    profile: Profile = Profile()
    resources: Resources = Resources()
    checkpoint: Checkpoint = Checkpoint()
    walltime: Annotated[Duration, Field(gt=0)] | None = Field(default=None, description=(
        "How long the run may take, like 2h. Shortly before, it saves everything and stops with exit status 75; the "
        "same command goes on. If the batch system ends the job earlier, its limit counts."))
    retries: Annotated[int, Field(ge=0, le=100)] = Field(default=2, description=(
        "How often a network is tried again that failed for a reason that may pass, such as a file server that does "
        "not answer."))
    output: str = Field(default="", description=(
        "Folder of the run, for results, checkpoints, logs and the report. Without it, runs/NAME with the run's name."))


@dataclass(frozen=True, config=_STRICT)
class NetworkSpec:
    """One network of the ensemble, fully said."""

    name: str
    architecture: Architecture
    train: Train
    seed: int
    min_gpus: int = 1
    max_gpus: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)  # what was drawn, for the results table
    entry: int = 0  # of `models`, from which it comes
    fold: int | None = None  # that it is judged by, and does not train on

    @property
    def stem(self) -> str:
        """The name that the networks of all folds have in common."""
        return self.name if self.fold is None else self.name.removesuffix(f"-fold{self.fold}")

    def global_batch(self, gpus: int) -> int:
        """Samples in one step on ``gpus`` GPUs."""
        scale = gpus if self.train.batch.when_scaled == "per_gpu" else 1
        return self.train.batch.size * scale

    def learning_rate_scale(self, gpus: int) -> int:
        """The linear scaling rule: the factor of the learning rate that goes with the batch."""
        return gpus if self.train.batch.when_scaled == "per_gpu" else 1


@dataclass(frozen=True, config=_STRICT)
class Spec:
    """A validated spec and the networks that it stands for."""

    document: Document
    networks: tuple[NetworkSpec, ...]
    origin: Origin = field(default=Origin(), compare=False, repr=False)

    def place_of(self, network: NetworkSpec, *setting: str) -> tuple:
        """The key path where a setting of a network was chosen, such as ``train``, ``batch``, ``size``.

        That is the space or the grid from which it was drawn, the network's entry, or the top of the document; for a
        default it is the entry.
        """
        entry, model = ("models", network.entry), self.document.models[network.entry]
        dotted = ".".join(setting)
        for name in network.parameters:
            if f"{dotted}.".startswith(f"{name}."):
                return (*entry, "space" if model.grid is None else "grid", name)
        is_own = _holds(model.train, setting[1:])
        return (*entry, *setting) if is_own or setting not in self.origin.lines else setting

    @property
    def data(self) -> Data:  # noqa: D102 - the document's parts, without the detour
        return self.document.data

    @property
    def schedule(self) -> Schedule:  # noqa: D102
        return self.document.schedule

    @property
    def profile(self) -> Profile:  # noqa: D102
        return self.document.profile

    @property
    def resources(self) -> Resources:  # noqa: D102
        return self.document.resources

    @property
    def checkpoint(self) -> Checkpoint:  # noqa: D102
        return self.document.checkpoint

    @property
    def seed(self) -> int:  # noqa: D102
        return self.document.seed

    @property
    def policy(self) -> Policy:
        """What decides which networks train when."""
        return find_policy(self.schedule.policy)

    @property
    def engine(self) -> EngineInfo:
        """What trains, as far as it must be known before it is loaded."""
        return find_engine(self.resources.engine)

    @property
    def options(self) -> Options:
        """What the policy is told."""
        settings = self.schedule
        return Options(settings.alpha, parse_delta(settings.delta), settings.peak_limited, self.seed)

    @property
    def output(self) -> Path:
        """The folder of the run."""
        return Path(self.document.output or f"runs/{self.document.name}")

    @cached_property
    def by_name(self) -> dict[str, NetworkSpec]:
        """The networks by name."""
        return {network.name: network for network in self.networks}


def _holds(settings: Any, path: tuple[str, ...]) -> bool:
    """Whether nested settings have something under a path."""
    for step in path:
        if not isinstance(settings, Mapping) or step not in settings:
            return False
        settings = settings[step]
    return True


def with_output(spec: Spec, output: str | Path) -> Spec:
    """The same spec, with another folder for its run."""
    return replace(spec, document=replace(spec.document, output=str(output)))
