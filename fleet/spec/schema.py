"""The keys of a spec file and what they mean: frozen dataclasses, from the document down to one network."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass

from fleet.plugins import find_policy
from fleet.spec.model import Architecture
from fleet.spec.space import Grid, Space
from fleet.units import parse_delta, parse_duration, parse_share, parse_size
from preprocess.base import InputError
from preprocess.transforms import item_schema, parse_transform
from scheduler.base import Options
from scheduler.ensemble.policies import Policy

_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

MOST_NETWORKS = 10_000  # of one entry; more are a slip of the keyboard, and would fill the memory


def _schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": ["string", "number"], "examples": [example]})


Size = Annotated[int, BeforeValidator(parse_size), _schema("2GB")]


Duration = Annotated[float, BeforeValidator(parse_duration), _schema("10min")]


Share = Annotated[float, BeforeValidator(parse_share), _schema("15%")]


def _check_delta(value: object) -> object:
    parse_delta(value)
    return value


DeltaText = Annotated[str, BeforeValidator(_check_delta), WithJsonSchema(
    {"type": "string", "pattern": r"^\s*[0-9.eE+-]+\s*(%|/s)\s*$", "examples": ["15%", "20/s"]})]


def _check_transform(item: object) -> object:
    try:
        parse_transform(item)
    except InputError as error:
        raise ValueError(str(error)) from None
    return item


TransformItem = Annotated[str | dict[str, Any], BeforeValidator(_check_transform), WithJsonSchema(item_schema())]


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Where samples come from and what happens to them before a network sees them."""

    source: str = "image_folder"  # image_folder | hdf5 | tfrecord | webdataset | builtin:digits|noise | import path
    path: str | None = None  # file or folder of the samples
    options: dict[str, Any] = Field(default_factory=dict)  # further arguments of the source
    validation: Annotated[float, Field(gt=0, lt=1)] | str | None = 0.1  # a fraction, or a path
    transforms: tuple[TransformItem, ...] = ("decode",)  # what is done to each sample, in this order
    window: Size = 2 * 10**9  # bytes of preprocessed samples that a node holds
    order: Literal["strict", "ring"] = "strict"  # ring: every network at its own pace, shard by shard
    shards: Annotated[int, Field(ge=2)] = 50  # of a ring
    cache: Literal["none", "memory", "file"] = "none"  # decoded images: in the window, or in a file made once
    stall: Annotated[Duration, Field(gt=0)] = 1800.0  # seconds without a sample after which the run ends
    max_bad: Annotated[Share, Field(ge=0, le=1)] = 0.01  # share of unreadable samples that a run bears

    @model_validator(mode="after")
    def _agree(self) -> Data:
        if self.order == "ring" and self.cache == "memory":
            raise ValueError("order: ring is for data sets larger than the window, cache: memory for those that fit "
                             "into it; should be one of them")
        return self


@dataclass(frozen=True, config=_STRICT)
class Batch:
    """The global batch: how many samples go into one step, over all GPUs of the group."""

    size: Annotated[int, Field(ge=1)] = 128  # samples in a step
    # fixed: the group splits the batch. per_gpu: the batch is size x GPUs, and the learning
    # rate is multiplied by the GPUs (the linear scaling rule).
    when_scaled: Literal["fixed", "per_gpu"] = "fixed"


