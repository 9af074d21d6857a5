"""The keys of a spec as frozen dataclasses, from the document to one network.

The docstring below a key (a ``Field(description=...)`` if it is computed) is the only place that
explains it: the JSON Schema and ``docs/spec.md`` are generated from there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from fleet.notebook_table import notebook_table
from fleet.plugins import find_policy
from fleet.spec import fields as kinds
from fleet.spec.data import Data, EntryData
from fleet.spec.dimensions import Space
from fleet.spec.engines import ENGINES, EngineInfo, find_engine
from fleet.spec.enumeration import size_of
from fleet.spec.model import Architecture
from fleet.spec.origin import Origin, is_below, key_path
from fleet.spec.search import Prune, PruneOrRule, Search
from fleet.spec.section import plain, section
from fleet.spec.space import holds
from fleet.spec.train import Train
from scheduler.base import MAX_SLOTS, Options
from scheduler.ensemble.policies import POLICIES, SETTINGS, Policy, default_policy

MAX_NETWORKS = 10_000  # of one entry; a larger number is a typo, and would fill the memory


def _as_text(version: object) -> object:
    """Convert a version that YAML reads as a number to text."""
    if isinstance(version, float):
        return str(version)
    return version


def _read_by(setting: str) -> str:
    """Name the policies that read an option."""
    names = [policy.name for policy in POLICIES.values() if setting in policy.reads]
    return f"Only for {' and '.join(names)}."


@section
class ModelEntry:
    """An entry of `models`, for one network or many."""

    family: str | None = None
    """A model family of FLEET, or the name of a model in keras.applications."""
    build: kinds.ImportPath | None = None
    """Instead of a family: the import path of your own function, which returns a keras.Model, or a
    torch.nn.Module for the engine torch. Its module may be next to the spec.
    """
    output: kinds.OutputName | None = None
    """Only for `build`: the output that is trained, if the network returns several: a key of the
    mapping, a name of the outputs, or a position in the tuple, from 0.
    """
    name: str | None = None
    """Name of the network in all results. Default: the name of the family or function. Several
    networks of one entry (`space`, `grid`) are numbered: NAME-0, NAME-1, ...
    """
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the family or function, for all networks of the entry."""
    count: Annotated[int, Field(ge=1, le=MAX_NETWORKS), kinds.NO_FLAG] | None = None
    """Number of networks to draw at random from `space`."""
    repeats: kinds.Repeats = 1
    """Number of times that each network of the entry is trained, with other seeds, as NAME-repeat0,
    NAME-repeat1, ... Results also have their means, and they are pruned together. With a search the
    key may also be in `search`.
    """
    space: Space | None = None
    """Parameters to draw at random, or to be proposed by `search`: for an argument, or for a
    setting like train.optimizer.learning_rate, a list of values or a range {low, high, log,
    integer, step, prior, when}. A parameter may be used under conditions only: {choices: [...],
    when: {KEY: VALUE}}. If one key is below another one, such as train.optimizer.momentum below
    train.optimizer, the deeper key wins, and no value of the other key may set the same setting.
    """
    search: Search | None = None
    """Instead of `count`: a sampler that proposes networks from `space` during the run."""
    grid: Space | None = None
    """Parameters whose combinations are all trained: for an argument, or for a setting like
    train.batch.size, a list of values, or as in `space` what has finitely many.
    """
    gpus: kinds.Positive | tuple[kinds.Positive, kinds.Positive] | None = None
    """Number of GPUs for the network, or [min, max]. Default: from 1 to as many as make it faster.
    """
    train: dict[str, Any] = Field(default_factory=dict)
    """Training settings of this entry. Other settings come from `train` at the top."""
    data: EntryData | None = None
    """`transforms` or `target` for this entry. Other settings come from `data` at the top."""

    @property
    def stem(self) -> str:
        """The network's name, or the prefix of its networks' names."""
        return self.name or self.target.split(":")[-1].lower()

    @property
    def target(self) -> str:
        """The family, the name in keras.applications, or the import path."""
        return self.family or str(self.build)

    @property
    def networks_per_trial(self) -> int:
        """The number of networks that repeat each configuration; 1 without repeats."""
        return max(self.repeats, 1 if self.search is None else self.search.repeats)

    @property
    def gpu_bounds(self) -> tuple[int, int | None]:
        """The smallest and largest number of GPUs; None for as many as there are."""
        if isinstance(self.gpus, tuple):
            return self.gpus
        return self.gpus or 1, self.gpus

    @property
    def train_overrides(self) -> dict[str, Any]:
        """The entry's training settings, with the first objective of its search as monitor."""
        if self.search is None or not self.search.objectives:
            return self.train
        first = self.search.objectives[0]
        stopping = self.train.get("stopping") or {}
        if first.sense is None:
            sense = {}
        else:
            sense = {"direction": "max" if first.sense == "maximize" else "min"}
        stopping = {**sense, **stopping} if first.mode is None else {**stopping, **sense}
        return {**self.train, "stopping": {**stopping, "monitor": first.value}}

    @model_validator(mode="after")
    def _check_combinations(self) -> ModelEntry:
        if (self.family is None) == (self.build is None):
            raise ValueError(
                "needs exactly one of `family:` (resnet, densenet, cnn, mlp, a keras.applications "
                "name) and `build: module:function`"
            )
        if self.output is not None and self.build is None:
            raise ValueError("`output:` goes with `build:`; families have one output")
        if self.space is not None and self.grid is not None:
            raise ValueError(
                "needs `space:` (random draws) or `grid:` (the full product), not both"
            )
        if self.count is not None and self.search is not None:
            raise ValueError("needs `count:` (random draws) or `search:` (a sampler), not both")
        if self.search is not None and 1 < self.repeats != self.search.repeats > 1:
            raise ValueError(
                f"`repeats: {self.repeats}` contradicts `search: {{repeats: "
                f"{self.search.repeats}}}`; leave one out"
            )
        if self.space is None and self.count is not None:
            raise ValueError("`count:` and `space:` go together: count random draws from the space")
        if self.space is None and self.search is not None:
            raise ValueError(
                "`search:` and `space:` go together: the sampler proposes values of the space"
            )
        if self.space is not None and self.count is None and self.search is None:
            raise ValueError("`space:` and `count:` go together, or `space:` and `search:`")
        if isinstance(self.gpus, tuple) and self.gpus[0] > self.gpus[1]:
            raise ValueError(f"gpus: {list(self.gpus)} should be [min, max]")
        return self


