"""The keys of a spec file: frozen dataclasses, from the document down to one network.

What a key means is said once, in its ``Field(description=...)``: the JSON Schema and ``docs/spec.md`` come from there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from fleet.plugins import find_policy
from fleet.spec import fields as kinds
from fleet.spec.data import Data, EntryData, pipeline_key
from fleet.spec.engines import ENGINES, EngineInfo, find_engine
from fleet.spec.model import Architecture
from fleet.spec.origin import Origin, is_below
from fleet.spec.search import Prune, Search
from fleet.spec.space import Grid, Space, size_of
from fleet.spec.train import Train
from fleet.units import parse_delta
from scheduler.base import MAX_SLOTS, Options
from scheduler.ensemble.policies import POLICIES, SETTINGS, Policy, default_policy

MOST_NETWORKS = 10_000  # of one entry; more are a slip of the keyboard, and would fill the memory


def _as_text(version: object) -> object:
    """A version that YAML reads as a number."""
    if isinstance(version, float):
        return str(version)
    return version


def _read_by(setting: str) -> str:
    """Name the policies that read an option."""
    return f"Only for {' and '.join(policy.name for policy in POLICIES.values() if setting in policy.reads)}."


@dataclass(frozen=True, config=kinds.STRICT)
class ModelEntry:
    """An entry of `models`, which stands for one network or for many."""

    family: kinds.Family | None = Field(
        default=None,
        description=(
            "A family of networks that FLEET builds, or the name of a network of keras.applications."
        ),
    )
    build: kinds.ImportPath | None = Field(
        default=None,
        description=(
            "Instead of a family: the import path of your own function, which returns a keras.Model, or for the engine "
            "torch a torch.nn.Module. Its module may stand beside the spec."
        ),
    )
    name: str | None = Field(
        default=None,
        description=(
            "Name of the network in all results; without it, that of the family or function. If the entry stands for "
            "several networks (`space`, `grid`), they are numbered: NAME-0, NAME-1, ..., however many there are."
        ),
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Arguments of the family or function, by name: the same for all networks of the entry."
        ),
    )
    count: Annotated[int, Field(ge=1, le=MOST_NETWORKS), kinds.NO_FLAG] | None = Field(
        default=None, description=("Number of networks to draw at random from `space`.")
    )
    space: Space | None = Field(
        default=None,
        description=(
            "What differs between networks that are drawn at random, or asked for by `search`: for an argument, or a "
            "setting like train.optimizer.learning_rate, a list of values or a range {low, high, log, integer}. Of two keys, "
            "one below the other, the deeper holds; no choice of the other may have a value for it."
        ),
    )
    search: Search | None = Field(
        default=None,
        description=(
            "Instead of `count`: who chooses from `space` while the run goes on, and how many networks."
        ),
    )
    grid: Grid | None = Field(
        default=None,
        description=(
            "What differs between networks that cover all combinations: for an argument, or a setting like "
            "train.batch.size, a list of values."
        ),
    )
    gpus: kinds.Positive | tuple[kinds.Positive, kinds.Positive] | None = Field(
        default=None,
        description=(
            "Number of GPUs that train the network, or [least, most]. Without it, there may be as many as make it faster."
        ),
    )
    train: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Training settings of this entry. What they do not name is taken from `train` at the top."
        ),
    )
    data: EntryData | None = Field(
        default=None,
        description=(
            "Other `transforms`, or another `target`, for this entry. What is not named is taken from `data` at the top."
        ),
    )

    @property
    def stem(self) -> str:
        """The name of its network, or what the names of its networks begin with."""
        return self.name or self.target.split(":")[-1].lower()

    @property
    def target(self) -> str:
        """What is built: a family, a name of keras.applications, or an import path."""
        return self.family or str(self.build)

    @property
    def train_overrides(self) -> dict[str, Any]:
        """Its training settings: the first objective of its search is what its networks monitor."""
        if self.search is None or not self.search.objectives:
            return self.train
        first = self.search.objectives[0]
        own = self.train.get("stopping") or {}
        if first.sense is None:
            sense = {}
        else:
            sense = {"direction": "max" if first.sense == "maximize" else "min"}
        own = {**sense, **own} if first.mode is None else {**own, **sense}
        return {**self.train, "stopping": {**own, "monitor": first.value}}

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ModelEntry:
        if (self.family is None) == (self.build is None):
            raise ValueError(
                "needs exactly one of `family:` (resnet, densenet, cnn, a keras.applications name) "
                "and `build: module:function`"
            )
        if self.space is not None and self.grid is not None:
            raise ValueError(
                "needs `space:` (random draws) or `grid:` (the full product), not both"
            )
        if self.count is not None and self.search is not None:
            raise ValueError(
                "needs `count:` (random draws) or `search:` (networks that are asked for), not both"
            )
        if self.space is None and self.count is not None:
            raise ValueError("`count:` and `space:` go together: count random draws from the space")
        if self.space is None and self.search is not None:
            raise ValueError(
                "`search:` and `space:` go together: networks are asked for from the space"
            )
        if self.space is not None and self.count is None and self.search is None:
            raise ValueError("`space:` and `count:` go together, or `space:` and `search:`")
        if isinstance(self.gpus, tuple) and self.gpus[0] > self.gpus[1]:
            raise ValueError(f"gpus: {list(self.gpus)} should be [least, most]")
        return self


# Options of policies, by the keys of a spec that set them.
OPTION_OF = {"pace_tolerance": "delta", "round_end_share": "alpha", "literal": "peak_limited"}


def policy_of_keys(keys: Collection[str]) -> Policy:
    """Return the policy of a schedule that names none."""
    return default_policy([option for key, option in OPTION_OF.items() if key in keys])


@dataclass(frozen=True, config=kinds.STRICT)
class Schedule:
    """Which networks train when, and on how many GPUs."""

    policy: kinds.PolicyName = Field(
        default=default_policy().name,
        description=(
            "Policy that decides which networks train when, or the import path of your own. Without it, a spec with a key "
            f"that only {default_policy(SETTINGS).name} reads means {default_policy(SETTINGS).name}. "
            + " ".join(f"{policy.name}: {policy.help}." for policy in POLICIES.values())
        ),
    )
    pace_tolerance: kinds.DeltaText = Field(
        default="15%",
        description=(
            "How close to the fastest the networks of a flotilla train: within a share of its rate, like 15%, or within a "
            "number of samples per second, like 20/s. " + _read_by("delta")
        ),
    )
    round_end_share: Annotated[kinds.Share, Field(gt=0, le=1)] = Field(
        default=0.8,
        json_schema_extra=kinds.written_as("80%"),
        description=(
            "A round ends when fewer than this share of the GPUs train, like 80%. "
            + _read_by("alpha")
        ),
    )
    literal: bool = Field(
        default=False,
        description=(
            "Follow the paper to the letter: spare GPUs are given away as in its Algorithm 2, and rates beyond the "
            "measured ones are estimated by its Equation 5 from twice the GPUs of a node, as with --literal of fleet "
            "plan. Without it, a network gets only GPUs that make it faster. "
            + _read_by("peak_limited")
        ),
    )
    rates: str | None = Field(
        default=None,
        description=(
            "File with the training rates of the networks, such as the profile.json of an earlier run. Without it, "
            "`profile` says how rates are found out."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _policy_of_its_settings(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and "policy" not in content:
            return {**content, "policy": policy_of_keys(content).name}
        return content


@dataclass(frozen=True, config=kinds.STRICT)
class Profile:
    """How the run finds out how fast networks train."""

    when: Literal["online", "offline"] = Field(
        default="online",
        description=(
            "online: training begins at once, by estimates that its own steps correct; no other key is read. offline: every "
            "network is measured on made-up samples before any is trained (appendix B.3 of the paper)."
        ),
    )
    batches: Annotated[int, Field(ge=2), kinds.NO_FLAG] = Field(
        default=48, description=("Number of training steps of one measurement, at most.")
    )
    timed: kinds.Positive = Field(
        default=20,
        description=(
            "How many of these steps are timed: the last ones. Those before them warm up."
        ),
    )
    seconds: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=30.0,
        json_schema_extra=kinds.written_as("30s"),
        description=(
            "How long the steps of one measurement may take, like 30s. The first half of it may be spent on warming up."
        ),
    )
    spread: Annotated[kinds.Share, Field(ge=0, le=1)] = Field(
        default=0.01,
        json_schema_extra=kinds.written_as("1%"),
        description=(
            "A measurement ends before its last step once the standard error of its rate is at most this share of it, like "
            "1%. 0 takes all steps."
        ),
    )
    max_gpus: kinds.Positive | None = Field(
        default=None,
        description=(
            "Largest number of GPUs on which a network is measured. Without it, two nodes, or as many GPUs as the slowest "
            "network needs to keep up with the fastest if that is more (appendix B.3 of the paper)."
        ),
    )

    @model_validator(mode="after")
    def _timed_is_a_part(self) -> Profile:
        if self.timed >= self.batches:
            raise ValueError(
                f"timed: {self.timed} should be less than batches: {self.batches}, "
                "because the first batches warm up"
            )
        return self


@dataclass(frozen=True, config=kinds.STRICT)
class Resources:
    """How the ranks of the launch are used."""

    engine: kinds.EngineName = Field(
        default="keras",
        description=(
            "What trains the networks, or the import path of an engine of your own. "
            + " ".join(f"{engine.name}: {engine.help}." for engine in ENGINES.values())
        ),
    )
    time_scale: kinds.AboveZero = Field(
        default=1.0,
        description=("Only for the engine emulated: how many seconds a second of training takes."),
    )
    preprocessors: Annotated[int, Field(ge=0), kinds.NO_FLAG] | Literal["auto"] = Field(
        default="auto",
        description=(
            "Number of ranks that prepare samples. auto: all ranks that are not needed for GPUs; without GPUs, one in "
            "eight on each node."
        ),
    )
    gpus_per_node: kinds.Positive | Literal["auto"] = Field(
        default="auto",
        description=(
            "Number of GPUs on each node that train networks; without GPUs, of ranks in their place. auto: all GPUs; "
            "without GPUs, all ranks that do not prepare samples."
        ),
    )
    networks_per_gpu: Annotated[int, Field(ge=1, le=MAX_SLOTS), kinds.NO_FLAG] | Literal["auto"] = (
        Field(
            default=1,
            description=(
                "How many networks may share a GPU while there are more networks than GPUs; each takes a rank. A number: that "
                "many, as far as ranks were started. auto: as many as ranks were started, and as training shows to pay. "
                "Without GPUs, a core of the node takes the place of a GPU, and further ranks share the cores."
            ),
        )
    )
    exchange: Literal["auto", "horovod", "mpi", "library"] = Field(
        default="auto",
        description=(
            "How the GPUs of a group exchange gradients. horovod: while the backward pass runs. mpi: by one MPI reduction "
            "after each step. library: by PyTorch's own process groups, NCCL on GPUs and gloo without, only for the engine "
            "torch. auto: keras takes Horovod where it is installed, torch library on GPUs, and all else MPI."
        ),
    )


@dataclass(frozen=True, config=kinds.STRICT)
class Checkpoint:
    """What is kept on disk, and how often it is saved."""

    every: Annotated[kinds.Duration, Field(gt=0)] | None = Field(
        default=None,
        description=(
            "How often a network is saved within an epoch, like 10min. At the end of an epoch it is always saved."
        ),
    )
    keep: Literal["best+last", "last"] = Field(
        default="best+last",
        description=(
            "What is kept of each network. best+last: the best epoch, which is exported, and the last one, from which "
            "training goes on. last: only the last, which is then exported. If there is room, the checkpoint before the "
            "last is kept as well, in case the last is damaged."
        ),
    )
    quota: Annotated[kinds.Size, Field(gt=0)] | None = Field(
        default=None,
        description=(
            "How much disk space all checkpoints and exports of the run may take, like 20GB. Without it, there is no "
            "limit."
        ),
    )


@dataclass(frozen=True, config=kinds.STRICT)
class Document:
    """A spec: the networks of an ensemble, the data they learn from, and how they are trained."""

    models: tuple[ModelEntry, ...] = Field(
        description=(
            "The networks to train: a list of entries, each of which stands for one network or for many. It may be empty "
            "in a run that stays open for more (`keep_open`)."
        )
    )
    name: str = Field(
        default="ensemble",
        description=("Name of the run: letters, digits, dots, dashes and underscores."),
    )
    seed: Annotated[int, Field(ge=0, lt=2**64), kinds.NO_FLAG] = Field(
        default=0,
        description=(
            "Seed of everything that is random: which networks are drawn, their first weights, the order of the samples "
            "and how they are augmented."
        ),
    )
    data: Data = Data()
    train: Train = Train()
    schedule: Schedule = Schedule()
    prune: Prune = Prune()
    profile: Profile = Profile()
    resources: Resources = Resources()
    checkpoint: Checkpoint = Checkpoint()
    walltime: Annotated[kinds.Duration, Field(gt=0)] | None = Field(
        default=None,
        description=(
            "How long the run may take, like 2h. Shortly before, it saves everything and stops with exit status 75; the "
            "same command goes on. If the batch system ends the job earlier, its limit counts."
        ),
    )
    keep_open: Annotated[kinds.Duration, Field(gt=0)] | None = Field(
        default=None,
        description=(
            "How long the run waits for further networks once nothing is left to train, like 10min. Without it, the run "
            "ends then."
        ),
    )
    retries: Annotated[int, Field(ge=0, le=100), kinds.NO_FLAG] = Field(
        default=2,
        description=(
            "How often a network is tried again if it failed for a reason that may pass, such as a file server that does "
            "not answer."
        ),
    )
    max_deaths: Annotated[int, Field(ge=1, le=100), kinds.NO_FLAG] = Field(
        default=2,
        description=(
            "How often a rank may die, or not come back, while it trains a network, over all launches and without an "
            "epoch in between, until the network counts as failed. Until then it is trained last."
        ),
    )
    trackers: tuple[kinds.TrackItem, ...] = Field(
        default=(),
        description=(
            "Trackers that are written at the end of each epoch, by a process of their own: a list of mlflow, wandb and "
            "optuna, or of {mlflow: PATH}. Without a path it is below track in the folder of the run. A tracker that fails "
            "is warned of once; fleet export writes the same later."
        ),
    )
    output: str = Field(
        default="",
        description=(
            "Folder of the run, for results, checkpoints, logs and the report. Without it, runs/NAME with the run's name."
        ),
    )
    defaults: Annotated[Literal["0.2", "0.3"], BeforeValidator(_as_text)] = Field(
        default="0.3",
        description=(
            "The version of FLEET whose defaults count. In 0.2 a learning rate that was not given was 0.01 for every "
            "optimizer. A run that began with 0.2 keeps that when it is resumed."
        ),
    )

    def data_overrides(self, entry: ModelEntry) -> EntryData | None:
        """The data settings of an entry that are not those of the document; None where there are none."""
        if entry.data is None:
            return None
        transforms = entry.data.transforms
        target = entry.data.target
        own = EntryData(
            None if transforms == self.data.transforms else transforms,
            None if target == self.data.target else target,
        )
        if own == EntryData():
            return None
        return own

    def pipeline_of(self, entry: ModelEntry) -> str:
        """The key of what the networks of an entry are fed with; see :attr:`NetworkSpec.feed`."""
        return pipeline_key(self.data_overrides(entry))

    @cached_property
    def data_by_pipeline(self) -> dict[str, Data]:
        """The data settings that networks have, by :attr:`NetworkSpec.feed`, those of the document first.

        Those of all entries: what all have in common, and how samples are divided, are the same for a part of them.
        """
        each = sorted(map(self.data_overrides, self.models), key=lambda own: own is not None) or [
            None
        ]
        return {
            pipeline_key(own): self.data if own is None else own.put_into(self.data) for own in each
        }


@dataclass(frozen=True, config=kinds.STRICT)
class NetworkSpec:
    """One network of the ensemble, fully said."""

    name: str
    architecture: Architecture
    train: Train
    seed: int
    min_gpus: int = 1
    max_gpus: int | None = None
    parameters: dict[str, Any] = Field(
        default_factory=dict
    )  # what was drawn, for the results table
    entry: int = 0  # of `models`, from which it comes
    fold: int | None = None  # that it is judged by, and does not train on
    data: EntryData | None = (
        None  # what it is fed with, where that is not what the top of the document says
    )
    number: int | None = None  # within its entry, of a network that was asked for
    parent: str = ""  # from whose weights it starts, if it does
    parent_epoch: int = 0  # after which epoch of that

    @property
    def stem(self) -> str:
        """The name that the networks of all folds have in common."""
        if self.fold is None:
            return self.name
        return self.name.removesuffix(f"-fold{self.fold}")

    @cached_property
    def pipeline(self) -> str:
        """A key: networks with the same one are fed with the same; empty for what the top of the document says."""
        return pipeline_key(self.data)

    def global_batch(self, gpus: int) -> int:
        """Samples in one step on ``gpus`` GPUs; the least, where the policy chooses."""
        return self.train.batch.bounds[0] * self.learning_rate_scale(gpus)

    def largest_batch(self, gpus: int) -> int:
        """The same; the most, where the policy chooses."""
        if self.train.batch.is_elastic:
            return self.train.batch.bounds[1]
        return self.global_batch(gpus)

    def learning_rate_scale(self, gpus: int) -> int:
        """The linear scaling rule: the factor of the learning rate that goes with the batch."""
        if self.train.batch.when_scaled == "per_gpu":
            return gpus
        return 1


@dataclass(frozen=True, config=kinds.STRICT)
class Spec:
    """A validated spec and the networks that it stands for.

    Attributes:
        kept: the networks that the folder of the run had when the spec was read -> what was drawn for each.
        notices: one line for each old key that the spec uses.
    """

    document: Document
    networks: tuple[NetworkSpec, ...]
    origin: Origin = field(default=Origin(), compare=False, repr=False)
    existing: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    notices: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def place_of(self, network: NetworkSpec, *setting: str) -> tuple:
        """The key path where a setting of a network was chosen, such as ``train``, ``batch``, ``size``.

        That is the space or the grid from which it was drawn, the network's entry, or the top of the document; for a
        default it is the entry.
        """
        entry, model = ("models", network.entry), self.document.models[network.entry]
        dotted = ".".join(setting)
        for name in network.parameters:
            if is_below(dotted, name):
                return (*entry, "space" if model.grid is None else "grid", name)
        is_own = holds(model.train, setting[1:])
        if is_own or setting not in self.origin.lines:
            return (*entry, *setting)
        return setting

    @property
    def data_by_pipeline(self) -> dict[str, Data]:  # noqa: D102
        return self.document.data_by_pipeline

    @property
    def searches(self) -> dict[int, ModelEntry]:
        """The entries whose networks are asked for while the run goes on, by their places in ``models``."""
        return {
            index: entry
            for index, entry in enumerate(self.document.models)
            if entry.search is not None
        }

    @property
    def max_networks(self) -> float:
        """How many networks there may be at once: those that are written down, and those that are asked for."""
        asked = sum(
            min(
                entry.search.limit,
                size_of(entry.space or {}),
                math.inf if entry.search.max_concurrent == "auto" else entry.search.max_concurrent,
            )
            for entry in self.searches.values()
            if entry.search is not None
        )
        return asked + sum(network.number is None for network in self.networks)

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

    @cached_property
    def options(self) -> Options:
        """What the policy is told."""
        settings = self.schedule
        return Options(
            settings.round_end_share,
            parse_delta(settings.pace_tolerance),
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


def holds(settings: Any, path: tuple[str, ...]) -> bool:
    """Whether nested settings have something under a path."""
    for step in path:
        if not isinstance(settings, Mapping) or step not in settings:
            return False
        settings = settings[step]
    return True


def with_output(spec: Spec, output: str | Path) -> Spec:
    """The same spec, with another folder for its run."""
    return replace(spec, document=replace(spec.document, output=str(output)))


def with_cache(spec: Spec, cache: str) -> Spec:
    """The same spec, with what was chosen for ``data.cache``."""
    data = replace(spec.data, cache=cache)  # type: ignore[arg-type] # one of those that it may be
    return replace(spec, document=replace(spec.document, data=data))
