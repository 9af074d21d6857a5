"""The lengths of inputs that are padded (``data.pad``), measured once at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.spec import Spec
from fleet.spec.data import Pad as PadSettings
from fleet.terminal import progress_bar
from launch.errors import InputError, pluralize
from preprocess.base import LENGTHS, DataSet, Source, rng_for
from preprocess.length_order import order_by_length, padding_share
from preprocess.padding import Pad, measure_lengths, row_lengths
from preprocess.views import Measured

_BATCHES = 3  # largest number of batch sizes in a remark

Lengths = Mapping[str, np.ndarray]  # input -> (samples,) int64


@dataclass(frozen=True)
class PaddedData:
    """Data whose inputs of unequal length have been measured.

    Attributes:
        data: pipeline key -> the data, whose training samples know their lengths.
        pads: how inputs are padded.
        remark: lengths, padding, and how many rows are cut; empty without such inputs.
    """

    data: Mapping[str, DataSet]
    pads: tuple[Pad, ...] = ()
    remark: str = ""


def measure_padded(spec: Spec, data: Mapping[str, DataSet]) -> PaddedData:
    """Measure the inputs that a spec pads; nothing without ``data.pad``.

    Training samples are read once, and those of other splits if the longest row decides, unless
    the source has ``input_lengths``.

    Args:
        data: pipeline key -> its data; all have the same samples.

    Raises:
        InputError: no input has such a name, or it has no length.
    """
    settings = spec.data.pad
    if not settings:
        return PaddedData(data)
    first = next(iter(data.values()))
    lengths = _measure(first.train, tuple(settings))
    longest = {name: int(values.max(initial=1)) for name, values in lengths.items()}
    varying = [
        name
        for name, setting in settings.items()
        if setting.to == "longest" and longest[name] < (setting.max_length or np.inf)
    ]
    for source in first.splits().values():
        if varying and source is not first.train:
            for name, values in _measure(source, varying).items():
                longest[name] = max(longest[name], int(values.max(initial=1)))
    pads = tuple(_pad(name, setting, longest[name]) for name, setting in settings.items())
    data = {key: _with_lengths(data_set, lengths) for key, data_set in data.items()}
    return PaddedData(data, pads, _describe(spec, next(iter(data.values())).train, pads, lengths))


def _pad(name: str, setting: PadSettings, longest: int) -> Pad:
    if isinstance(setting.to, int):
        return Pad(name, setting.to, setting.value)
    to = min(longest, setting.max_length or longest)
    return Pad(name, to, setting.value, varies=True)


def _with_lengths(data: DataSet, lengths: Lengths) -> DataSet:
    train = Measured(data.train, lengths)
    validation = data.validation
    if validation is data.train:  # with folds
        validation = train
    return replace(data, train=train, validation=validation)


def _measure(source: Source, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the lengths of inputs, (samples,) int64 each."""
    with progress_bar(len(source), "measuring lengths") as advance:
        try:
            return measure_lengths(source, names, advance)
        except InputError as error:
            raise InputError(f"data.pad: {error}") from error


def _describe(spec: Spec, train: Source, pads: Sequence[Pad], lengths: Lengths) -> str:
    """Describe lengths and padding of the training samples, a line for each input."""
    rows = row_lengths(train, pads)
    order = train.order(spec.seed, 0)
    near = order
    if rows:
        rng = rng_for(spec.seed, LENGTHS, 0)
        near = order_by_length(order, np.sum(list(rows.values()), axis=0), rng)
    lines = []
    for pad in pads:
        sizes = lengths[pad.name]
        text = (
            f"data.pad: {pad.name}: lengths from {sizes.min()} to {sizes.max()}, "
            f"{sizes.mean():.3g} on average"
        )
        limited = np.minimum(sizes, pad.to)
        if pad.varies:
            shares = ", ".join(
                f"{padding_share(limited, near, batch):.1%} of batches of {batch} "
                f"({padding_share(limited, order, batch):.0%} in random order)"
                for batch in _batches(spec)
            )
            text += f"; cut to the longest of each batch, padding is {shares}"
        else:
            text += f"; padded to {pad.to}, padding is {1 - limited.mean() / pad.to:.1%}"
        count = int(np.count_nonzero(sizes > pad.to))
        if count:
            verb = "is" if count == 1 else "are"
            text += (
                f"; {count} of {pluralize(len(sizes), 'training sample')} {verb} longer than "
                f"{pad.to}, and cut"
            )
        lines.append(text)
    return "\n".join(lines)


def _batches(spec: Spec) -> list[int]:
    """Return some sizes of global batches of a spec, ascending."""
    sizes = {network.train.batch.bounds[0] for network in spec.networks}
    if not sizes:
        sizes = {spec.document.train.batch.bounds[0]}
    return sorted(sizes)[:_BATCHES]
