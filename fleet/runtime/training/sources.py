"""The sources of a trainer's samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fleet.comm.messages import SampleUnreadable, Tag
from fleet.comm.protocols import World
from fleet.runtime.startup.input_pipelines import InputPipeline
from fleet.runtime.startup.launch import Launch
from fleet.spec import NetworkSpec
from fleet.storage.paths import PARTS
from fleet.stream.augment import DeferredAugmentation
from fleet.stream.compose import NodeMemory, Stream, compose
from fleet.stream.stall import Waiting
from fleet.stream.validation import NodeValidation, Validation
from preprocess.base import UnreadableSample, row_numbers
from preprocess.record_pipeline import AnyPipeline


@dataclass(frozen=True)
class Source:
    """The streams of networks of one input pipeline and fold.

    Attributes:
        stream: the training samples.
        validation: None without validation data.
        test: None without test data.
        rows: ``validation`` and ``test`` -> (samples,) int64, rows of the samples in the data set.
        samples: number of training samples in an epoch.
    """

    stream: Stream
    validation: Validation | None
    test: Validation | None
    rows: Mapping[str, np.ndarray]
    samples: int = 0


class Sources:
    """A trainer's sources, by input pipeline and fold."""

    def __init__(self, sources: Mapping[tuple[str, int | None], Source]) -> None:
        self._sources = sources
        self._any = next(iter(sources.values())).stream

    def of(self, network: NetworkSpec) -> Source:
        """Return the source of a network."""
        return (
            self._sources.get((network.pipeline, network.fold)) or self._sources["", network.fold]
        )

    def join(self, epoch: int) -> None:
        """Declare that this rank reads from the start of a stream epoch on."""
        self._any.join(epoch)

    def leave(self) -> None:
        """Stop reading."""
        self._any.leave()

    @property
    def waited_s(self) -> float:
        """Seconds that this rank has waited for data."""
        return sum(source.stream.waited_s for source in self._sources.values())


def make_sources(world: World, launch: Launch, memory: NodeMemory, first_epoch: int) -> Sources:
    """Make all sources of a trainer.

    Args:
        memory: the shared memory of its node.
        first_epoch: the stream's first epoch in this launch.
    """
    waiting = Waiting(world, launch.spec.data.data_timeout, launch.roles.preprocessors)
    return Sources(
        {
            (key, fold): source
            for key, input_pipeline in launch.inputs.by_pipeline.items()
            for fold, source in _make_pipeline_sources(
                waiting, launch, input_pipeline, memory, first_epoch
            ).items()
        }
    )


def _make_pipeline_sources(
    waiting: Waiting,
    launch: Launch,
    input_pipeline: InputPipeline,
    memory: NodeMemory,
    first_epoch: int,
) -> dict[int | None, Source]:
    """Make the sources of each fold, and of all samples under None."""
    world = waiting.world
    folds = launch.inputs.folds
    seed = launch.spec.seed
    training = input_pipeline.pipeline("train", seed)
    evaluation = input_pipeline.pipeline("validation", seed)
    assert training is not None
    report_training = _make_reporter(world, training=True)
    report_evaluation = _make_reporter(world, training=False)

    def finish(
        pipeline: AnyPipeline, on_bad: Callable[[UnreadableSample], None]
    ) -> DeferredAugmentation | None:
        if input_pipeline.matches_stream:
            return None
        return DeferredAugmentation(pipeline, input_pipeline.is_input_done, on_bad)

    stream = compose(
        launch.order(training),
        training,
        memory,
        launch.roles.local_index(world.rank),
        waiting,
        report_training,
        launch.stored_input is not None,
        finish(training, report_training),
        first_epoch,
    )
    if memory.validation is None or evaluation is None:
        shared = None
    else:
        shared = NodeValidation(memory.validation, waiting, finish(evaluation, report_evaluation))
    test_pipeline = input_pipeline.pipeline("test", seed) if launch.is_tested else None
    test = None
    if test_pipeline is not None:
        test = Validation(test_pipeline, report_evaluation, keeps=False)
    source_rows = {
        split: row_numbers(source)
        for split, source in input_pipeline.data.splits().items()
        if split in PARTS
    }

    def make_source(fold: int | None) -> Source:
        keeps: np.ndarray | None = None
        rows: np.ndarray | None = None
        rows_of_fold = source_rows
        if folds is not None and fold is not None:
            keeps = folds != fold
            rows = np.flatnonzero(folds == fold)
            rows_of_fold = {**source_rows, PARTS[0]: source_rows[PARTS[0]][rows]}
        validation = None
        if evaluation is not None:
            validation = Validation(evaluation, report_evaluation, rows, shared)
        samples = training.samples if keeps is None else int(keeps.sum())
        return Source(stream(keeps), validation, test, rows_of_fold, samples)

    return {fold: make_source(fold) for fold in (None, *range(launch.spec.data.folds or 0))}


def _make_reporter(world: World, training: bool) -> Callable[[UnreadableSample], None]:
    """Return a function that reports unreadable samples to the coordinator."""
    return lambda bad: world.send(
        0, Tag.COORDINATOR, SampleUnreadable(bad.name, bad.reason, training)
    )
