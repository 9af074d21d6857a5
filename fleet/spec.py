"""The spec of a run: YAML in, frozen dataclasses out, every mistake named at once.

:func:`load` reads a file, :func:`parse` a mapping (for specs that are made in
code). Both give a :class:`Spec` whose networks are resolved: drawn from their
spaces, named, seeded. :func:`dump` writes a spec that reads back as the same one.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from fleet.errors import SpecError, SpecMistake, UserError
from fleet.families import FAMILIES, Architecture, check_target
from fleet.search import Grid, Space, draw, grid, override
from fleet.units import Duration, Share, Size
from preprocess.base import InputError
from preprocess.transforms import parse_transform
from scheduler.base import Delta
from scheduler.policies import POLICIES

_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

# A network's name is a folder's name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _check_transform(item: object) -> object:
    try:
        parse_transform(item)
    except InputError as error:
        raise ValueError(str(error)) from None
    return item


TransformItem = Annotated[str | dict[str, Any], BeforeValidator(_check_transform)]


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Where samples come from and what happens to them before a network sees them."""

    source: str = "image_folder"  # image_folder | hdf5 | tfrecord | webdataset | builtin:digits | import path
    path: str | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | str | None = 0.1  # a fraction, or a path
    transforms: tuple[TransformItem, ...] = ("decode",)
    window: Size = 2 * 10**9  # bytes of preprocessed samples that a node holds
    max_bad: Annotated[Share, Field(ge=0, le=1)] = 0.01  # share of unreadable samples that a run bears


@dataclass(frozen=True, config=_STRICT)
class Batch:
    """The global batch: how many samples go into one step, over all GPUs of the group."""

    size: Annotated[int, Field(ge=1)] = 128
    # fixed: the group splits the batch. per_gpu: the batch is size x GPUs, and the learning
    # rate is multiplied by the GPUs (the linear scaling rule).
    when_scaled: Literal["fixed", "per_gpu"] = "fixed"


@dataclass(frozen=True, config=_STRICT)
class Optimizer:
    """A Keras optimizer; a parameter that is not given keeps Keras' default."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    # A number, or a Keras schedule: {name: CosineDecay, initial_learning_rate: 0.1, decay_steps: 1000}.
    learning_rate: Annotated[float, Field(gt=0)] | dict[str, Any] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None  # sgd
    nesterov: bool | None = None  # sgd
    beta_1: Annotated[float, Field(ge=0, lt=1)] | None = None  # adam, adamw
    beta_2: Annotated[float, Field(ge=0, lt=1)] | None = None  # adam, adamw
    epsilon: Annotated[float, Field(gt=0)] | None = None  # adam, adamw
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    global_clipnorm: Annotated[float, Field(gt=0)] | None = None

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

    max_epochs: Annotated[int, Field(ge=1)] = 60
    patience: Annotated[int, Field(ge=1)] | None = None  # epochs without an improvement of `monitor`
    monitor: Literal["val_accuracy", "val_loss", "accuracy", "loss"] = "val_accuracy"
    min_delta: Annotated[float, Field(ge=0)] = 0.0  # what counts as an improvement
    target: float | None = None  # a value of `monitor` that is good enough


@dataclass(frozen=True, config=_STRICT)
class Train:
    """How a network is trained."""

    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    converge: Converge = Converge()
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    xla: bool = False


@dataclass(frozen=True, config=_STRICT)
class ModelEntry:
    """One entry of `models:`, which may stand for many networks."""

    family: str | None = None  # resnet | densenet | cnn | softmax | a keras.applications name
    build: str | None = None  # module:function
    name: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    count: Annotated[int, Field(ge=1)] | None = None
    space: Space | None = None
    grid: Grid | None = None
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

    policy: str = "global"
    delta: Annotated[float, Field(gt=0)] | str = "15%"  # of the reference rate; a number is samples/s
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.8
    peak_limited: bool = True
    rates: str | None = None  # a rates file instead of profiling


@dataclass(frozen=True, config=_STRICT)
class Profile:
    """How training rates are measured."""

    batches: Annotated[int, Field(ge=2)] = 48
    timed: Annotated[int, Field(ge=1)] = 20
    max_gpus: Annotated[int, Field(ge=1)] | None = None  # M_t of the paper's appendix B.3 unless said

    @model_validator(mode="after")
    def _timed_is_a_part(self) -> Profile:
        if self.timed >= self.batches:
            raise ValueError(f"timed: {self.timed} should be less than batches: {self.batches}, "
                             "for the first batches warm up")
        return self


@dataclass(frozen=True, config=_STRICT)
class Resources:
    """How the ranks of the launch are used."""

    engine: Literal["keras", "numpy"] = "keras"
    preprocessors: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    gpus_per_node: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    exchange: Literal["auto", "horovod", "mpi"] = "auto"


@dataclass(frozen=True, config=_STRICT)
class Checkpoint:
    """What is kept on disk, and how often."""

    every: Annotated[Duration, Field(gt=0)] | None = None  # seconds inside an epoch; every epoch's end always


@dataclass(frozen=True, config=_STRICT)
class Document:
    """What stands in the YAML file, before networks are drawn."""

    models: Annotated[tuple[ModelEntry, ...], Field(min_length=1)]
    name: str = "ensemble"
    seed: Annotated[int, Field(ge=0)] = 0
    data: Data = Data()
    train: Train = Train()
    schedule: Schedule = Schedule()
    profile: Profile = Profile()
    resources: Resources = Resources()
    checkpoint: Checkpoint = Checkpoint()
    output: str = ""


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
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([SpecMistake(str(path), None, "", f"cannot be read: {error.strerror}", "an existing YAML file")]
                        ) from None
    except UnicodeDecodeError:
        raise SpecError([SpecMistake(str(path), None, "", "is not UTF-8 text", "a YAML file")]) from None
    content, lines = _read_yaml(text, str(path))
    return _resolve(content, str(path), lines)


def parse(content: Mapping[str, Any]) -> Spec:
    """Resolve a spec that was made in code; the same keys as in YAML.

    Raises:
        SpecError: with every mistake, each with its key.
    """
    return _resolve(_plain(content), "spec", {})


def dump(document: Document) -> str:
    """The spec as YAML, without what has its default value."""
    plain = _without_defaults(document)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file, for editors."""
    schema = TypeAdapter(Document).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "FLEET spec"}


