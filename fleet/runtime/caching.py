"""The choice of ``data.cache: auto`` for given data and ranks (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.domain.events import CacheChosen
from fleet.runtime.input_pipelines import have_same_target
from fleet.runtime.inputs import Inputs
from fleet.spec import Spec
from fleet.storage.quota import folder_bytes
from fleet.storage.results import known_parameters
from fleet.stream.layout import row_bytes
from fleet.units import format_size, pluralize
from preprocess.chain import count_fixed, split_scale
from preprocess.sample import SampleSpec
from preprocess.transforms.on_device import split_device

_ROOM = 0.75  # share of a window, of free memory and of a free disk that samples may take
_SLOW_S = 1e-3  # random transforms of a sample that take less hold no network back
# To read a decoded sample from a file: each, and its bytes at the speed of a plain disk.
_ROW_S = 1e-4
_BYTES_PER_S = 5e8
_AS_BEFORE = "as in the launch before"
# Shares of the time that preparing samples takes if they are decoded in every epoch: what decoding
# once, before training, may take; and it all, with a file.
_BEFORE = 0.25
_IN_ALL = 0.5


@dataclass(frozen=True)
class HostResources:
    """The resources of a launch for preparing and storing samples.

    Attributes:
        preprocessors: ranks that prepare samples for all; 0 where each trainer prepares its own.
        trainers: on the node that has most.
        is_crowded: whether ranks share cores.
        shared_free: bytes of shared memory that are free on the node that has least.
        disk_free: bytes that are free where the run's folder is.
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
        resources: of the launch.
        earlier: what a launch of this run has chosen before; it holds as long as it is possible.
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
            "networks are fed with different samples, which each trainer prepares for itself",
        )
    if (
        requested == "memory"
        and not resources.preprocessors
        and (lacking := _impossible_in_memory(spec, opened, resources, 1.0))
    ):
        return choice("none", lacking)  # no rank keeps samples for others, so it only takes longer
    if requested != "auto":
        return choice(requested, "as the spec says")
    if before == "file" and not _impossible_in_file(spec, opened, resources):
        return choice("file", _AS_BEFORE)
    if before == "memory":  # a file may lack samples that could not be read, which memory does not
        lacking = _impossible_in_memory(spec, opened, resources, 1.0)
        if lacking:
            return choice("none", lacking)
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
            f"{in_memory}; in a file they take {format_size(sizes['file'])}, and "
            f"{_describe_decoding(opened)} would be spent in every epoch",
        )
    return choice("none", in_memory if in_file == in_memory else f"{in_memory}; {in_file}")


def memory_bytes(opened: Inputs, resources: HostResources) -> int:
    """Return the bytes of all stored training samples per node; 0 if they cannot be stored."""
    copies = 1 if resources.preprocessors else resources.trainers
    return copies * len(opened.data.train) * _kept_row(opened, "train")


def file_bytes(opened: Inputs) -> int:
    """Return the bytes of a file with the samples of all splits; 0 if there can be none."""
    rows = {
        name: (len(source), _kept_row(opened, name))
        for name, source in opened.data.splits().items()
    }
    if all(size for _, size in rows.values()):
        return sum(count * size for count, size in rows.values())
    return 0


def _kept_row(opened: Inputs, part: str) -> int:
    look = opened.probes[part]
    if look.stored is None:
        return 0
    stored = look.with_stored()
    return row_bytes(look.stored, stored.stored_target.wire)


def _count_samples(opened: Inputs) -> str:
    return pluralize(len(opened.data.train), "sample")


def _describe_decoding(opened: Inputs) -> str:
    return f"{1000 * opened.probes['train'].fixed_s:.2g} ms to decode each"


# ---- in memory ---------------------------------------------------------------------------------