# Options of policies, by the keys of a spec that set them.
OPTION_OF = {"pace_tolerance": "delta", "round_end_share": "alpha", "literal": "peak_limited"}


def policy_of_keys(keys: Collection[str]) -> Policy:
    """Return the policy of a schedule that does not name one."""
    return default_policy([option for key, option in OPTION_OF.items() if key in keys])


@section
class Schedule:
    """Scheduling: which networks train when, and on how many GPUs."""

    policy: kinds.PolicyName = Field(
        default=default_policy().name,
        description=(
            "Scheduling policy: which networks train when, or the import path of your own. "
            "Default: adaptive, "
            f"or {default_policy(SETTINGS).name} if a key is given that only "
            f"{default_policy(SETTINGS).name} reads. "
            + " ".join(f"{policy.name}: {policy.help}." for policy in POLICIES.values())
        ),
    )
    pace_tolerance: kinds.PaceTolerance = Field(
        default=Options().delta,
        json_schema_extra={"default": str(Options().delta)},
        description=(
            "How much slower than the fastest network the others of a flotilla may be: a share of "
            "its rate, like 15%, or samples per second, like 20/s. " + _read_by("delta")
        ),
    )
    round_end_share: Annotated[kinds.Share, Field(gt=0, le=1)] = Field(
        default=0.8,
        json_schema_extra={"default": "80%"},
        description=(
            "A round ends when less than this share of the GPUs train, like 80%. "
            + _read_by("alpha")
        ),
    )
    literal: bool = Field(
        default=False,
        description=(
            "Follow the paper literally: spare GPUs are assigned by its Algorithm 2, and rates "
            "beyond the measured ones are extrapolated by its Equation 5 from twice the GPUs of a "
            "node, as with --literal of fleet plan. Otherwise a network gets only GPUs that make "
            "it faster. " + _read_by("peak_limited")
        ),
    )
    rates: str | None = None
    """File with training rates, such as profile.json of an earlier run. Default: rates are measured
    (see `profile`).
    """

    @model_validator(mode="before")
    @classmethod
    def _policy_of_its_settings(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and "policy" not in content:
            return {**content, "policy": policy_of_keys(content).name}
        return content


@section
class Profile:
    """Rate measurement: how the run measures the training rates of networks."""

    when: Literal["online", "offline"] = "online"
    """online: training starts immediately with estimated rates, which the training steps correct;
    the other keys are ignored. offline: every network is timed on synthetic samples before training
    (appendix B.3 of the paper).
    """
    batches: Annotated[int, Field(ge=2), kinds.NO_FLAG] = 48
    """Maximum number of training steps per measurement."""
    timed: kinds.Positive = 20
    """Number of these steps, counted from the end, that are timed. The steps before them are
    warm-up.
    """
    seconds: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=30.0, json_schema_extra={"default": "30s"}
    )
    """Time limit of one measurement, like 30s. Up to half of it may be warm-up."""
    spread: Annotated[kinds.Share, Field(ge=0, le=1)] = Field(
        default=0.01, json_schema_extra={"default": "1%"}
    )
    """A measurement ends early once the standard error of the rate is at most this share of the
    rate, like 1%. 0: it never ends early.
    """
    max_gpus: kinds.Positive | None = None
    """Maximum number of GPUs to measure a network on. Default: the GPUs of two nodes, or as many as
    the slowest network needs to keep up with the fastest, if that is more (appendix B.3 of the
    paper).
    """

    @model_validator(mode="after")
    def _check_warm_up(self) -> Profile:
        if self.timed >= self.batches:
            raise ValueError(
                f"timed: {self.timed} should be less than batches: {self.batches}, "
                "because the first batches warm up"
            )
        return self