class _Loader(yaml.SafeLoader):
    """The safe loader, which also reads ``1e-4`` as the number that everybody means by it."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789"))

_MAX_YAML_NODES = 100_000  # a spec is a page; aliases that unfold to more are an attack or an accident


def _read_yaml(text: str, file: str) -> tuple[Any, dict[tuple, int]]:
    def mistake(line: int | None, what: str, right: str) -> SpecError:
        return SpecError([SpecMistake(file, line, "", what, right)])

    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise mistake(mark.line + 1 if mark else None,
                      f"is not YAML: {getattr(error, 'problem', None) or error}", "valid YAML") from None
    except RecursionError:
        raise mistake(None, "is nested too deeply", "a page of YAML") from None
    if not isinstance(node, yaml.MappingNode):
        raise mistake(1, "is not a mapping", "keys such as `models:` and `data:` at the top level")
    lines: dict[tuple, int] = {}
    mistakes: list[SpecMistake] = []
    for count, (where, line, problem) in enumerate(_walk(node, ())):
        if count > _MAX_YAML_NODES:
            raise mistake(line, f"unfolds to more than {_MAX_YAML_NODES} values", "a page of YAML without alias bombs")
        lines.setdefault(where, line)
        if problem:
            mistakes.append(SpecMistake(file, line, _key(where), problem, "each key once"))
    if mistakes:
        raise SpecError(mistakes)
    try:
        return yaml.load(text, Loader=_Loader), lines  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise mistake(mark.line + 1 if mark else None,
                      f"is not YAML: {getattr(error, 'problem', None) or error}", "valid YAML") from None


def _walk(node: yaml.Node, where: tuple) -> Iterator[tuple[tuple, int, str | None]]:
    """Every place of a document: its key path, its line, and what is wrong with it as YAML."""
    yield where, node.start_mark.line + 1, None
    if len(where) > 50:
        return
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            place = (*where, key.value if isinstance(key, yaml.ScalarNode) else "?")
            yield place, key.start_mark.line + 1, "stands here twice" if place in seen else None
            seen.add(place)
            yield from _walk(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*where, index))


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
        try:
            networks += _networks(document, index, entry)
        except _MisfitError as misfit:
            mistakes += _explain(misfit.error, None, mistake, ("models", index, misfit.part), misfit.owner)
        except (UserError, InputError) as error:
            mistakes.append(mistake(("models", index), str(error)))
    names = [network.name for network in networks]
    for name in sorted({name for name in names if names.count(name) > 1}):
        mistakes.append(mistake(("models",), f"{names.count(name)} networks are named {name!r}",
                                "another `name:` for one of them"))
    if mistakes:
        raise SpecError(mistakes)
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
    if rates is not None and not Path(rates).is_file():
        yield ("schedule", "rates"), f"no file {rates}", "a rates file, such as the profile.json of a run"


class _MisfitError(Exception):
    """A part of a model's entry does not fit its owner's settings."""

    def __init__(self, part: str, owner: type, error: ValidationError) -> None:
        super().__init__(part)
        self.part, self.owner, self.error = part, owner, error


def _networks(document: Document, index: int, entry: ModelEntry) -> list[NetworkSpec]:
    if entry.space is not None and entry.count is not None:
        # Entries draw from streams of their own: adding an entry does not change another's networks.
        draws = draw(entry.space, entry.count, document.seed + 7919 * index)
    elif entry.grid is not None:
        draws = grid(entry.grid)
    else:
        draws = [{}]
    stem = entry.name or _stem(entry)
    many = len(draws) > 1
    networks = []
    for number, drawn in enumerate(draws):
        name = f"{stem}-{number:0{len(str(len(draws) - 1))}d}" if many else stem
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} cannot name a network: it should be letters, digits, '.', '_' and '-'")
        args = override(entry.args, {key: value for key, value in drawn.items() if not key.startswith("train.")})
        train = _merged(document.train, entry.train, drawn)
        least, most = _gpu_bounds(entry)
        networks.append(NetworkSpec(
            name=name, architecture=_architecture(entry, args, document.resources.engine), train=train,
            seed=zlib.crc32(f"{document.seed}/{name}".encode()), min_gpus=least, max_gpus=most,
            parameters=dict(drawn)))
    return networks


def _stem(entry: ModelEntry) -> str:
    return (entry.family or str(entry.build).split(":")[-1]).lower()


def _gpu_bounds(entry: ModelEntry) -> tuple[int, int | None]:
    if entry.gpus is None:
        return 1, None
    return (entry.gpus, entry.gpus) if isinstance(entry.gpus, int) else entry.gpus


def _merged(base: Train, override: Mapping[str, Any], drawn: Mapping[str, Any]) -> Train:
    """The top-level training settings with an entry's own, and with what was drawn as ``train.*``."""
    plain = TypeAdapter(Train).dump_python(base)
    _merge(plain, override)
    for key, value in drawn.items():
        if key.startswith("train."):
            *path, last = key.split(".")[1:]
            nested: dict[str, Any] = {last: value}
            for part in reversed(path):
                nested = {part: nested}
            _merge(plain, nested)
    try:
        return TypeAdapter(Train).validate_python(plain)
    except ValidationError as error:
        raise _MisfitError("train", Train, error) from None


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        # Another optimizer does not inherit the parameters of the first one.
        renamed = (key == "optimizer" and isinstance(value, Mapping)
                   and value.get("name") not in (None, into[key]["name"]))
        if isinstance(value, Mapping) and isinstance(into.get(key), dict) and key != "learning_rate" and not renamed:
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _architecture(entry: ModelEntry, args: dict[str, Any], engine: str) -> Architecture:
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
        raise _MisfitError("args", FAMILIES[target], error) from None


