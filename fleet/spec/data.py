"""The keys of ``data``: where samples come from and how they are prepared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from fleet.spec import fields as kinds
from fleet.spec.section import section
from preprocess.target_kinds import Kind


@section
class Target:
    """What networks predict for a sample."""

    kind: Kind
    """class: one of several classes. multilabel: any number of labels. value: numbers. mask: a
    class for each pixel. none: nothing.
    """
    outputs: kinds.Positive | None = None
    """Number of classes, labels or values. By default, as many as the data contains."""
    names: tuple[str, ...] = ()
    """Names of the classes, labels or values."""
    ignore: kinds.Whole | None = None
    """Mask value of pixels excluded from loss and metrics."""


@section
class Pad:
    """How an input of unequal length is padded, at the end of its first axis."""

    to: Literal["longest"] | kinds.Positive = "longest"
    """longest: all rows of a batch have the length of its longest one. A number: all rows of all
    batches have this length, and longer ones are cut.
    """
    value: kinds.Real = 0
    """Number that fills the end of a row."""
    max_length: kinds.Positive | None = None
    """With `to: longest`, the length to which longer rows are cut."""


def _is_by_name(value: Mapping[str, Any]) -> bool:
    """Return True if a mapping describes targets by name, not one target.

    >>> _is_by_name({"price": "value", "kind": "class"}), _is_by_name({"kind": "class"})
    (True, False)
    >>> _is_by_name({"kind": {"kind": "class"}}), _is_by_name({"kind": "class", "names": "mask"})
    (True, True)
    """
    if isinstance(value.get("kind"), Mapping | Target):
        return True
    if "kind" not in value and not value.keys() & _KEYS:
        return True
    words = get_args(Kind)
    items = [item for key, item in value.items() if key != "kind"]
    return any(isinstance(item, Mapping | Target) or item in words for item in items)


def _form_of_target(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "kind" if isinstance(value, str) else "settings"
    return "by name" if _is_by_name(value) else "settings"


_KEYS = frozenset({"kind", "outputs", "names", "ignore"})
_NamedTarget = Annotated[
    Annotated[Kind, Tag("kind")] | Annotated[Target, Tag("settings")],
    Discriminator(lambda value: "kind" if isinstance(value, str) else "settings"),
]
# Tagged by form, so that a mistake is reported for the form that the user chose.
TargetSetting = Annotated[
    Annotated[Kind, Tag("kind")]
    | Annotated[Target, Tag("settings")]
    | Annotated[dict[str, _NamedTarget], Tag("by name")],
    Discriminator(_form_of_target),
]


@section
class EntryData:
    """Data settings of one entry that differ from `data` at the top."""

    transforms: kinds.Transforms | None = None
    """Transforms for the networks of this entry, instead of `data.transforms`. The transforms that
    all entries share, up to the first random one, run once for all of them.
    """
    target: TargetSetting | None = None
    """Target of the networks of this entry, instead of `data.target`."""

    @property
    def key(self) -> str:
        """The key of an input pipeline with these settings; empty for the document's."""
        if self == EntryData():
            return ""
        return json.dumps(asdict(self), sort_keys=True)

    def put_into(self, data: Data) -> Data:
        """Return the document's data settings with these applied."""
        return replace(
            data,
            transforms=data.transforms if self.transforms is None else self.transforms,
            target=data.target if self.target is None else self.target,
        )


