"""The launch, step 5 of a start: what each rank needs for its role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from fleet.comm.roles import Roles
from fleet.domain.events import CacheChosen
from fleet.domain.network import Code, EpochRecord
from fleet.errors import UserError
from fleet.runtime.known_rates import make_engine_rates
from fleet.runtime.searchers import StartedSearch
from fleet.runtime.startup.data import Inputs
from fleet.runtime.startup.past import Past
from fleet.runtime.startup.request import Request
from fleet.spec import Spec
from fleet.storage.identity import Machine
from fleet.storage.lease import Fence
from fleet.storage.paths import RunPaths
from fleet.stream.layout import Layout
from fleet.stream.order import Order, RingOrder, StrictOrder, parse_path
from fleet.units import listed
from launch.gpus import MAKERS
from preprocess.record_pipeline import AnyPipeline
from preprocess.sample import InputSpec, SampleSpec
from scheduler.base import RateTable

if TYPE_CHECKING:  # imported on rank 0 only
    from fleet.runtime.searchers import StartedSearch
    from fleet.runtime.startup.past import Past


@dataclass(frozen=True)
class Ranks:
    """The ranks of a launch and their resources.

    Attributes:
        node_of: the node of each rank.
        gpus_per_node: number of visible GPUs of a node; None without GPUs.
        gpus_of: the same for one maker's GPUs, by their name in ``resources.device``.
        counts_energy: whether a rank can read a counter of energy.
        per_core: number of ranks that share a core.
        shared_free: free bytes of shared memory, on the node that has least.
        cores: number of cores of a node that its ranks may use.
    """

    node_of: Sequence[int]
    gpus_per_node: int | None = None
    per_core: float = 1.0
    shared_free: float = math.inf
    cores: int | None = None
    gpus_of: Mapping[str, int | None] = field(default_factory=dict)
    counts_energy: bool = False

    def count_gpus(self, device: str) -> int | None:
        """Return the number of GPUs of a node that a run may use; None without GPUs.

        Args:
            device: ``resources.device``.

        Raises:
            UserError: it names GPUs that no rank sees.
        """
        if device == "auto":
            return self.gpus_per_node
        gpus = self.gpus_of.get(device)
        if gpus is None and device in MAKERS:
            raise UserError(
                f"resources.device: {device}: no rank sees a GPU of {MAKERS[device].name}; "
                "run fleet doctor, or leave the key out"
            )
        return gpus


@dataclass(frozen=True)
class Launch:
    """The data that every rank needs for its role.

    Attributes:
        request: the options of the command line.
        spec: the resolved spec; ``spec.data.cache`` is the chosen cache.
        inputs: the opened and probed data, so that no rank has to probe samples.
        layout: the stream's layout; None if every trainer prepares its own samples or augments
            stored ones.
        augmented_epochs: number of augmented epochs that the trainers of a node share.
        rates: known rates; None if they are measured.
        codes: import path of a ``build:`` function, or of the engine -> its files.
        fence: the fence of the run's lease, unless each network has a lease.
        replayed: the history to train again, in a replay of one network.
        counts_energy: whether ranks report the energy of their networks.
    """

    request: Request
    spec: Spec
    paths: RunPaths
    roles: Roles
    inputs: Inputs
    layout: Layout | None
    augmented_epochs: int
    rates: RateTable | None
    codes: Mapping[str, Code]
    fence: Fence
    replayed: tuple[EpochRecord, ...]
    counts_energy: bool

    @property
    def sample(self) -> SampleSpec:
        """The specification of a training sample."""
        return self.inputs.sample

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
    def stored_input(self) -> InputSpec | None:
        """Shape and dtype of a sample stored in memory; None if none is stored."""
        if self.spec.data.cache == "memory":
            return self.sample.stored
        return None

    @property
    def is_tested(self) -> bool:
        """True if there is test data and this is no replay."""
        return self.inputs.data.test is not None and not self.replayed

    def pipeline(self, split: str) -> AnyPipeline | None:
        """Return the shared pipeline of a split; None if the data lacks the split."""
        return self.inputs.pipeline(split, self.spec.seed)

    def order(self, training: AnyPipeline) -> Order:
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


@dataclass(frozen=True)
class PreparedLaunch(Launch):
    """A launch as rank 0 has prepared it.

    Attributes:
        cache: how decoded samples are cached, and why.
        machine: the hardware on which it trains.
        search_extremes: the spec with the extreme networks of its searches in place of its own
            networks; without networks in a replay.
        past: what earlier launches have left.
        searches: entry -> its search.
        warnings: what surely hurts training.
        chance: pipeline key -> accuracy up to which its networks may be no better than chance.
    """

    cache: CacheChosen
    machine: Machine
    search_extremes: Spec
    past: Past
    searches: Mapping[str, StartedSearch]
    warnings: tuple[str, ...]
    chance: Mapping[str, float]

    def for_other_ranks(self) -> Launch:
        """Return what all ranks need."""
        return Launch(**{item.name: getattr(self, item.name) for item in fields(Launch)})