def _impossible_in_memory(
    spec: Spec, opened: Inputs, resources: HostResources, share: float
) -> str:
    """Return why samples cannot stay in memory; empty if they can.

    Args:
        share: of the window, and of the memory that is free, that they may take.
    """
    if spec.data.order == "ring":
        return "order: ring is for data sets larger than the memory"
    unkept = opened.probes["train"].not_stored_reason
    if unkept:
        return f"samples differ: {unkept}"
    needed = memory_bytes(opened, resources) + validation_bytes(opened)
    takes = f"{_count_samples(opened)} take {format_size(needed)} decoded" + (
        ", with those for validation" if validation_bytes(opened) else ""
    )
    if needed > share * spec.data.shared_memory:
        return f"{takes}, too much for a window of {format_size(spec.data.shared_memory)}"
    if needed > share * resources.shared_free:
        return f"{takes}, too much for {format_size(resources.shared_free)} of free memory"
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
        shared_free: bytes of shared memory that are free on the node that has least.
    """
    host_transforms = split_scale(split_device(opened.transforms)[0])[
        0
    ]  # what the device does is not kept
    if opened.pipelines or count_fixed(host_transforms) == len(host_transforms):
        return 0  # each network finishes its own, or nothing is left to do
    row = row_bytes(opened.sample.wire, opened.sample.target.wire) + 1
    room = min(spec.data.shared_memory - used_bytes, shared_free / 2 - used_bytes) / (
        len(opened.data.train) * row
    )
    return max(0, int(min(_most_epochs(spec), room)))


def _costly_in_memory(spec: Spec, opened: Inputs, resources: HostResources) -> str:
    """Return why all networks should share slow random transforms; empty if they need not.

    A network supplies itself then, with one rank. Of preprocessors there may be many; and where
    ranks share cores, what networks do each for itself is done instead of training. What a node has
    room to keep, one does for all.
    """
    look = opened.probes["train"]
    sharers = float(resources.preprocessors)
    if resources.is_crowded and resources.preprocessors:
        used_bytes = memory_bytes(opened, resources) + validation_bytes(opened)
        alone = 1 - count_shared_epochs(spec, opened, used_bytes, resources.shared_free) / max(
            _most_epochs(spec), 1
        )
        sharers = max(sharers, 1 + (resources.trainers - 1) * alone)
    if look.varying_s < _SLOW_S or (sharers - 1) * look.varying_s <= look.fixed_s:
        return ""
    return (
        f"random transforms take {1000 * look.varying_s:.2g} ms a sample, which each network would do for itself "
        "if samples stayed in memory"
    )


# ---- in a file ---------------------------------------------------------------------------------


def _impossible_in_file(spec: Spec, opened: Inputs, resources: HostResources) -> str:
    """Return why samples cannot be decoded into a file; empty if they can."""
    if opened.pipelines and (spec.policy.own_samples or not have_same_target(opened.pipelines)):
        return "networks are fed with different samples"
    if opened.probes["train"].is_raw:
        return "nothing is done to samples that is the same in every epoch"
    for look in opened.probes.values():
        if look.not_stored_reason:
            return f"samples differ: {look.not_stored_reason}"
    needed = file_bytes(opened)
    checkpoints = _checkpoint_bytes(spec, opened.sample)
    quota = spec.checkpoint.quota
    in_file = f"in a file they would take {format_size(needed)}"
    if quota is not None and checkpoints is None:
        return f"{in_file}, and nobody knows what checkpoint.quota leaves of the disk"
    if quota is not None and needed + (checkpoints or 0) > quota:
        return (
            f"{in_file}, too much beside the checkpoints for checkpoint.quota: {format_size(quota)}"
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
    look = opened.probes["train"]
    counts = [len(source) for source in opened.data.splits().values()]
    hands = resources.preprocessors or resources.trainers
    samples = _most_epochs(spec) * len(opened.data.train)
    once_s = sum(counts) * look.fixed_s
    from_file_s = (
        samples / hands * (_ROW_S + _kept_row(opened, "train") / _BYTES_PER_S + look.varying_s)
    )
    always_s = samples / hands * (look.fixed_s + look.varying_s)
    if once_s <= _BEFORE * always_s and once_s + from_file_s <= _IN_ALL * always_s:
        return ""
    return f"{_describe_decoding(opened)} is not so much that a file would pay"


def _most_epochs(spec: Spec) -> int:
    return max(
        (network.train.stopping.max_epochs for network in spec.networks),
        default=spec.document.train.stopping.max_epochs,
    )
