"""The choice of ``data.cache: auto`` for given data and ranks (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.domain.events import CacheChosen
from fleet.runtime.startup.data import Inputs
from fleet.runtime.startup.input_pipelines import have_same_target
from fleet.spec import Spec
from fleet.storage.quota import folder_bytes
from fleet.storage.results import known_parameters
from fleet.stream.layout import row_bytes
from fleet.units import format_size
from launch.errors import pluralize
from preprocess.records import has_random_work
from preprocess.sample import SampleSpec

_ROOM = 0.75  # share of a window, of free memory and of a free disk that samples may take
_SLOW_S = 1e-3  # faster random transforms of a sample do not slow down training
# Time to read a decoded sample from a file: overhead, plus its bytes at the speed of a plain disk.
_ROW_S = 1e-4
_BYTES_PER_S = 5e8
_AS_BEFORE = "as in the previous launch"
# Largest shares of the preparation time without a file: of decoding once, before training; and of
# the total time with a file.
_MAX_DECODING = 0.25
_MAX_TOTAL = 0.5


@dataclass(frozen=True)
class HostResources:
    """The resources of a launch for preparing and storing samples.

    Attributes:
        preprocessors: number of preprocessors; 0 if each trainer prepares its own samples.
        trainers: number of trainers of the node that has most of them.
        is_crowded: whether ranks share cores.
        shared_free: free bytes of shared memory, on the node that has least.
        disk_free: free bytes on the disk of the run's folder.
    """

    preprocessors: int
    trainers: int
    is_crowded: bool = False
    shared_free: float = float("inf")
    disk_free: float = float("inf")


def choose_cache(
    spec: Spec, opened: Inputs, resources: HostResources, earlier: CacheChosen | None = None
) -> CacheChosen:
    """Choose how decoded samples are cached.

    Args:
        resources: the launch's resources.
        earlier: the choice of an earlier launch of this run, which is kept if it is still possible.
    """
    before = None if earlier is None else earlier.cache
    requested = spec.data.cache
    sizes = {"memory": memory_bytes(opened, resources), "file": file_bytes(opened), "none": 0}

    def choice(cache: str, reason: str) -> CacheChosen:
        is_own = cache == "memory" or not resources.preprocessors
        return CacheChosen(
            cache, requested, reason, sizes[cache], "network" if is_own else "stream"
        )

    if opened.pipelines and not resources.preprocessors and "file" not in (requested, before):
        return choice(
            "none",
            "networks train on different samples, which each trainer prepares for itself",
        )
    if requested == "memory" and not resources.preprocessors:
        obstacle = _impossible_in_memory(spec, opened, resources, 1.0)
        if obstacle:
            return choice("none", obstacle)
    if requested != "auto":
        return choice(requested, "as requested by the spec")
    if before == "file" and not _impossible_in_file(spec, opened, resources):
        return choice("file", _AS_BEFORE)
    if before == "memory":  # not a file, which lacks samples that could not be read
        obstacle = _impossible_in_memory(spec, opened, resources, 1.0)
        if obstacle:
            return choice("none", obstacle)
        return choice("memory", _AS_BEFORE)
    if before == "none":
        return choice("none", _AS_BEFORE)
    in_memory = _impossible_in_memory(spec, opened, resources, _ROOM) or (
        _costly_in_memory(spec, opened, resources)
    )
    if not in_memory:
        return choice(
            "memory",
            f"{_count_samples(opened)} take {format_size(sizes['memory'])} of a window of "
            f"{format_size(spec.data.shared_memory)}",
        )
    in_file = _impossible_in_file(spec, opened, resources) or _costly_in_file(
        spec, opened, resources
    )
    if not in_file:
        return choice(
            "file",
            f"{in_memory}; in a file they take {format_size(sizes['file'])}, which saves "
            f"{_describe_decoding(opened)} in every epoch",
        )
    return choice("none", in_memory if in_file == in_memory else f"{in_memory}; {in_file}")


def memory_bytes(opened: Inputs, resources: HostResources) -> int:
    """Return the bytes of all stored training samples per node; 0 if they cannot be stored."""
    copies = 1 if resources.preprocessors else resources.trainers
    return copies * len(opened.data.train) * _stored_row_bytes(opened, "train")


def file_bytes(opened: Inputs) -> int:
    """Return the bytes of a file with the samples of all splits; 0 if it is impossible."""
    rows = {
        name: (len(source), _stored_row_bytes(opened, name))
        for name, source in opened.data.splits().items()
    }
    if all(size for _, size in rows.values()):
        return sum(count * size for count, size in rows.values())
    return 0


def _stored_row_bytes(opened: Inputs, split: str) -> int:
    probe = opened.probes[split]
    if probe.stored is None:
        return 0
    return row_bytes(probe.stored, probe.with_stored().stored_target.wire)


def _count_samples(opened: Inputs) -> str:
    return pluralize(len(opened.data.train), "sample")


def _describe_decoding(opened: Inputs) -> str:
    return f"{1000 * opened.probes['train'].fixed_s:.2g} ms of decoding per sample"


# ---- in memory ---------------------------------------------------------------------------------


def _impossible_in_memory(
    spec: Spec, opened: Inputs, resources: HostResources, share: float
) -> str:
    """Return why samples cannot stay in memory; empty if they can.

    Args:
        share: share of the window, and of free memory, that samples may take.
    """
    if spec.data.order == "ring":
        return "order: ring is for data sets larger than the memory"
    obstacle = opened.probes["train"].not_stored_reason
    if obstacle:
        return f"samples differ: {obstacle}"
    needed = memory_bytes(opened, resources) + validation_bytes(opened)
    validation = " with validation samples" if validation_bytes(opened) else ""
    size = f"{_count_samples(opened)} decoded take {format_size(needed)}{validation}"
    if needed > share * spec.data.shared_memory:
        return f"{size}, too much for a window of {format_size(spec.data.shared_memory)}"
    if needed > share * resources.shared_free:
        return f"{size}, too much for {format_size(resources.shared_free)} of free memory"
    return ""


def validation_bytes(opened: Inputs) -> int:
    """Return the bytes of the validation samples, which always stay in memory."""
    if opened.data.validation is None:
        return 0
    sample: SampleSpec = opened.samples["validation"]
    return len(opened.data.validation) * row_bytes(sample.wire, sample.target.wire)


def count_shared_epochs(spec: Spec, opened: Inputs, used_bytes: int, shared_free: float) -> int:
    """Return how many augmented epochs fit into a node's memory, at most those needed.

    Args:
        used_bytes: bytes that other samples take there.
        shared_free: free bytes of shared memory, on the node that has least.
    """
    if opened.pipelines or not has_random_work(opened.transforms):
        return 0  # each network augments its own samples, or there are no random transforms
    row = row_bytes(opened.sample.wire, opened.sample.target.wire) + 1
    room = min(spec.data.shared_memory - used_bytes, shared_free / 2 - used_bytes) / (
        len(opened.data.train) * row
    )
    return max(0, int(min(_max_epochs(spec), room)))


def _costly_in_memory(spec: Spec, opened: Inputs, resources: HostResources) -> str:
    """Return why all networks should share slow random transforms; empty if they need not.

    With samples in memory, each trainer applies random transforms itself, while there may be many
    preprocessors. If ranks share cores, this work also takes time from training, except for
    augmented epochs that a node has room to share.
    """
    probe = opened.probes["train"]
    sharers = float(resources.preprocessors)
    if resources.is_crowded and resources.preprocessors:
        used_bytes = memory_bytes(opened, resources) + validation_bytes(opened)
        shared_epochs = count_shared_epochs(spec, opened, used_bytes, resources.shared_free)
        unshared = 1 - shared_epochs / max(_max_epochs(spec), 1)
        sharers = max(sharers, 1 + (resources.trainers - 1) * unshared)
    if probe.varying_s < _SLOW_S or (sharers - 1) * probe.varying_s <= probe.fixed_s:
        return ""
    return (
        f"random transforms take {1000 * probe.varying_s:.2g} ms per sample, which each network "
        "would repeat if samples stayed in memory"
    )


# ---- in a file ---------------------------------------------------------------------------------


def _impossible_in_file(spec: Spec, opened: Inputs, resources: HostResources) -> str:
    """Return why samples cannot be decoded into a file; empty if they can."""
    if opened.pipelines and (spec.policy.own_samples or not have_same_target(opened.pipelines)):
        return "networks train on different samples"
    if opened.sample.parts:
        return "samples have several inputs"
    if opened.probes["train"].is_raw:
        return "no transform is the same in every epoch"
    for probe in opened.probes.values():
        if probe.not_stored_reason:
            return f"samples differ: {probe.not_stored_reason}"
    needed = file_bytes(opened)
    checkpoints = _checkpoint_bytes(spec, opened.sample)
    quota = spec.checkpoint.quota
    in_file = f"in a file they would take {format_size(needed)}"
    if quota is not None and checkpoints is None:
        return f"{in_file}, and it is unknown how much of checkpoint.quota the checkpoints take"
    if quota is not None and needed + (checkpoints or 0) > quota:
        return (
            f"{in_file}, too much with the checkpoints for checkpoint.quota: {format_size(quota)}"
        )
    if needed + (checkpoints or 0) > _ROOM * resources.disk_free:
        return f"{in_file}, too much for {format_size(resources.disk_free)} of free disk"
    return ""


def _checkpoint_bytes(spec: Spec, sample: SampleSpec) -> int | None:
    """Return the bytes of all checkpoints; None if networks must be built to know them."""
    if not spec.engine.learns:
        return 0
    total = 0
    for network in spec.networks:
        parameters = known_parameters(network, sample)
        if parameters is None:
            return None
        total += folder_bytes(parameters, network, spec)
    return total


def _costly_in_file(spec: Spec, opened: Inputs, resources: HostResources) -> str:
    """Return why decoding once would not pay off; empty if it would."""
    probe = opened.probes["train"]
    counts = [len(source) for source in opened.data.splits().values()]
    ranks = resources.preprocessors or resources.trainers
    samples = _max_epochs(spec) * len(opened.data.train)
    once_s = sum(counts) * probe.fixed_s
    read_s = _ROW_S + _stored_row_bytes(opened, "train") / _BYTES_PER_S
    from_file_s = samples / ranks * (read_s + probe.varying_s)
    always_s = samples / ranks * (probe.fixed_s + probe.varying_s)
    if once_s <= _MAX_DECODING * always_s and once_s + from_file_s <= _MAX_TOTAL * always_s:
        return ""
    return f"{_describe_decoding(opened)} is too little for a file to pay off"


def _max_epochs(spec: Spec) -> int:
    return max(
        (network.train.stopping.max_epochs for network in spec.networks),
        default=spec.document.train.stopping.max_epochs,
    )