@section
class Data:
    """Where samples come from and how they are prepared."""

    source: kinds.Source = "image_folder"
    """What reads the data: image folders (by class, or with masks), a table, arrays, files of many
    samples, a Hugging Face data set, or one of two built-in data sets. An import path names your
    own function that opens the data.
    """
    path: str | None = None
    """File or folder of the data. The built-in data sets need none."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the source, by name. An unknown name is refused with a list of the valid
    ones.
    """
    validation: kinds.ShareOrPath | None = 0.1
    """Validation data: a path, or the share of each class's samples to hold out, like 10%. Data
    with its own validation split is not divided. null: no validation data.
    """
    test: kinds.ShareOrPath | None = None
    """Held-out data, used only for the final score and never for selection: a path, or the share of
    each class's training samples to set aside first, like 10%. Each finished network is scored
    once, in the columns test_loss and test_accuracy of the results.
    """
    target: TargetSetting | None = None
    """What networks predict, if the source cannot tell: class (one of several), multilabel (any
    number of labels), value (numbers) or mask (a class for each pixel); or a mapping with more
    settings. none: nothing, for a step of your own (`train.step`) that learns from inputs alone.
    Of several targets, a mapping of their names to these, like {price: value, kind: class}.
    """
    folds: Annotated[int, Field(ge=2), kinds.NO_FLAG] | None = None
    """Number of folds for cross-validation, instead of `validation`. Each network is trained once
    per fold, as NAME-fold0, NAME-fold1, ...: it is validated on that fold and trained on the
    others.
    """
    transforms: kinds.Transforms = ("decode",)
    """Transforms of each sample, in order: names, with parameters if they have any, and import
    paths of your own functions. If samples have several inputs, a mapping of their names to such
    lists; an input without a list is only decoded, if its values are files.
    """
    together: tuple[str, ...] = ()
    """Names of the inputs, of several, whose pixels random crops, flips and rotations move alike;
    `target` is a mask.
    """
    pad: dict[str, Pad] = Field(default_factory=dict)
    """Inputs of unequal length, such as tokens, by name: `{tokens: {to: longest, value: 0}}`. Rows
    are filled at the end, and a further input `NAME_mask` is 1 where they are not; an input without
    a name is called `input`. With `to: longest`, samples of like length lie together in an epoch.
    """
    collate: kinds.ImportPath | None = None
    """Import path of your own function that makes the inputs of a PyTorch module of the samples of
    a batch, for what padding cannot say, such as graphs. It takes a list of mappings, one for each
    sample, and returns a mapping of keywords, a tuple of arguments, or one argument.
    """
    shared_memory: kinds.Size = Field(default=2 * 10**9, json_schema_extra={"default": "2GB"})
    """Memory on each node for prepared samples, like 2GB. It limits how far apart networks that
    share a stream can be.
    """
    order: Literal["strict", "ring"] = "strict"
    """strict: all networks read the samples of an epoch in the same order, at most a window apart.
    ring: the data set is cut into shards that circulate, and each network takes the ones it still
    needs, at its own pace. Use ring for data sets larger than the shared memory.
    """
    shards: Annotated[int, Field(ge=2), kinds.NO_FLAG] = 50
    """Number of shards for order: ring. A batch is drawn from one shard."""
    cache: Literal["auto", "none", "memory", "file"] = "auto"
    """auto: the first of memory, file and none that suits the data; the run reports which and why.
    none: samples are decoded again in every epoch. memory: decoded samples stay in shared memory,
    so that each network trains at its own pace; they must all fit. file: samples are decoded once,
    into a file in the run's folder. With memory each network has its own shuffle, which does not
    depend on the schedule. Otherwise the shuffle belongs to the stream's epochs; the history
    records it, and a replay repeats it.
    """
    augment_on: Literal["host", "device"] = "host"
    """Where the last random crop and the flips around it run. host: on the preprocessors. device:
    in the engine's graph, with random numbers from the host, so that the result is the same;
    samples then travel uncropped. A scale at the end always runs in the engine.
    """
    data_timeout: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=1800.0, json_schema_extra={"default": "30min"}
    )
    """How long the run waits for a sample before it ends with an error, like 30min."""
    max_unreadable: Annotated[kinds.Share, Field(ge=0, le=1)] = Field(
        default=0.01, json_schema_extra={"default": "1%"}
    )
    """Largest share of unreadable samples, like 1%. Such samples are left out and reported; if
    there are more, the run ends.
    """

    @model_validator(mode="after")
    def _agree(self) -> Data:
        if self.order == "ring" and self.cache == "memory":
            raise ValueError(
                "order: ring is for data sets larger than the shared memory, cache: memory for "
                "smaller ones; use only one of them"
            )
        for name, pad in self.pad.items():
            if pad.to != "longest" and pad.max_length is not None:
                raise ValueError(
                    f"pad: {name}: max_length is for to: longest; with to: {pad.to}, longer rows "
                    f"are cut to {pad.to} anyway"
                )
        return self