@section
class Resources:
    """How the ranks of the launch are used."""

    engine: kinds.EngineName = Field(
        default="keras",
        description=(
            "Library that trains the networks, or the import path of your own engine. "
            + " ".join(f"{engine.name}: {engine.help}." for engine in ENGINES.values())
        ),
    )
    time_scale: kinds.AboveZero = 1.0
    """Only for the engine emulated: how many seconds one second of training takes."""
    preprocessors: Annotated[int, Field(ge=0), kinds.NO_FLAG] | Literal["auto"] = "auto"
    """Number of ranks that prepare samples. auto: all ranks that do not train on a GPU; without
    GPUs, one in eight on each node.
    """
    gpus_per_node: kinds.Positive | Literal["auto"] = "auto"
    """Number of GPUs per node that train networks; without GPUs, number of ranks per node. auto:
    all GPUs; without GPUs, all ranks that do not prepare samples.
    """
    device: Literal["auto", "cuda", "rocm", "xpu", "cpu"] = "auto"
    """Where networks train: on GPUs of NVIDIA (cuda), AMD (rocm) or Intel (xpu), or on the cores.
    auto: on the GPUs that the launch shows to its ranks, otherwise on the cores.
    """
    networks_per_gpu: Annotated[int, Field(ge=1, le=MAX_SLOTS), kinds.NO_FLAG] | Literal["auto"] = 1
    """Maximum number of networks that share a GPU while there are more networks than GPUs; each
    needs a rank. auto: as many as there are ranks for, as long as measurements show that sharing is
    faster. Without GPUs, networks share CPU cores in the same way.
    """
    fuse: Annotated[
        Annotated[int, Field(ge=1, le=MAX_SLOTS), kinds.NO_FLAG] | Literal["auto", "off"],
        kinds.NO_MEANS_OFF,
    ] = "off"
    """Only for torch: maximum number of networks of equal architecture, batch and data that a rank
    trains as one program, with one copy of each batch. Each has its own learning rate, history,
    checkpoints and end. auto: up to 16, as long as training shows that it is faster. Networks that
    cannot be fused share GPUs by `networks_per_gpu`.
    """
    exchange: Literal["auto", "horovod", "mpi", "library"] = "auto"
    """How the GPUs of a group exchange gradients. horovod: during the backward pass. mpi: one MPI
    reduction after each step. library: PyTorch's process groups (NCCL on GPUs, xccl on Intel's,
    else gloo), only for the engine torch. auto: Horovod for keras if it is installed, library for
    torch on GPUs, otherwise MPI.
    """


@section
class Checkpoint:
    """Checkpoints: what is kept on disk and how often it is saved."""

    every: Annotated[kinds.Duration, Field(gt=0)] | None = None
    """How often to save a network within an epoch, like 10min. It is always saved at the end of an
    epoch.
    """
    keep: Literal["best+last", "last"] = "best+last"
    """Which checkpoints of each network to keep. best+last: the best epoch, which is exported, and
    the last one, from which training resumes. last: only the last one, which is also exported. If
    there is room, the second to last checkpoint is kept, too, in case the last one is damaged.
    """
    quota: Annotated[kinds.Size, Field(gt=0)] | None = None
    """Disk space for all checkpoints and exports of the run, like 20GB. Default: unlimited."""


