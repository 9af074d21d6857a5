"""The spec of a run: YAML in, frozen dataclasses out, every mistake named at once.

:func:`load` reads a file, :func:`parse` a mapping (for specs that are made in
code). Both give a :class:`Spec` whose networks are resolved: drawn from their
spaces, named, seeded. :func:`dump` writes a spec that reads back as the same one.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import math
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fleet.errors import SpecError, SpecMistake, UserError
from fleet.spec.model import FAMILIES, Architecture, check_target
from fleet.spec.space import Grid, Range, Space, draw, grid, override
from fleet.units import Duration, Share, Size
from preprocess.base import InputError
from preprocess.transforms import item_schema, parse_transform
from scheduler.base import Delta, Options
from scheduler.ensemble.policies import POLICIES

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

# A network's name is a folder's name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_MOST_NETWORKS = 10_000  # of one entry; more are a slip of the keyboard, and would fill the memory


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
    count: Annotated[int, Field(ge=1, le=_MOST_NETWORKS)] | None = None  # networks drawn from the space
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

    policy: str = "global"  # global | adaptive | local | homogeneous | baseline
    # How close to the fastest the rates of a flotilla are, as a share of it; a number is samples/s.
    delta: Annotated[float, Field(gt=0)] | str = "15%"
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
    def options(self) -> Options:
        """What the policy is told."""
        settings = self.schedule
        return Options(settings.alpha, Delta.parse(settings.delta), settings.peak_limited, self.seed)

    @property
    def output(self) -> Path:
        """The folder of the run."""
        return Path(self.document.output or f"runs/{self.document.name}")

    @cached_property
    def by_name(self) -> dict[str, NetworkSpec]:
        """The networks by name."""
        return {network.name: network for network in self.networks}


# ---- reading -----------------------------------------------------------------------------------


def load(path: str | Path) -> Spec:
    """Read and resolve a spec file.

    Raises:
        SpecError: with every mistake, each with file, line and key.
    """
    content, lines = read_yaml(Path(path))
    look_beside(path)
    return _resolve(content, str(path), lines)


def look_beside(path: str | Path) -> None:
    """Have modules that a spec names found beside it too, after those of the working folder and installed ones."""
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def parse(content: Document | Mapping[str, Any]) -> Spec:
    """Resolve a spec that was made in code.

    Args:
        content: a document, or a mapping with the keys of a spec file.

    Raises:
        SpecError: with every mistake, each with its key.
    """
    return _resolve(_plain(content), "spec", {})


def dump(document: Document) -> str:
    """The spec as YAML, without what has its default value."""
    return yaml.dump(_without_defaults(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True,
                     default_flow_style=None, width=100)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors."""
    schema = TypeAdapter(Document).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "FLEET spec"}


class _Loader(yaml.SafeLoader):
    """The safe loader; it reads ``1e-4`` as the number that everybody means by it, and a date as text."""


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that :class:`_Loader` would read as a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"),
                                 list("-+0123456789"))

