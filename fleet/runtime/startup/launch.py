"""A launch: its ranks, and the data that each of them needs for its role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fleet.comm.roles import Roles
from fleet.domain.events import CacheChosen, Event
from fleet.domain.network import Code, EpochRecord
from fleet.runtime.known_rates import make_engine_rates
from fleet.runtime.startup.data import Inputs, count_epoch_samples
from fleet.runtime.startup.input_pipelines import InputPipeline
from fleet.runtime.startup.request import Request
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
        gpus_per_node: number of visible GPUs of a node; None without GPUs.
        per_core: number of ranks that share a core.
        shared_free: free bytes of shared memory, on the node that has least.
        cores: number of cores of a node that its ranks may use.
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
        request: the options of the command line.
        spec: the resolved spec; ``spec.data.cache`` is the chosen cache.
        search_extremes: the spec with the extreme networks of its searches in place of its own
            networks; without networks in a replay.
        inputs: the opened and probed data, so that no rank has to probe samples.
        layout: the stream's layout; None if every trainer prepares its own samples or augments
            stored ones.
        folds: (samples,) int, the fold of each training sample; None without folds.
        cache: how decoded samples are cached, and why.
        rates: known rates; None if they are measured.
        machine: the hardware on which it trains.
        codes: import path of a ``build:`` function -> its files.
        changes: changes of networks before the launch, for the event log.
        checkpoints: network -> checkpoint that rank 0 has read; on rank 0 only.
        fence: the fence of the run's lease; None if each network has a lease.
        replayed: the history to train again, in a replay of one network.
        augmented_epochs: number of augmented epochs that the trainers of a node share.
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
            f"{self.paths.root} also holds networks that this spec lacks: {listed(unlisted, 5)}; "
            "they are kept, but not listed in tables. For a separate run, use another `output` or "
            "`name`"
        )

    @property
    def engine_rates(self) -> RateTable | None:
        """The rates for an engine that needs them to train."""
        file = self.spec.schedule.rates
        if self.rates is None or file is None:
            return self.rates
        return make_engine_rates(file, self.rates)

    @property
    def epoch_samples(self) -> int:
        """Number of samples of a network's epoch; with folds, the smallest."""
        return count_epoch_samples(self.inputs.data, self.folds)

    @property
    def store(self) -> Store:
        """The store from which trainers read samples."""
        if self.roles.shared:
            if self.stored_image is None:
                return "window"
            return "node"
        if self.stored_image is None:
            return "files"
        return "own"

    @property
    def stream(self) -> InputPipeline:
        """The input pipeline that is shared by all networks."""
        samples = dict.fromkeys(self.inputs.data.splits(), self.sample)
        return InputPipeline(self.inputs.data, self.inputs.transforms, samples, 0)

    @property
    def pipelines(self) -> Mapping[str, InputPipeline]:
        """Input pipelines by key; a single one has an empty key."""
        return self.inputs.pipelines or {"": self.stream}

    @property
    def stored_image(self) -> ImageSpec | None:
        """Shape and dtype of a sample stored in memory; None if none is stored."""
        if self.spec.data.cache == "memory":
            return self.sample.stored
        return None

    @property
    def is_tested(self) -> bool:
        """True if there is test data and this is no replay."""
        return self.inputs.data.test is not None and not self.replayed

    def pipeline(self, split: str) -> Pipeline | None:
        """Return the shared pipeline of a split; None if the data lacks the split."""
        return self.stream.pipeline(split, self.spec.seed)

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