@section
class Document:
    """A spec: networks, data, and how to train."""

    models: tuple[ModelEntry, ...]
    """The networks to train: a list of entries, each for one network or many. It may be empty if
    the run stays open for more (`keep_open`).
    """
    name: str = "ensemble"
    """Name of the run: letters, digits, dots, dashes and underscores."""
    seed: Annotated[int, Field(ge=0, lt=2**64), kinds.NO_FLAG] = 0
    """Seed of all random choices: drawn networks, initial weights, the order of samples and
    augmentation.
    """
    data: Data = Data()
    train: Train = Train()
    schedule: Schedule = Schedule()
    prune: PruneOrRule = Prune()
    profile: Profile = Profile()
    resources: Resources = Resources()
    checkpoint: Checkpoint = Checkpoint()
    walltime: Annotated[kinds.Duration, Field(gt=0)] | None = None
    """Time limit of a launch, like 2h. Shortly before it, the run saves everything and stops with
    exit status 75; the same command resumes it. If the limit of the batch system is shorter, that
    limit applies.
    """
    keep_open: Annotated[kinds.Duration, Field(gt=0)] | None = None
    """How long the run waits for more networks once all have finished, like 10min. Default: it
    ends.
    """
    retries: Annotated[int, Field(ge=0, le=100), kinds.NO_FLAG] = 2
    """Number of times that a network is retried after a transient error, such as a file server that
    does not answer.
    """
    max_deaths: Annotated[int, Field(ge=1, le=100), kinds.NO_FLAG] = 2
    """Number of times that ranks may die, or become unresponsive, while training a network, over
    all launches and without an epoch in between, until the network counts as failed. A network that
    may have killed ranks is trained last.
    """
    trackers: tuple[kinds.TrackItem, ...] = ()
    """Trackers to write at the end of each epoch, in a separate process: a list of mlflow, wandb
    and optuna, or of {mlflow: PATH}. Default path: the subfolder track of the run. A failing
    tracker is reported once; fleet export can write the same data later.
    """
    output: str = ""
    """Folder of the run: results, checkpoints, logs and the report. Default: runs/NAME."""
    defaults: Annotated[
        Literal["0.2", "0.3"],
        BeforeValidator(_as_text),
        WithJsonSchema({"enum": ["0.2", "0.3", 0.2, 0.3]}),
    ] = "0.3"
    """Version of FLEET whose defaults apply. In 0.2 the default learning rate of every optimizer
    was 0.01. A run that began with 0.2 keeps that default when it resumes.
    """

    def _overrides(self, entry: ModelEntry) -> EntryData:
        """Return the data settings in which an entry differs."""
        data = entry.data or EntryData()
        return EntryData(
            None if data.transforms == self.data.transforms else data.transforms,
            None if data.target == self.data.target else data.target,
        )

    def pipeline_of(self, entry: ModelEntry) -> str:
        """Return the key of an entry's input pipeline; empty for the settings of the document."""
        return self._overrides(entry).key

    @cached_property
    def data_by_pipeline(self) -> dict[str, Data]:
        """The data settings of each input pipeline, the document's first.

        They cover all entries, even if only some are trained, so that the shared transforms and the
        splits do not change.
        """
        overrides = sorted(map(self._overrides, self.models), key=lambda data: bool(data.key))
        return {data.key: data.put_into(self.data) for data in overrides or [EntryData()]}


@section
class NetworkSpec:
    """One network with all its settings."""

    name: str
    architecture: Architecture
    train: Train
    seed: int
    min_gpus: int = 1
    max_gpus: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)  # the drawn values
    entry: int = 0  # index in `models`
    fold: int | None = None  # the fold that validates it
    repeat: int | None = None  # which repeat of its configuration it is
    pipeline: str = ""  # the key of its input pipeline; empty for the document's data settings
    number: int | None = None  # of a trial within its entry
    parent: str = ""  # the network from whose weights it starts, if any
    parent_epoch: int = 0  # the epoch of these weights

    @property
    def stem(self) -> str:
        """The name without the fold or the repeat."""
        if self.repeat is not None:
            return self.name.removesuffix(f"-repeat{self.repeat}")
        if self.fold is not None:
            return self.name.removesuffix(f"-fold{self.fold}")
        return self.name

    @property
    def code_paths(self) -> tuple[str, ...]:
        """The import paths of the user's functions that define it; a family's name is one, too."""
        functions = (self.train.step, self.train.optimizers)
        return (self.architecture.target, *(path for path in functions if path is not None))

    def global_batch(self, gpus: int) -> int:
        """Return the samples per training step on ``gpus`` GPUs; the fewest if elastic."""
        return self.train.batch.bounds[0] * self.learning_rate_scale(gpus)

    def largest_batch(self, gpus: int) -> int:
        """Return the samples per training step on ``gpus`` GPUs; the most if elastic."""
        if self.train.batch.is_elastic:
            return self.train.batch.bounds[1]
        return self.global_batch(gpus)

    def learning_rate_scale(self, gpus: int) -> int:
        """Return the factor of the learning rate by the linear scaling rule."""
        if self.train.batch.when_scaled == "per_gpu":
            return gpus
        return 1