@dataclass(frozen=True, config=_STRICT)
class Optimizer:
    """A Keras optimizer; a parameter that is not given keeps Keras' default."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"  # which one
    # A number, or a Keras schedule: {name: CosineDecay, initial_learning_rate: 0.1, decay_steps: 1000}.
    learning_rate: Annotated[float, Field(gt=0)] | dict[str, Any] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None  # sgd
    nesterov: bool | None = None  # sgd
    beta_1: Annotated[float, Field(ge=0, lt=1)] | None = None  # adam, adamw
    beta_2: Annotated[float, Field(ge=0, lt=1)] | None = None  # adam, adamw
    epsilon: Annotated[float, Field(gt=0)] | None = None  # adam, adamw
    weight_decay: Annotated[float, Field(ge=0)] | None = None  # of the weights, as Keras has it
    global_clipnorm: Annotated[float, Field(gt=0)] | None = None  # most that the norm of all gradients may be

    @model_validator(mode="after")
    def _fits_the_name(self) -> Optimizer:
        foreign = {"sgd": ("beta_1", "beta_2", "epsilon"), "adam": ("momentum", "nesterov"),
                   "adamw": ("momentum", "nesterov")}[self.name]
        wrong = [key for key in foreign if getattr(self, key) is not None]
        if wrong:
            raise ValueError(f"{self.name} takes no {', '.join(wrong)}")
        rate = self.learning_rate
        if isinstance(rate, dict) and rate.get("name") not in LEARNING_RATE_SCHEDULES:
            raise ValueError("a learning-rate schedule is a mapping with `name:` (one of "
                             f"{', '.join(LEARNING_RATE_SCHEDULES)}) and the arguments that Keras documents for it")
        return self


LEARNING_RATE_SCHEDULES = ("CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay",
                           "PiecewiseConstantDecay", "PolynomialDecay")


@dataclass(frozen=True, config=_STRICT)
class Converge:
    """When a network is done; whatever comes first."""

    max_epochs: Annotated[int, Field(ge=1)] = 60  # at most so many
    patience: Annotated[int, Field(ge=1)] | None = None  # epochs without an improvement of `monitor`
    monitor: Literal["val_accuracy", "val_loss", "accuracy", "loss"] = "val_accuracy"  # what is watched
    min_delta: Annotated[float, Field(ge=0)] = 0.0  # what counts as an improvement
    target: float | None = None  # a value of `monitor` that is good enough


@dataclass(frozen=True, config=_STRICT)
class Train:
    """How a network is trained."""

    batch: Batch = Batch()  # see there
    optimizer: Optimizer = Optimizer()  # see there
    converge: Converge = Converge()  # see there
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"  # the dtype policy of Keras
    xla: bool = False  # whether steps are compiled by XLA


@dataclass(frozen=True, config=_STRICT)
class ModelEntry:
    """One entry of `models:`, which may stand for many networks."""

    family: str | None = None  # resnet | densenet | cnn | softmax | a keras.applications name
    build: str | None = None  # module:function
    name: str | None = None  # of the network, numbered where there are several; else that of the family or function
    args: dict[str, Any] = Field(default_factory=dict)  # of the family or function
    count: Annotated[int, Field(ge=1, le=MOST_NETWORKS)] | None = None  # networks drawn from the space
    space: Space | None = None  # argument, or train.*, -> a list of values, or {low, high, log, integer}
    grid: Grid | None = None  # argument, or train.*, -> a list of values, of which all combinations are trained
    # So many GPUs, or [least, most]; as many as are useful unless said.
    gpus: Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    train: dict[str, Any] = Field(default_factory=dict)  # replaces parts of the top-level `train`

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ModelEntry:
        if (self.family is None) == (self.build is None):
            raise ValueError("wants exactly one of `family:` (resnet, densenet, cnn, a keras.applications name) "
                             "and `build: module:function`")
        if self.space is not None and self.grid is not None:
            raise ValueError("wants `space:` (random draws) or `grid:` (the full product), not both")
        if (self.space is None) != (self.count is None):
            raise ValueError("`count:` and `space:` go together: count random draws from the space")
        if isinstance(self.gpus, tuple) and self.gpus[0] > self.gpus[1]:
            raise ValueError(f"gpus: {list(self.gpus)} should be [least, most]")
        return self


@dataclass(frozen=True, config=_STRICT)
class Schedule:
    """Which networks train when, and on how many GPUs."""

    policy: str = "global"  # global | adaptive | local | homogeneous | baseline, or an import path module:policy
    delta: DeltaText = "15%"  # how close to the fastest the rates of a flotilla are: a share of it, or samples/s
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of the GPUs below which a round of `global` ends
    peak_limited: bool = True  # give a network no GPU that does not make it faster
    rates: str | None = None  # a rates file instead of profiling


@dataclass(frozen=True, config=_STRICT)
class Profile:
    """How training rates are measured."""

    batches: Annotated[int, Field(ge=2)] = 48  # steps of a measurement
    timed: Annotated[int, Field(ge=1)] = 20  # the last of them, which count
    max_gpus: Annotated[int, Field(ge=1)] | None = None  # measured so far; M_t of the paper's appendix B.3 unless said

    @model_validator(mode="after")
    def _timed_is_a_part(self) -> Profile:
        if self.timed >= self.batches:
            raise ValueError(f"timed: {self.timed} should be less than batches: {self.batches}, "
                             "for the first batches warm up")
        return self


@dataclass(frozen=True, config=_STRICT)
class Resources:
    """How the ranks of the launch are used."""

    engine: Literal["keras", "numpy", "emulated"] = "keras"  # what trains; emulated: ranks sleep instead
    time_scale: Annotated[float, Field(gt=0)] = 1.0  # emulated: seconds that a second of training takes
    preprocessors: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # ranks of the launch that prepare samples
    gpus_per_node: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"  # ranks of a node that train; auto: its GPUs
    exchange: Literal["auto", "horovod", "mpi"] = "auto"  # of gradients; auto: Horovod where there is one


@dataclass(frozen=True, config=_STRICT)
class Checkpoint:
    """What is kept on disk, and how often."""

    every: Annotated[Duration, Field(gt=0)] | None = None  # seconds inside an epoch; every epoch's end always
    # Of each network; with `last` it is the last epoch that is exported. Room permitting, the one before the last is
    # kept as well, for the case that the last is damaged.
    keep: Literal["best+last", "last"] = "best+last"
    quota: Annotated[Size, Field(gt=0)] | None = None  # bytes of all checkpoints and exports of the run


@dataclass(frozen=True, config=_STRICT)
class Document:
    """What stands in the YAML file, before networks are drawn."""

    models: Annotated[tuple[ModelEntry, ...], Field(min_length=1)]  # entries, of one network or many each
    name: str = "ensemble"  # of the run
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0  # of all that is random
    data: Data = Data()  # see there
    train: Train = Train()  # see there
    schedule: Schedule = Schedule()  # see there
    profile: Profile = Profile()  # see there
    resources: Resources = Resources()  # see there
    checkpoint: Checkpoint = Checkpoint()  # see there
    walltime: Annotated[Duration, Field(gt=0)] | None = None  # seconds; save and stop shortly before
    retries: Annotated[int, Field(ge=0, le=100)] = 2  # of a network that failed for a reason that may pass (I/O)
    output: str = ""  # folder of the run; runs/NAME unless said


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


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors."""
    schema = TypeAdapter(Document).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "FLEET spec"}


def with_output(spec: Spec, output: str | Path) -> Spec:
    """The same spec, with another folder for its run."""
    return replace(spec, document=replace(spec.document, output=str(output)))
