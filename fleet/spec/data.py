"""The keys of ``data``: where samples come from, and what they become."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from fleet.spec import fields as kinds


@dataclass(frozen=True, config=kinds.STRICT)
class Target:
    """What networks are to answer for a sample."""

    kind: Literal["class", "multilabel", "value", "mask"] = Field(
        description=(
            "class: one of some. multilabel: each of some, or not. value: numbers. mask: a class for each pixel."
        )
    )
    outputs: kinds.Positive | None = Field(
        default=None,
        description=("Number of classes, labels or values. Without it, as many as the data shows."),
    )
    names: tuple[str, ...] = Field(
        default=(), description="Names of the classes, labels or values."
    )
    ignore: kinds.Whole | None = Field(
        default=None, description="Value of the pixels of masks that count for nothing."
    )


TargetSaid = Literal["class", "multilabel", "value", "mask"] | Target


@dataclass(frozen=True, config=kinds.STRICT)
class EntryData:
    """What the networks of one entry are fed with, where it differs from `data` at the top."""

    transforms: tuple[kinds.TransformItem, ...] | None = Field(
        default=None,
        description=(
            "What is done to each sample for the networks of this entry, instead of `data.transforms`. What all networks "
            "have in common at the beginning, up to the first random transform, is done once for all of them."
        ),
    )
    target: TargetSaid | None = Field(
        default=None,
        description=(
            "What the networks of this entry are to answer for a sample, instead of `data.target`."
        ),
    )

    def put_into(self, data: Data) -> Data:
        """The settings of the document with these."""
        return replace(
            data,
            transforms=data.transforms if self.transforms is None else self.transforms,
            target=data.target if self.target is None else self.target,
        )


def pipeline_key(own: EntryData | None) -> str:
    """A key: networks with the same one are fed with the same; empty for what the document says."""
    if own is None:
        return ""
    return json.dumps(asdict(own), sort_keys=True)


@dataclass(frozen=True, config=kinds.STRICT)
class Data:
    """Where samples come from, and what happens to them before a network sees them."""

    source: kinds.Source = Field(
        default="image_folder",
        description=(
            "What kind of data is read: folders of images (by class, or with masks beside them), a table, arrays, files of "
            "many samples, a data set of Hugging Face, or one of two built-in data sets to try things with. An import path "
            "names a function of your own that opens the data."
        ),
    )
    path: str | None = Field(
        default=None,
        description=("File or folder with the data. The built-in data sets need none."),
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Further arguments of the source, by name. If one is unknown, the message lists those that there are."
        ),
    )
    validation: kinds.ShareOrPath | None = Field(
        default=0.1,
        description=(
            "The data that networks are judged by: a path, or the share of the samples of each class that is held out, "
            "like 10%. Data that has a validation part of its own is not split. With null, nothing is held out."
        ),
    )
    test: kinds.ShareOrPath | None = Field(
        default=None,
        description=(
            "Data that chooses nothing, neither epochs nor networks: a path, or the share of the training samples of each "
            "class that is set aside before any other, like 10%. Each finished network is judged on it once, in the "
            "columns test_loss and test_accuracy of the results."
        ),
    )
    target: TargetSaid | None = Field(
        default=None,
        description=(
            "What networks are to answer for a sample, where the source cannot tell: class (one of some), multilabel (each "
            "of some, or not), value (numbers) or mask (a class for each pixel); or a mapping that says more."
        ),
    )
    folds: Annotated[int, Field(ge=2), kinds.NO_FLAG] | None = Field(
        default=None,
        description=(
            "Number of folds of cross-validation, instead of `validation`. Each network stands for so many, NAME-fold0, "
            "NAME-fold1, ...: each is judged by a fold of the training samples and trains on the others."
        ),
    )
    transforms: tuple[kinds.TransformItem, ...] = Field(
        default=("decode",),
        description=(
            "What is done to each sample, in this order: names of transforms, with their parameters where they have some, "
            "and import paths of your own functions."
        ),
    )
    shared_memory: kinds.Size = Field(
        default=2 * 10**9,
        json_schema_extra=kinds.written_as("2GB"),
        description=(
            "How much memory each node uses for prepared samples, like 2GB. Networks that share a stream are at most this "
            "far apart."
        ),
    )
    order: Literal["strict", "ring"] = Field(
        default="strict",
        description=(
            "strict: all networks read the samples of an epoch in the same order, at most a window apart. ring: the data "
            "set is cut into shards that circulate, and each network takes those it still lacks, at its own pace. A ring "
            "is for data sets that are larger than the window."
        ),
    )
    shards: Annotated[int, Field(ge=2), kinds.NO_FLAG] = Field(
        default=50,
        description=(
            "Number of shards into which order: ring cuts the data set. A batch is drawn from a single shard."
        ),
    )
    cache: Literal["auto", "none", "memory", "file"] = Field(
        default="auto",
        description=(
            "auto: the first of memory, file and none that suits the data; the run says which and why. none: samples are "
            "decoded anew in every epoch. memory: decoded samples stay in the window, so that each network trains at its "
            "own pace; all of them must fit. file: samples are decoded once, into a file in the run's folder. With "
            "memory each network has a shuffle of its own, which no schedule changes. Otherwise the shuffle is that of the "
            "stream's epochs; the history records which, and a replay repeats them."
        ),
    )
    augment_on: Literal["host", "device"] = Field(
        default="host",
        description=(
            "Where the last crop of the transforms and flips about it are done. host: where samples are prepared. device: "
            "in the engine's graph, by random numbers of the host, so that the result is the same; samples then travel as "
            "large as they were, and hosts do what comes before. A scale at the end is the engine's anyway."
        ),
    )
    data_timeout: Annotated[kinds.Duration, Field(gt=0)] = Field(
        default=1800.0,
        json_schema_extra=kinds.written_as("30min"),
        description=(
            "How long the run waits for a sample before it ends and names the cause, like 30min."
        ),
    )
    max_unreadable: Annotated[kinds.Share, Field(ge=0, le=1)] = Field(
        default=0.01,
        json_schema_extra=kinds.written_as("1%"),
        description=(
            "Largest share of samples that may be unreadable, like 1%. Such samples are left out and reported; when there "
            "are more, the run ends."
        ),
    )

    @model_validator(mode="after")
    def _agree(self) -> Data:
        if self.order == "ring" and self.cache == "memory":
            raise ValueError(
                "order: ring is for data sets larger than the window, cache: memory for those that fit "
                "into it; should be one of them"
            )
        return self