def check_import(path: str) -> None:
    """Refuse an import path that leads nowhere, without importing it: it may import TensorFlow."""
    module, _, function = path.partition(":")
    if not module or not function.isidentifier():
        raise UserError(f"{path!r} should be written module:function")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script does not
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UserError(f"build: {path}: no module {module!r} is found from {Path.cwd()}; "
                        "it should stand there or be installed")
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
    except (OSError, SyntaxError, UnicodeDecodeError):
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


def _explain(error: ValidationError, content: Any, mistake: Any, prefix: tuple = (), owner: type | None = None
             ) -> list[SpecMistake]:
    """Pydantic's errors in our words; ``owner`` is what stands at ``prefix``, where ``content`` is not given."""
    mistakes: dict[tuple, SpecMistake] = {}
    for item in error.errors(include_url=False):
        where = (*prefix, *item["loc"]) if content is None else _document_path(item["loc"], content)
        if item["type"] == "unexpected_keyword_argument" or item["type"] == "extra_forbidden":
            key, parent = where[-1], where[:-1]
            what = f"no key is named {key!r}"
            right = _valid_keys(owner if parent == prefix and owner else _owner(parent), str(key))
        elif item["type"] == "missing":
            what, right = "is missing", _valid_keys(_owner(where[:-1]), "")
        else:
            message = item["msg"].removeprefix("Value error, ")
            shown = repr(item["input"])
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            what, right = (shown, message[0].lower() + message[1:]) if shown and message else (message, "")
        mistakes.setdefault((where, what), mistake(where, what, right))
    return list(mistakes.values())


def _document_path(loc: tuple, content: Any) -> tuple:
    """The part of pydantic's location that is a path in the document: it also names union members."""
    where: list[Any] = []
    for step in loc:
        if isinstance(content, Mapping):
            where.append(step)
            if step not in content:
                break
            content = content[step]
        elif isinstance(content, list | tuple) and isinstance(step, int):
            where.append(step)
            if step >= len(content):
                break
            content = content[step]
        else:
            break
    return tuple(where) if where else tuple(loc)


_PARTS: dict[str, type] = {"data": Data, "train": Train, "schedule": Schedule, "profile": Profile,
                           "resources": Resources, "checkpoint": Checkpoint, "batch": Batch, "optimizer": Optimizer,
                           "converge": Converge}


def _owner(place: Sequence[Any]) -> type | None:
    """The dataclass that stands at a place of the document."""
    if not place:
        return Document
    if place[0] == "models" and len(place) == 2:
        return ModelEntry
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
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
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
        item = getattr(value, field.name)
        if item is None or item == {} or item == field.default:
            continue
        plain[field.name] = _plain(item)
    return plain


def with_output(spec: Spec, output: str | Path) -> Spec:
    """The same spec, with another folder for its run."""
    return replace(spec, document=replace(spec.document, output=str(output)))
