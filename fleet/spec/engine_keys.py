"""Check that an engine supports the training settings of a spec."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TypeAlias, cast

from fleet.errors import UserError
from fleet.spec.by_target import is_loss_by_target, list_metrics
from fleet.spec.engines import ENGINES, EngineInfo
from fleet.spec.measures import Measure, label_of, name_of, parameters_of
from fleet.spec.model import check_import
from fleet.spec.train import Optimizer, Train
from fleet.vocabulary.batch_transforms import BATCH_TRANSFORMS
from fleet.vocabulary.measures import (
    SHORT,
    Direction,
    MeasureWord,
    canonical_name,
    direction_by_target,
    direction_of,
)
from fleet.vocabulary.optimizers import SAME_ARGUMENTS
from fleet.vocabulary.schedules import (
    accepted_arguments,
    find_problem_of_every,
    find_problems,
)
from launch.errors import did_you_mean

RATE_OF_0_2 = 0.01  # the default learning rate of every optimizer in version 0.2

# Key path, what is wrong, what would be right.
Problem: TypeAlias = tuple[tuple, str, str]


def find_unknown_words(
    train: Train, engine: EngineInfo, is_complete: bool = False
) -> Iterator[Problem]:
    """Yield the training settings that an engine does not support, by their keys below ``train``.

    An engine that does not learn accepts any name, so that a dry run accepts the spec of every
    engine.

    Args:
        train: the settings.
        engine: the engine.
        is_complete: whether these are all settings of a network; otherwise arguments of a learning
            rate schedule may be missing.
    """
    if not engine.learns:
        return
    words = engine.words
    knows = engine.knows
    yield from _check_optimizer(train.optimizer, engine, is_complete)
    if is_loss_by_target(train.loss):
        for target, loss in dict(cast(Mapping[str, Measure], train.loss)).items():
            yield from _check_measure(("loss", target), loss, words.losses, engine)
    elif train.single.loss is not None:
        yield from _check_measure(("loss",), train.single.loss, words.losses, engine)
    for metric in list_metrics(train.metrics):
        yield from _check_measure(("metrics",), metric, words.metrics, engine)
    yield from _check_batch_transforms(train, engine)
    monitor = train.stopping.monitor
    if monitor is not None and find_direction(train, engine) is None:
        yield (
            ("stopping", "monitor"),
            f"it is unknown whether high or low values of {monitor} are better",
            "stopping.direction: max, or min",
        )
    yield from _check_step(train, engine)
    if knows.precisions is not None and train.precision not in knows.precisions:
        yield (
            ("precision",),
            *_describe_unknown(
                engine, "precision", train.precision, knows.precisions, can_be_custom=False
            ),
        )
    if train.batch.accumulate > 1 and not knows.accumulates:
        yield (
            ("batch", "accumulate"),
            f"the {engine.name} engine does not accumulate gradients",
            "leave it out",
        )
    if train.xla and not knows.compiles:
        yield ("xla",), f"the {engine.name} engine does not support XLA", "leave it out"
    if train.compile and not knows.compiles_modules:
        right = "use xla, or the engine torch" if knows.compiles else "use the engine torch"
        yield ("compile",), f"the {engine.name} engine does not support torch.compile", right
    elif train.compile and train.step is not None:
        yield (
            ("compile",),
            "train.step calls the module itself",
            "leave it out, and call torch.compile in the step",
        )
    if train.start is not None and not knows.starts:
        yield (
            ("start",),
            f"the {engine.name} engine cannot start from the weights of a file",
            "leave it out",
        )


def _check_step(train: Train, engine: EngineInfo) -> Iterator[Problem]:
    if train.step is None:
        return
    if not engine.knows.own_steps:
        able = ", ".join(name for name, info in ENGINES.items() if info.knows.own_steps)
        yield (
            ("step",),
            f"the {engine.name} engine has no training steps of your own",
            f"use one of the engines {able}, or leave it out",
        )
        return
    if train.optimizers is not None and not engine.knows.several_optimizers:
        yield (
            ("optimizers",),
            f"the {engine.name} engine has one optimizer",
            "leave it out, and return the sum of the losses, each with tf.stop_gradient around "
            "what it should not train",
        )
    for key, path in (("step", train.step), ("optimizers", train.optimizers)):
        if path is None:
            continue
        try:
            check_import(path, key)
        except UserError as error:
            wrong, _, right = str(error).removeprefix(f"{key}: ").partition("; ")
            yield (key,), wrong, right


def find_direction(train: Train, engine: EngineInfo) -> Direction | None:
    """Find whether high or low values of the monitored metric are better."""
    monitor = train.stopping.metric
    direction = train.stopping.direction or direction_of(monitor)
    if direction is not None:
        return direction
    column = monitor.removeprefix("val_")
    names = {label_of(metric): name_of(metric) for metric in list_metrics(train.metrics)}
    label = column
    if label not in names:  # perhaps that of one of several targets
        label = next((name for name in names if column.endswith(f"_{name}")), "")
    if label:
        word = engine.words.metrics.get(canonical_name(names[label]))
        return None if word is None else word.better
    return direction_by_target(monitor)


def with_engine_defaults(train: Train, engine: EngineInfo, defaults: str) -> Train:
    """Return the settings with what only the engine knows.

    Args:
        train: the training settings.
        engine: the engine that knows the direction of its metrics and the default learning rates
            of its optimizers.
        defaults: the version of FLEET whose defaults apply.

    Returns:
        The settings with a direction and a learning rate; without a learning rate if none is given
        and the optimizer is a custom function.
    """
    stopping = train.stopping
    if stopping.direction is None and direction_of(stopping.metric) is None:
        stopping = replace(stopping, direction=find_direction(train, engine))
    optimizer = train.optimizer
    word = engine.words.optimizers.get(optimizer.name)
    rate = None if word is None else word.learning_rate
    if defaults == "0.2":
        rate = RATE_OF_0_2
    if train.optimizers is not None:
        rate = 1.0  # multiplies those of the optimizers
    if optimizer.learning_rate is None:
        optimizer = replace(optimizer, learning_rate=rate)
    elif isinstance(optimizer.learning_rate, Mapping):
        schedule = engine.words.schedules.get(str(optimizer.learning_rate.get("name")))
        begin = accepted_arguments(schedule).get("initial_learning_rate") if schedule else None
        if begin is not None and begin.default is None and rate is not None:
            optimizer = replace(
                optimizer,
                learning_rate={"initial_learning_rate": rate, **optimizer.learning_rate},
            )
    return replace(train, stopping=stopping, optimizer=optimizer)


def optimizer_slots(optimizer: Optimizer, engine: EngineInfo) -> int:
    """Return the largest number of values that an optimizer stores for each parameter."""
    word = engine.words.optimizers.get(optimizer.name)
    if word is None:
        slots = 0
    else:
        slots = word.slots + (bool(optimizer.momentum) and word.slot_of_momentum)
    return slots + bool(optimizer.use_ema) + bool(optimizer.amsgrad) + bool(optimizer.centered)


def _check_optimizer(
    optimizer: Optimizer, engine: EngineInfo, is_complete: bool
) -> Iterator[Problem]:
    name = optimizer.name
    optimizers = engine.words.optimizers
    schedules = engine.words.schedules
    if not (engine.knows.own if ":" in name else name in optimizers):
        reason = engine.knows.unusable_optimizers.get(name)
        if reason is None:
            yield ("optimizer", "name"), *_describe_unknown(engine, "optimizer", name, optimizers)
        else:
            wrong, _, right = reason.partition("; ")
            yield ("optimizer", "name"), f"{name} {wrong}", right
    else:
        yield from _check_optimizer_keys(optimizer, engine)
    if isinstance(rate := optimizer.learning_rate, Mapping):
        key = ("optimizer", "learning_rate")
        name = str(rate.get("name"))
        if ":" in name and engine.knows.own and schedules:
            for problem in find_problem_of_every(rate):
                wrong, _, right = problem.partition("; ")
                yield key, wrong, right
            return
        if name not in schedules:
            yield (
                key,
                *_describe_unknown(
                    engine,
                    "learning rate schedule",
                    name,
                    schedules,
                    can_be_custom=bool(schedules),
                ),
            )
            return
        for problem in find_problems(rate, schedules[name], is_complete):
            wrong, _, right = problem.partition("; ")
            yield key, wrong, right


def _check_optimizer_keys(optimizer: Optimizer, engine: EngineInfo) -> Iterator[Problem]:
    """Yield the keys that an optimizer does not take, with the keys that are meant."""
    if ":" in optimizer.name:
        takes = engine.knows.own_optimizers_take
    else:
        takes = engine.words.optimizers[optimizer.name].takes
    set_keys = {
        item.name
        for item in fields(optimizer)
        if item.name not in ("name", "learning_rate") and getattr(optimizer, item.name) is not None
    }
    in_groups = {key for group in optimizer.groups or () for key in group} - {
        "match",
        "learning_rate",
    }
    if "groups" not in takes:
        in_groups = set()
    foreign = [
        item.name for item in fields(optimizer) if item.name in (set_keys | in_groups) - takes
    ]
    if not foreign:
        return
    meant = dict.fromkeys(
        part
        for key in foreign
        for part in SAME_ARGUMENTS.get(key, ())
        if takes.issuperset(SAME_ARGUMENTS[key])
    )
    right = f"write {' and '.join(meant)}" if meant else ""
    if "groups" in foreign and not right:
        right = "leave it out, or use the engine torch"
    yield ("optimizer",), f"{optimizer.name} takes no {', '.join(foreign)}", right


def _check_measure(
    key: tuple[str, ...], measure: Measure, measures: Mapping[str, MeasureWord], engine: EngineInfo
) -> Iterator[Problem]:
    name = name_of(measure)
    noun = {"metrics": "metric"}.get(key[0], key[0])
    if not (engine.knows.own if ":" in name else canonical_name(name) in measures):
        yield (
            key,
            *_describe_unknown(
                engine,
                noun,
                name,
                [
                    word.written or short
                    for short, word in measures.items()
                    if not (word.refused or word.package)
                ],
                [
                    *(short for short in SHORT if canonical_name(short) in measures),
                    *(word.written for word in measures.values() if word.package),
                ],
            ),
        )
    elif ":" not in name and (refused := measures[canonical_name(name)].refused):
        wrong, _, right = refused.partition("; ")
        yield key, f"the {noun} {name} {wrong}", right
    elif (
        ":" not in name
        and (needed := measures[canonical_name(name)].needs)
        and needed not in parameters_of(measure)
    ):
        yield (
            key,
            f"the {noun} {name} needs the parameter {needed}",
            f"write {{{name}: {{{needed}: ...}}}}",
        )


def _check_batch_transforms(train: Train, engine: EngineInfo) -> Iterator[Problem]:
    key = ("batch_transforms",)
    if train.batch_transforms and not engine.knows.batch_transforms:
        yield key, f"the {engine.name} engine does not transform batches", "leave it out"
        return
    for transform in train.batch_transforms:
        name = name_of(transform)
        if ":" in name:
            continue
        if name not in BATCH_TRANSFORMS:
            yield (
                key,
                f"no batch transform is named {name!r}{did_you_mean(name, BATCH_TRANSFORMS)}",
                f"use {', '.join(BATCH_TRANSFORMS)}, or an import path module:function",
            )
            continue
        accepted = list(inspect.signature(BATCH_TRANSFORMS[name]).parameters)[2:]
        unknown = [parameter for parameter in parameters_of(transform) if parameter not in accepted]
        if unknown:
            yield (
                key,
                f"{name} has no parameter {unknown[0]}{did_you_mean(unknown[0], accepted)}",
                f"its parameters are {', '.join(accepted)}",
            )


def _describe_unknown(
    engine: EngineInfo,
    noun: str,
    name: str,
    names: Iterable[str],
    short: Iterable[str] = (),
    can_be_custom: bool = True,
) -> tuple[str, str]:
    """Return a message that an engine does not have a name, and what would be right.

    Args:
        engine: the engine.
        noun: what the name names, such as ``metric``.
        name: the unknown name.
        names: the names that the engine has.
        short: short forms of these names.
        can_be_custom: whether an import path can replace a name.
    """
    wrong = f"the {engine.name} engine has no {noun} {name!r}"
    hint = did_you_mean(name, (*names, *short))
    if hint:
        right = "use a name that the engine has"
    else:
        right = f"it has {', '.join(names) or 'none by name'}"
    if can_be_custom and engine.knows.own:
        right += ", or an import path module:function"
    return wrong + hint, right
