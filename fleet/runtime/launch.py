"""A launch: its ranks, and what each of them needs for its role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fleet.comm.roles import Roles
from fleet.domain.events import CacheChosen, Event
from fleet.domain.network import Code, EpochRecord
from fleet.runtime.input_pipelines import InputPipeline
from fleet.runtime.inputs import Inputs, count_epoch_samples
from fleet.runtime.known_rates import make_engine_rates
from fleet.runtime.startup import Request
from fleet.spec import Spec
from fleet.storage.checkpoint import CheckpointLookup
from fleet.storage.identity import Machine
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from fleet.stream.compose import Store
from fleet.stream.layout import Layout
from fleet.stream.order import Order, RingOrder, StrictOrder, parse_path
from fleet.units import listed
from preprocess.pipeline import Pipeline
from preprocess.sample import ImageSpec, SampleSpec
from scheduler.base import RateTable


@dataclass(frozen=True)
class Ranks:
    """The ranks of a launch and their resources.

    Attributes:
        node_of: the node of each rank.
        gpus_per_node: as the nodes show them, None without GPUs.
        per_core: how many ranks share a core.
        shared_free: bytes of shared memory that are free on the node that has least.
        cores: of a node, that its ranks may use.
    """

    node_of: Sequence[int]
    gpus_per_node: int | None = None
    per_core: float = 1.0
    shared_free: float = math.inf
    cores: int | None = None


@dataclass(frozen=True)
class Launch:
    """The data that every rank needs for its role.

    Attributes:
        request: what was asked for.
        spec: ``spec.data.cache`` is what was chosen.
        search_extremes: the spec with the networks that stand for those of its searches, instead of
            its own; of none in a replay.
        inputs: what networks learn from; no rank looks at a sample to find out what it is.
        layout: of the stream; None where every trainer prepares its own samples, or finishes kept
            ones.
        folds: the fold of each training sample, (samples,); None where there are no folds.
        cache: how decoded samples are cached, and why.
        rates: where they need not be measured.
        machine: on which it trains.
        codes: import path of a ``build:`` function -> its files.
        changes: what was done to networks before the launch, for the event log.
        checkpoints: by network: what rank 0 has read, and need not read again; for it
            alone.
        fence: this launch's right to write into the run's folder; None where it has one for each
            network, and in a test that needs none.
        replayed: the history to train again, of the one network that there is.
        finished_epochs: of training samples that the trainers of a node share as they go into
            training.
    """

    request: Request
    spec: Spec
    search_extremes: Spec
    paths: RunPaths
    roles: Roles
    inputs: Inputs
    layout: Layout | None
    folds: np.ndarray | None
    cache: CacheChosen
    rates: RateTable | None
    machine: Machine
    codes: Mapping[str, Code]
    changes: tuple[Event, ...] = ()
    checkpoints: Mapping[str, CheckpointLookup] = field(default_factory=dict)
    fence: Fence | None = None
    replayed: tuple[EpochRecord, ...] = ()
    augmented_epochs: int = 0

    @property
    def sample(self) -> SampleSpec:
        """The specification of a training sample."""
        return self.inputs.sample

    @property
    def spec_folder(self) -> Path:
        """The folder of the spec."""
        return Path(self.request.spec).absolute().parent

    @property
    def describe_unlisted(self) -> str:
        """A note on networks in the run's folder that the spec lacks; empty if none."""
        if self.request.fresh or self.replayed:
            return ""
        spec_stems = {network.stem for network in self.spec.networks}
        unlisted = sorted(name for name in self.spec.existing if name not in spec_stems)
        if not unlisted:
            return ""
        return (
            f"{self.paths.root} also holds {listed(unlisted, 5)}, which this spec lacks: they stay there, and are left "
            "out of the tables; for a run of its own, give another `output` or `name`"
        )

    @property
    def engine_rates(self) -> RateTable | None:
        """The rates by which an engine trains that needs some."""
        file = self.spec.schedule.rates
        if self.rates is None or file is None:
            return self.rates
        return make_engine_rates(file, self.rates)

    @property
    def epoch_samples(self) -> int:
        """Samples of a network's epoch; with folds, those of the smallest."""
        return count_epoch_samples(self.inputs.data, self.folds)

    @property
    def store(self) -> Store:
        """The store from which trainers take samples."""
        if self.roles.shared:
            if self.kept_image is None:
                return "window"
            return "node"
        if self.kept_image is None:
            return "files"
        return "own"

    @property
    def stream(self) -> InputPipeline:
        """The input pipeline that is shared by all networks."""
        same = dict.fromkeys(self.inputs.data.splits(), self.sample)
        return InputPipeline(self.inputs.data, self.inputs.transforms, same, 0)

    @property
    def pipelines(self) -> Mapping[str, InputPipeline]:
        """Input pipelines by key; a single one has an empty key."""
        return self.inputs.pipelines or {"": self.stream}

    @property
    def kept_image(self) -> ImageSpec | None:
        """A sample in the stored sample set; None if none is kept in memory."""
        if self.spec.data.cache == "memory":
            return self.sample.stored
        return None

    @property
    def is_tested(self) -> bool:
        """True if there is test data and this is no replay."""
        return self.inputs.data.test is not None and not self.replayed

    def pipeline(self, part: str) -> Pipeline | None:
        """Return the shared pipeline of a split; None if there is no such split."""
        return self.stream.pipeline(part, self.spec.seed)

    def order(self, training: Pipeline) -> Order:
        """Return the order of the training samples."""
        if self.spec.data.order == "ring":
            size = -(-training.samples // min(self.spec.data.shards, training.samples))
            return RingOrder(
                training,
                size,
                self.spec.seed,
                [parse_path(record.path) for record in self.replayed],
            )
        return StrictOrder(
            training, self.layout.chunk if self.layout is not None else training.samples
        )

    def replayed_epochs(self) -> list[int]:
        """Return the stream epochs to train on again."""
        if self.spec.data.order == "ring":
            return list(range(len(self.replayed)))
        return [record.stream_epoch for record in self.replayed]