# A spec is a page of text, numbers, lists and mappings; more is an attack or an accident.
_MAX_YAML_NODES = 100_000  # after aliases are unfolded
_MAX_YAML_DEPTH = 50
_MAX_YAML_TEXT = 3000  # longer than a path; and Python does not write integers of more than 4300 digits
_YAML_TYPES = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}
_YAML_KEYS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # what no file name and no terminal takes


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[tuple, int]]:
    """The mapping that a YAML file holds, and the line of each key path.

    Raises:
        SpecError: there is no such file, or it holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([SpecMistake(str(path), None, "", f"cannot be read: {error.strerror}", "an existing YAML file")]
                        ) from None
    except UnicodeDecodeError:
        raise SpecError([SpecMistake(str(path), None, "", "is not UTF-8 text", "a YAML file")]) from None
    return _read_yaml(text, str(path))


def _read_yaml(text: str, file: str) -> tuple[dict[str, Any], dict[tuple, int]]:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError([_no_yaml(file, error)]) from None
    if not isinstance(node, yaml.MappingNode):
        raise SpecError([SpecMistake(file, 1, "", "is not a mapping",
                                     "keys such as `models:` and `data:` at the top level")])
    lines: dict[tuple, int] = {}
    mistakes: list[SpecMistake] = []
    for count, (where, line, wrong, right) in enumerate(_walk(node, ())):
        if count > _MAX_YAML_NODES or len(where) > _MAX_YAML_DEPTH:
            raise SpecError([SpecMistake(
                file, line, "", f"unfolds to more than {_MAX_YAML_NODES} values or {_MAX_YAML_DEPTH} levels",
                "a page of YAML without aliases of aliases")])
        lines.setdefault(where, line)
        if wrong:
            mistakes.append(SpecMistake(file, line, _key(where), wrong, right))
    if mistakes:
        raise SpecError(mistakes)
    try:
        return yaml.load(text, Loader=_Loader), lines
    except (yaml.YAMLError, ValueError, LookupError) as error:  # a tag such as !!int before what is none
        raise SpecError([_no_yaml(file, error)]) from None


def _no_yaml(file: str, error: Exception) -> SpecMistake:
    mark = getattr(error, "problem_mark", None)
    what = ("it is nested too deeply" if isinstance(error, RecursionError)
            else " ".join(str(getattr(error, "problem", None) or error).split()))
    return SpecMistake(file, mark.line + 1 if mark else None, "", f"is not YAML: {what}", "valid YAML")


def _walk(node: yaml.Node, where: tuple) -> Iterator[tuple[tuple, int, str, str]]:
    """Every place of a document: its key path, its line, what is wrong with it as YAML, what would be right."""
    yield where, node.start_mark.line + 1, *_fault(node)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            place = (*where, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
            if key.tag not in _YAML_KEYS:
                yield place, key.start_mark.line + 1, "is a key and no text", "text, perhaps in quotes"
            elif place in seen:
                yield place, key.start_mark.line + 1, "stands here twice", "each key once"
            else:
                yield place, key.start_mark.line + 1, *_fault(key)
            seen.add(place)
            yield from _walk(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*where, index))


def _fault(node: yaml.Node) -> tuple[str, str]:
    """What is wrong with one value as YAML, and what would be right; nothing where nothing is."""
    if node.tag not in _YAML_TYPES | _YAML_KEYS:
        return f"has the YAML type {node.tag.removeprefix('tag:yaml.org,2002:')}", "text, numbers, lists and mappings"
    if isinstance(node, yaml.ScalarNode) and len(node.value) > _MAX_YAML_TEXT:
        return f"has {len(node.value)} characters", f"at most {_MAX_YAML_TEXT}"
    if isinstance(node, yaml.ScalarNode) and _NO_TEXT.search(node.value):
        return "holds a control character", "text that can be printed"
    return "", ""


# ---- resolving ---------------------------------------------------------------------------------


def _resolve(content: Any, file: str, lines: Mapping[tuple, int]) -> Spec:
    def mistake(where: Sequence[Any], what: str, right: str = "") -> SpecMistake:
        return SpecMistake(file, _line(lines, where), _key(where), what, right)

    mistakes: list[SpecMistake] = []
    try:
        document = TypeAdapter(Document).validate_python(content)
        entries = list(enumerate(document.models))
    except ValidationError as error:
        mistakes += _explain(error, content, mistake)
        document, entries = _salvage(content)
    mistakes += [mistake(*problem) for problem in _problems(document)]
    networks: list[NetworkSpec] = []
    for index, entry in entries:
        problems: list[Exception] = []
        networks += _networks(document, index, entry, problems)
        for problem in problems:
            if isinstance(problem, _MisfitError):
                mistakes += _explain(problem.error, problem.content, mistake, ("models", index, problem.part),
                                     problem.owner)
            else:
                mistakes.append(mistake(("models", index), str(problem)))
    names = [network.name for network in networks]
    mistakes += [mistake(("models",), f"{count} networks are named {name!r}", "another `name:` for one of them")
                 for name, count in sorted(Counter(names).items()) if count > 1]
    if mistakes:
        raise SpecError(sorted(mistakes, key=lambda mistake: mistake.line or 0))
    return Spec(document, tuple(networks))


def _salvage(content: Mapping[str, Any]) -> tuple[Document, list[tuple[int, ModelEntry]]]:
    """The parts of a wrong document that are right, so that mistakes of all kinds are found at once."""
    parts = {}
    for field in dataclass_fields(Document):
        if field.name in content and field.name != "models":
            try:
                placeholder = {"models": [{"family": "softmax"}], field.name: content[field.name]}
                parts[field.name] = getattr(TypeAdapter(Document).validate_python(placeholder), field.name)
            except ValidationError:
                continue
    entries = []
    models = content.get("models")
    for index, item in enumerate(models if isinstance(models, list | tuple) else []):
        try:
            entries.append((index, TypeAdapter(ModelEntry).validate_python(item)))
        except ValidationError:
            continue
    return Document(models=(ModelEntry(family="softmax"),), **parts), entries


def _problems(document: Document) -> Iterator[tuple[tuple, str, str]]:
    """What the types cannot say: (key path, what is wrong, what would be right)."""
    if not _NAME.fullmatch(document.name):
        yield ("name",), f"{document.name!r} cannot name a folder", "letters, digits, '.', '_' and '-'"
    policy = document.schedule.policy
    if policy not in POLICIES:
        yield ("schedule", "policy"), f"no policy is named {policy!r}", f"one of {', '.join(sorted(POLICIES))}"
    try:
        Delta.parse(document.schedule.delta)
    except ValueError as error:
        yield ("schedule", "delta"), str(error), ""
    rates = document.schedule.rates
    if document.resources.engine == "emulated" and rates is None:
        yield ("resources", "engine"), "emulated networks train at rates that are known", "`schedule: {rates: FILE}`"
    if rates is not None and not os.path.isfile(rates):  # Path would raise, for a name too long
        yield ("schedule", "rates"), f"no file {rates}", "a rates file, such as the profile.json of a run"


class _MisfitError(Exception):
    """A part of a model's entry, with all that was put into it, does not fit its owner's settings."""

    def __init__(self, part: str, owner: type, content: Mapping[str, Any], error: ValidationError) -> None:
        super().__init__(part)
        self.part, self.owner, self.content, self.error = part, owner, content, error


def _networks(document: Document, index: int, entry: ModelEntry, problems: list[Exception]) -> list[NetworkSpec]:
    """The networks of an entry; what is wrong with it is added to ``problems``."""
    networks: list[NetworkSpec] = []
    draws = _tried(problems, _draws, document, index, entry) or []
    least, most = _gpu_bounds(entry)
    for number, drawn in enumerate(draws):
        name = _tried(problems, _name, entry, number, len(draws))
        train = _tried(problems, _merged, document.train, entry.train, drawn)
        architecture = _tried(problems, _architecture, entry, drawn, document.resources.engine)
        if name is None or train is None or architecture is None:
            break  # the other draws will hardly be better
        networks.append(NetworkSpec(
            name=name, architecture=architecture, train=train, seed=zlib.crc32(f"{document.seed}/{name}".encode()),
            min_gpus=least, max_gpus=most, parameters=dict(drawn)))
    return networks


def _tried(problems: list[Exception], function: Callable[..., T], *arguments: Any) -> T | None:
    """What a function gives, or nothing, and one problem more."""
    try:
        return function(*arguments)
    except (UserError, InputError, _MisfitError) as problem:
        problems.append(problem)
        return None


def _draws(document: Document, index: int, entry: ModelEntry) -> list[dict[str, Any]]:
    """What each network of an entry has of its own."""
    if entry.space is not None and entry.count is not None:
        # Entries draw from streams of their own: adding an entry does not change another's networks.
        return draw(entry.space, entry.count, document.seed + 7919 * index)
    if entry.grid is not None:
        if (size := math.prod(map(len, entry.grid.values()))) > _MOST_NETWORKS:
            raise UserError(f"the grid has {size} members: at most {_MOST_NETWORKS} networks of one entry")
        return grid(entry.grid)
    return [{}]


def _name(entry: ModelEntry, number: int, count: int) -> str:
    """The name of one of an entry's networks."""
    name = entry.name or _stem(entry)
    if count > 1:
        name += f"-{number:0{len(str(count - 1))}d}"
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot name a network: it should be letters, digits, '.', '_' and '-'")
    return name


