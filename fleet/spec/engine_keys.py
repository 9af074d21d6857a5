"""Check that an engine supports the training settings of a spec."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TypeAlias

from fleet.spec.engines import EngineInfo
from fleet.spec.measures import Measure, label_of, name_of, parameters_of
from fleet.spec.train import Optimizer, Train
from fleet.vocabulary.measures import SHORT, Direction, MeasureWord, canonical_name, direction_of
from fleet.vocabulary.schedules import find_missing, find_problems

RATE_OF_0_2 = 0.01  # of every optimizer for which none was given

Problem: TypeAlias = tuple[
    tuple[str, ...], str, str
]  # keys below `train`, what is wrong, what would be right


def find_unknown_words(train: Train, engine: EngineInfo) -> Iterator[Problem]:
    """Yield the training settings that an engine does not support.

    A learning rate schedule need not be whole, see :func:`incomplete_schedule`. Where nothing is
    learned, no word means anything, so that a rehearsal takes those of any engine.
    """
    if not engine.learns:
        return
    words = engine.words
    knows = engine.knows
    yield from _of_optimizer(train.optimizer, engine)
    if train.loss is not None:
        yield from _of_measure(("loss",), train.loss, words.losses, engine)
    for metric in train.metrics:
        yield from _of_measure(("metrics",), metric, words.metrics, engine)
    monitor = train.stopping.monitor
    if monitor is not None and find_direction(train, engine) is None:
        yield (
            ("stopping", "monitor"),
            f"it is unknown whether high or low values of {monitor} are better",
            "stopping.direction: max, or min",
        )
    if knows.precisions is not None and train.precision not in knows.precisions:
        yield (
            ("precision",),
            *_lacks(engine, "precision", train.precision, knows.precisions, may_be_own=False),
        )
    if train.batch.accumulate > 1 and not knows.accumulates:
        yield (
            ("batch", "accumulate"),
            f"the {engine.name} engine does not accumulate gradients",
            "leave it out",
        )
    if train.xla and not knows.compiles:
        yield ("xla",), f"the {engine.name} engine knows no XLA", "leave it out"
    if train.start is not None and not knows.starts:
        yield (
            ("start",),
            f"the {engine.name} engine cannot begin with weights of a file",
            "leave it out",
        )


def incomplete_schedule(train: Train, engine: EngineInfo) -> str:
    """Describe what a learning rate schedule lacks; empty if it is complete."""
    rate = train.optimizer.learning_rate
    if not (isinstance(rate, Mapping) and engine.learns):
        return ""
    return find_missing(rate, engine.words.schedules[rate["name"]])


def find_direction(train: Train, engine: EngineInfo) -> Direction | None:
    """Find whether high or low values of the monitored metric are better."""
    monitor = train.stopping.metric
    direction = train.stopping.direction or direction_of(monitor)
    if direction is not None:
        return direction
    metric_name = next(
        (
            name_of(metric)
            for metric in train.metrics
            if label_of(metric) == monitor.removeprefix("val_")
        ),
        "",
    )
    word = engine.words.metrics.get(canonical_name(metric_name))
    if word is None:
        return None
    return word.better


def with_direction(train: Train, engine: EngineInfo) -> Train:
    """Return the settings with the direction of a metric that only the engine knows."""
    stopping = train.stopping
    direction = find_direction(train, engine)
    if (
        direction is None
        or stopping.direction is not None
        or direction_of(stopping.metric) is not None
    ):
        return train
    return replace(train, stopping=replace(stopping, direction=direction))


def with_rate(train: Train, engine: EngineInfo, defaults: str) -> Train:
    """Return the settings with the optimizer's default learning rate if none is given.

    Args:
        defaults: the version of FLEET whose defaults count.

    Returns:
        The same settings with a learning rate; without one where only the user's own function has a
        default.
    """
    optimizer = train.optimizer
    if optimizer.learning_rate is not None:
        return train
    word = engine.words.optimizers.get(optimizer.name)
    rate = None if word is None else word.learning_rate
    if defaults == "0.2":
        rate = RATE_OF_0_2
    return replace(train, optimizer=replace(optimizer, learning_rate=rate))


def optimizer_slots(optimizer: Optimizer, engine: EngineInfo) -> int:
    """Count the numbers that an optimizer keeps for each parameter, at most."""
    word = engine.words.optimizers.get(optimizer.name)
    if word is None:
        slots = 0
    else:
        slots = word.slots + (bool(optimizer.momentum) and word.slot_of_momentum)
    return slots + bool(optimizer.use_ema) + bool(optimizer.amsgrad) + bool(optimizer.centered)


def _of_optimizer(optimizer: Optimizer, engine: EngineInfo) -> Iterator[Problem]:
    name = optimizer.name
    optimizers = engine.words.optimizers
    schedules = engine.words.schedules
    parameters = [
        item.name
        for item in fields(optimizer)
        if item.name not in ("name", "learning_rate") and getattr(optimizer, item.name) is not None
    ]
    if not (engine.knows.own if ":" in name else name in optimizers):
        yield ("optimizer", "name"), *_lacks(engine, "optimizer", name, optimizers)
    elif foreign := [
        key
        for key in parameters
        if key not in ({"args"} if ":" in name else optimizers[name].takes)
    ]:
        yield ("optimizer",), f"{name} takes no {', '.join(foreign)}", ""
    if isinstance(rate := optimizer.learning_rate, Mapping):
        key = ("optimizer", "learning_rate")
        name = str(rate.get("name"))
        if name not in schedules:
            yield key, *_lacks(engine, "learning rate schedule", name, schedules, may_be_own=False)
        for problem in find_problems(rate, schedules[name]) if name in schedules else ():
            wrong, _, right = problem.partition("; ")
            yield key, wrong, right


def _of_measure(
    key: tuple[str, ...], measure: Measure, measures: Mapping[str, MeasureWord], engine: EngineInfo
) -> Iterator[Problem]:
    name = name_of(measure)
    noun = {"metrics": "metric"}.get(key[0], key[0])
    if not (engine.knows.own if ":" in name else canonical_name(name) in measures):
        yield (
            key,
            *_lacks(
                engine,
                noun,
                name,
                measures,
                [short for short in SHORT if canonical_name(short) in measures],
            ),
        )
    elif (
        ":" not in name
        and (needed := measures[canonical_name(name)].needs)
        and needed not in parameters_of(measure)
    ):
        yield key, f"the {noun} {name} needs {needed}", f"write {{{name}: {{{needed}: ...}}}}"


def _lacks(
    engine: EngineInfo,
    noun: str,
    name: str,
    names: Iterable[str],
    short: Iterable[str] = (),
    may_be_own: bool = True,
) -> tuple[str, str]:
    """Return a message that an engine does not have a name, and what would be right.

    Args:
        names: the names that it knows.
        short: others for the same.
        may_be_own: whether an import path can stand in their place.
    """
    wrong = f"the {engine.name} engine has no {noun} {name!r}"
    near = {candidate.lower(): candidate for candidate in (*names, *short)}
    close = [near[candidate] for candidate in difflib.get_close_matches(name.lower(), near, n=3)]
    if close:
        right = "a name that it has"
    else:
        right = f"it has {', '.join(names) or 'none by name'}"
    if may_be_own and engine.knows.own:
        hint = ", or an import path module:function"
    else:
        hint = ""
    return wrong + (f" (did you mean {', '.join(close)}?)" if close else ""), right + hint