@section
class Spec:
    """A validated spec with its networks.

    Attributes:
        document: the spec as it was written.
        networks: all networks, except the trials of searches.
        origin: the place where the spec was read.
        existing: name of a network that the folder of the run had when the spec was read -> its
            drawn values.
        notices: one line for each old key that the spec uses.
    """

    document: Document
    networks: tuple[NetworkSpec, ...]
    origin: Origin = field(default=Origin(), compare=False, repr=False)
    existing: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    notices: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def _repr_html_(self) -> str:
        """Return a table of the entries for the cell of a notebook."""
        counts = Counter(network.entry for network in self.networks)
        rows = []
        for number, entry in enumerate(self.document.models):
            networks = str(counts[number])
            if entry.search is not None:
                networks = f"up to {entry.search.limit} by {entry.search.sampler}"
            varied = ", ".join(entry.space or entry.grid or {})
            rows.append([entry.stem, entry.family or entry.build, networks, varied])
        caption = f"{self.document.name}: data {self.document.data.source}, output {self.output}"
        return notebook_table(["entry", "model", "networks", "varied"], rows, caption)

    def place_of(self, index: int, path: tuple, wrong: str = "") -> tuple:
        """Return the key path that set a setting of an entry's networks.

        This is in the space or grid of the entry, in the entry, or at the top of the document; for
        a default value it is the entry.

        Args:
            index: index of the entry in ``models``.
            path: the key path of the setting in the entry, such as ``("train", "loss")``.
            wrong: what is wrong there; it may name a drawn setting below this one.
        """
        entry = self.document.models[index]
        own_path = ("models", index, *path)
        setting = key_path(path).removeprefix("args.")
        drawn = entry.space or entry.grid or {}
        causes = [name for name in drawn if is_below(setting, name)]
        if own_path not in self.origin.lines:
            words = re.findall(r"\w+", wrong)
            causes += [
                name
                for name in drawn
                if is_below(name, setting) and name.rpartition(".")[2] in words
            ]
        if causes:
            return ("models", index, "space" if entry.grid is None else "grid", causes[0])
        is_own = holds(plain(entry), path)
        if not is_own and (path in self.origin.lines or holds(plain(self.document), path)):
            return path
        return own_path

    @property
    def data_by_pipeline(self) -> dict[str, Data]:  # noqa: D102
        return self.document.data_by_pipeline

    @property
    def searches(self) -> dict[int, ModelEntry]:
        """The entries with a search, by their index in ``models``."""
        return {
            index: entry
            for index, entry in enumerate(self.document.models)
            if entry.search is not None
        }

    @property
    def max_networks(self) -> float:
        """The largest number of networks that can be active at the same time."""
        proposed = sum(
            entry.networks_per_trial
            * min(
                entry.search.limit,
                size_of(entry.space or {}),
                math.inf if entry.search.max_concurrent == "auto" else entry.search.max_concurrent,
            )
            for entry in self.searches.values()
            if entry.search is not None
        )
        return proposed + sum(network.number is None for network in self.networks)

    @property
    def data(self) -> Data:  # noqa: D102 - a shortcut, like the following ones
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
        """The scheduling policy."""
        return find_policy(self.schedule.policy)

    @property
    def engine(self) -> EngineInfo:
        """The description of the engine."""
        return find_engine(self.resources.engine)

    @property
    def uses_gpus(self) -> bool:
        """True if each trainer uses a GPU, where there are GPUs."""
        return self.engine.uses_gpus and self.resources.device != "cpu"

    @cached_property
    def options(self) -> Options:
        """The options of the policy."""
        settings = self.schedule
        return Options(
            settings.round_end_share,
            settings.pace_tolerance,
            not settings.literal,
            self.seed,
        )

    @property
    def output(self) -> Path:
        """The folder of the run."""
        return Path(self.document.output or f"runs/{self.document.name}")

    @cached_property
    def by_name(self) -> dict[str, NetworkSpec]:
        """The networks by name."""
        return {network.name: network for network in self.networks}


def with_output(spec: Spec, output: str | Path) -> Spec:
    """Return the spec with another run folder."""
    return replace(spec, document=replace(spec.document, output=str(output)))


def with_cache(spec: Spec, cache: str) -> Spec:
    """Return the spec with a chosen ``data.cache``."""
    data = replace(spec.data, cache=cache)  # type: ignore[arg-type] # pydantic checks it
    return replace(spec, document=replace(spec.document, data=data))