def _stem(entry: ModelEntry) -> str:
    return (entry.family or str(entry.build).split(":")[-1]).lower()


def _gpu_bounds(entry: ModelEntry) -> tuple[int, int | None]:
    if entry.gpus is None:
        return 1, None
    return (entry.gpus, entry.gpus) if isinstance(entry.gpus, int) else entry.gpus


def _merged(base: Train, own: Mapping[str, Any], drawn: Mapping[str, Any]) -> Train:
    """The top-level training settings with an entry's own, and with what was drawn as ``train.*``."""
    drawn_here = override({}, {key.removeprefix("train."): value for key, value in drawn.items()
                               if key.startswith("train.")})
    train = base
    for settings in (own, drawn_here):
        if settings:
            plain = TypeAdapter(Train).dump_python(train)
            _merge(plain, settings)
            try:
                train = TypeAdapter(Train).validate_python(plain)
            except ValidationError as error:
                raise _MisfitError("train", Train, plain, error) from None
    return train


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        old = into.get(key)
        # Another optimizer, or another schedule, does not inherit the parameters of the first one.
        if isinstance(value, Mapping) and isinstance(old, dict) and value.get("name") in (None, old.get("name")):
            _merge(old, value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _architecture(entry: ModelEntry, drawn: Mapping[str, Any], engine: str) -> Architecture:
    """What to build: the entry's arguments with what was drawn."""
    args = override(entry.args, {key: value for key, value in drawn.items() if not key.startswith("train.")})
    if entry.build is not None:
        check_import(entry.build)
        return Architecture(entry.build, args)
    target = str(entry.family)
    check_target(target)
    if engine == "numpy" and target != "softmax":
        raise UserError(f"the numpy engine trains the family softmax only, not {target}")
    try:
        return Architecture(target, args)
    except ValidationError as error:
        raise _MisfitError("args", FAMILIES[target], args, error) from None


def check_import(path: str) -> None:
    """Refuse an import path that leads nowhere, without importing its module: that may import TensorFlow."""
    module, _, function = path.partition(":")
    if not module or not function.isidentifier():
        raise UserError(f"{path!r} should be written module:function")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script does not
    try:
        found = importlib.util.find_spec(module)
    except Exception:  # the packages around the module are imported, and may raise anything
        found = None
    if found is None:
        raise UserError(f"build: {path}: no module {module!r} is found from {Path.cwd()}; "
                        "it should stand there, or beside the spec, or be installed")
    if found.origin and found.origin.endswith(".py"):
        names = _top_level_names(Path(found.origin))
        if names is not None and function not in names:
            close = difflib.get_close_matches(function, sorted(names), n=3)
            hint = f"; near it: {', '.join(close)}" if close else ""
            raise UserError(f"build: {path}: {found.origin} has no function {function!r}{hint}")


def _top_level_names(file: Path) -> set[str] | None:
    """The names that a module binds, or None where only running it would tell."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            if any(alias.name == "*" for alias in node.names):
                return None
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


# ---- explaining --------------------------------------------------------------------------------


def _explain(error: ValidationError, content: Any, mistake: Callable[..., SpecMistake], prefix: tuple = (),
             owner: type | None = None) -> list[SpecMistake]:
    """Pydantic's errors in our words.

    Args:
        content: what was validated.
        prefix: its place in the document.
        owner: the dataclass that stands there; nothing for the document itself.
    """
    found: dict[tuple, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        depth = len(item["loc"])
        if item["type"] == "too_short" and any(
                len(other["loc"]) > depth and other["loc"][:depth] == item["loc"] for other in items):
            continue  # members that are wrong were not counted
        where = (*prefix, *_document_path(item, content))
        wrong, right = _wrong_and_right(item, where, owner if where[:-1] == prefix else None)
        rights = found.setdefault((where, wrong), [])
        if right and right not in rights:
            rights.append(right)
    return [mistake(where, wrong, ", or ".join(rights)) for (where, wrong), rights in found.items()]


def _wrong_and_right(item: ErrorDetails, where: tuple, owner: type | None) -> tuple[str, str]:
    """What is wrong at a place, and what would be right."""
    owner = owner or _owner(where[:-1])
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"no key is named {where[-1]!r}", _valid_keys(owner, str(where[-1]))
    if item["type"] == "missing":
        return "is missing", _valid_keys(owner, "")
    message = item["msg"].removeprefix("Value error, ")
    for pydantics, ours in _IN_YAML:
        message = re.sub(pydantics, ours, message)
    shown = repr(item["input"])
    return shown if len(shown) <= 60 else shown[:57] + "...", message[:1].lower() + message[1:]


# Pydantic speaks of Python's types; whoever writes a spec thinks in YAML's.
_IN_YAML = ((r"a valid dictionary|a dictionary or an instance of \w+", "a mapping"),
            ("a valid tuple|a valid list", "a list"), ("^(Tuple|List) should", "The list should"),
            (" after validation|, unable to .*", ""), ("a valid string", "text"))


def _document_path(item: ErrorDetails, content: Any) -> tuple:
    """The part of pydantic's location that is a path in the document: it also names union members."""
    where: list[Any] = []
    step: Any
    for step in item["loc"]:
        if (isinstance(content, Mapping) and step in content) or (
                isinstance(content, list | tuple) and isinstance(step, int) and step < len(content)):
            where.append(step)
            content = content[step]
    return (*where, item["loc"][-1]) if item["type"] == "missing" else tuple(where)


_PARTS: dict[str, type] = {"data": Data, "train": Train, "schedule": Schedule, "profile": Profile,
                           "resources": Resources, "checkpoint": Checkpoint, "batch": Batch, "optimizer": Optimizer,
                           "converge": Converge}


def _owner(place: Sequence[Any]) -> type | None:
    """The dataclass that stands at a place of the document."""
    if not place:
        return Document
    if place[0] == "models" and len(place) == 2:
        return ModelEntry
    if place[0] == "models" and len(place) == 4 and place[2] == "space":
        return Range
    return _PARTS.get(str(place[-1]))


def _valid_keys(owner: type | None, wrong: str) -> str:
    """The keys that a part of the spec has, with their defaults; the nearest first."""
    if owner is None:
        return ""
    shown = []
    for field in dataclass_fields(owner):
        default = field.default
        plain = isinstance(default, bool | int | float | str | tuple) and default not in ("", ())
        shown.append(f"{field.name} ({default})" if plain and field.name != "transforms" else field.name)
    close = difflib.get_close_matches(wrong, [field.name for field in dataclass_fields(owner)], n=1)
    hint = f"{close[0]}? " if close else ""
    return hint + "valid keys: " + ", ".join(shown)


def _line(lines: Mapping[tuple, int], where: Sequence[Any]) -> int | None:
    """The line of a key path, or of the nearest place above it that is written down."""
    path = tuple(where)
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def _key(where: Sequence[Any]) -> str:
    """A key path as people write it.

    >>> _key(("models", 0, "gpus"))
    'models[0].gpus'
    """
    text = ""
    for step in where:
        shown = str(step) if str(step).isprintable() else ascii(step)
        text += f"[{shown}]" if isinstance(step, int) else f".{shown}" if text else shown
    return text


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _without_defaults(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _without_defaults(value: Any) -> dict[str, Any]:
    plain = {}
    for field in dataclass_fields(value):
        item, default = getattr(value, field.name), field.default
        if isinstance(default, FieldInfo):
            default = default.get_default(call_default_factory=True)
        if item == default:
            continue
        plain[field.name] = _plain(item)
    return plain


def with_output(spec: Spec, output: str | Path) -> Spec:
    """The same spec, with another folder for its run."""
    return replace(spec, document=replace(spec.document, output=str(output)))
