"""Check a spec and list its networks, before any rank is started.

Every network is built as in a run, with its optimizer and learning rate schedule, and takes a
training step on samples of the data. Networks of your own functions are also exported and loaded
again. This happens in a separate process, so a function may exit, crash or hang. The command checks
the keys first, then the data, and builds networks if both are valid. It reports all mistakes
together, with the lines of the spec. The listed memory is an estimate of what a GPU needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleet.checks.trials import try_networks
from fleet.commands.options import add_spec
from fleet.commands.output import show
from fleet.domain.events import CacheChosen
from fleet.engines.registry import count_network_parameters
from fleet.engines.smoke_test import SmokeTestResult
from fleet.errors import SpecError, SpecMistake, UserError
from fleet.runtime.known_rates import read_rates_of
from fleet.runtime.searchers import start_searches
from fleet.runtime.startup.caching import HostResources, choose_cache
from fleet.runtime.startup.data import (
    Inputs,
    describe_standardizing,
    open_inputs,
    resolve_with_data,
)
from fleet.runtime.startup.data_warnings import find_data_warnings
from fleet.runtime.startup.folder import free_disk
from fleet.spec import NetworkSpec, Spec
from fleet.spec.criteria import check_comparable, target_kinds
from fleet.spec.entries import variants, with_extreme_networks
from fleet.spec.fit_checks import Misfit, find_misfits, merge_misfits
from fleet.spec.model import FAMILIES
from fleet.storage.event_log import read_run_state
from fleet.storage.paths import RunPaths
from fleet.storage.run_spec import changed_defaults, spec_for_run
from fleet.terminal import print_table, progress_bar
from fleet.units import format_size
from launch.errors import InputError
from launch.memory import free_shared_memory
from preprocess.base import DataSet, Source
from preprocess.target import TargetSpec, plain_targets, target_of
from preprocess.views import split_targets

_SAMPLES = 8  # samples of the data for training steps
_CLASSES = 40  # classes to list at most
_ENDS = 5  # of more classes, the smallest and the largest ones to list


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser, optional=True)
    parser.add_argument(
        "--families",
        action="store_true",
        help="list the model families and their parameters instead",
    )
    parser.add_argument("--quick", action="store_true", help="skip the training steps")


def run(args: argparse.Namespace) -> None:
    """Print the networks of a spec, and all its mistakes."""
    if args.families:
        _print_families(args)
        return
    if args.spec is None:
        raise UserError("give a spec file, or use --families")
    result = _check(args.spec, steps=not args.quick)
    if result.spec is not None and not args.json:
        for notice in result.spec.notices:
            print(f"fleet check: {notice}", file=sys.stderr)
    show(args, lambda: _numbers(result), lambda: _print(args.spec, result))
    # Data that cannot be opened is reported in one line, as by a run.
    if [mistake.key for mistake in result.mistakes] == ["data"]:
        raise UserError(str(result.mistakes[0]))
    if result.mistakes:
        raise SpecError(result.mistakes)


# ---- checks ------------------------------------------------------------------------------------


@dataclass
class _CheckResult:
    """The result of a check.

    Attributes:
        spec: the spec; None if its keys are invalid.
        opened: its data; None if there are mistakes before any network is built.
        trials: index of a network -> the result of its test.
        mistakes: all mistakes.
        cache: where decoded samples are stored in a launch with one preprocessor.
        warnings: what surely hurts training.
    """

    spec: Spec | None
    opened: Inputs | None
    trials: dict[int, SmokeTestResult]
    mistakes: list[SpecMistake]
    cache: CacheChosen | None = None
    warnings: tuple[str, ...] = ()


def _check_searches(spec: Spec) -> None:
    """Make the searchers of a spec, and print what users should know about them."""
    for search in start_searches(spec, read_run_state(RunPaths(spec.output))).values():
        if search.note:
            print(f"fleet check: {search.note}", file=sys.stderr)


def _check(path: str, steps: bool) -> _CheckResult:
    """Check the keys, then the data, then the networks; stop after the first with mistakes."""
    try:
        spec, remark = spec_for_run(path)
    except SpecError as error:
        return _CheckResult(None, None, {}, list(error.mistakes))
    remark = remark or changed_defaults(spec)
    if remark:
        print(f"fleet check: {remark}", file=sys.stderr)
    try:
        opened = open_inputs(spec, with_fingerprint=True)
    except (UserError, InputError) as error:
        return _CheckResult(spec, None, {}, [_data_mistake(spec, str(error))])
    for line in opened.data.remark.splitlines():
        print(f"fleet check: {line}", file=sys.stderr)
    written = spec
    spec = dataclasses.replace(
        spec, networks=(*spec.networks, *with_extreme_networks(spec).networks)
    )
    mistakes: list[SpecMistake] = []
    try:
        [spec] = resolve_with_data(opened, spec)
    except UserError as error:
        mistakes.append(spec.origin.mistake(("train", "class_weights"), str(error)))
    warnings = find_data_warnings(spec, opened) if spec.engine.learns else ()
    for warning in warnings:
        print(f"fleet check: WARNING: {warning}", file=sys.stderr)
    for check_part in (
        lambda: check_comparable(
            written, (*written.networks, *variants(written)), target_kinds(opened.sample)
        ),
        lambda: _check_searches(spec),
    ):
        try:
            check_part()
        except SpecError as error:
            mistakes += error.mistakes
    all_networks = dataclasses.replace(spec, networks=(*spec.networks, *variants(written)))
    mistakes += merge_misfits(
        spec,
        find_misfits(
            all_networks,
            opened.sample,
            opened.epoch_samples,
            opened.data.validation is not None,
        ),
    )
    cache, cache_mistakes = _choose_cache(spec, opened)
    if mistakes or cache_mistakes:
        return _CheckResult(spec, None, {}, [*mistakes, *cache_mistakes], cache, warnings)
    trials, refused = _try_networks(spec, opened, steps)
    failures = merge_misfits(
        spec, [_misfit(spec, trial) for trial in trials.values() if trial.problem]
    )
    return _CheckResult(spec, opened, trials, [*refused, *failures], cache, warnings)


def _choose_cache(spec: Spec, opened: Inputs) -> tuple[CacheChosen, list[SpecMistake]]:
    """Choose where decoded samples are stored; return the choice and mistakes about it."""
    paths = RunPaths(spec.output)
    preprocessors = 0 if spec.policy.own_samples else 1
    resources = HostResources(preprocessors, 1, False, free_shared_memory(), free_disk(paths))
    earlier = read_run_state(paths, (CacheChosen,)).cache
    choice = choose_cache(spec, opened, resources, earlier)
    mistakes = []
    try:
        opened.keeping(choice.cache)
    except InputError as error:
        mistakes.append(spec.origin.mistake(("data", "cache"), str(error)))
    return choice, mistakes


def _data_mistake(spec: Spec, message: str) -> SpecMistake:
    """Return the mistake for a message about the data, located at the key that it names."""
    keys: tuple[str | int, ...] = ("data",)
    text = f": {message}"
    if match := re.match(r"(?:models\[(\d+)\]\.)?data(?=[.:])", message):
        entry = match.group(1)
        keys = keys if entry is None else ("models", int(entry), "data")
        text = message[match.end() :]
    # The message may name further keys, as in "data.options: inputs: ...".
    while step := re.match(r"(\.|: )(\w+)(?=\.\w|: )", text):
        if step[1] != "." and (*keys, step[2]) not in spec.origin.lines:
            break
        keys += (step[2],)
        text = text[step.end() :]
    return spec.origin.mistake(keys, text.removeprefix(": "))


def _try_networks(
    spec: Spec, opened: Inputs, steps: bool
) -> tuple[dict[int, SmokeTestResult], list[SpecMistake]]:
    """Test the networks; return the results and mistakes of the engine."""
    indices = range(len(spec.networks))
    if spec.schedule.rates is None or not spec.engine.needs_rates:
        rates = None
    else:
        rates = read_rates_of(spec, spec.schedule.rates)
    with progress_bar(len(indices), "testing networks") as advance:
        try:
            outcome = try_networks(
                spec,
                opened.sample,
                indices,
                rates,
                steps,
                advance,
                _some_samples(spec, opened) if steps and spec.engine.learns else None,
            )
        except UserError as error:
            return {}, [spec.origin.mistake(("resources",), str(error))]
    # Networks of one function have the same warnings.
    for warning in dict.fromkeys(
        warning for trial in outcome.trials.values() for warning in trial.warnings
    ):
        print(f"fleet check: WARNING: {warning}", file=sys.stderr)
    if outcome.problem:
        print(f"fleet check: networks cannot be built here: {outcome.problem}", file=sys.stderr)
        outcome.trials = {
            index: SmokeTestResult(
                index,
                parameters=count_network_parameters(spec.networks[index], spec, opened.sample),
            )
            for index in indices
            if spec.networks[index].architecture.kind == "family"
        }
    return outcome.trials, []


def _some_samples(spec: Spec, opened: Inputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return a few usable samples of each input pipeline, as (images, targets)."""
    samples = {}
    for key, input_pipeline in opened.by_pipeline.items():
        pipeline = dataclasses.replace(
            input_pipeline, stream_target=None, packed_slice=None
        ).pipeline("train", spec.seed)
        assert pipeline is not None
        indices = np.unique(np.linspace(0, pipeline.samples - 1, _SAMPLES).astype(int))
        inputs, targets = pipeline.empty(len(indices))
        pipeline.load(indices.tolist(), 0, inputs, targets)
        usable = pipeline.sample.target.is_usable(targets)
        if usable.any():
            samples[key] = inputs[usable], targets[usable]
    return samples


def _misfit(spec: Spec, trial: SmokeTestResult) -> Misfit:
    """Return the problem of a tested network, with its key."""
    network = spec.networks[trial.network]
    if trial.setting:
        return network, spec.place_of(network.entry, trial.setting), trial.problem, ""
    key = "build" if network.architecture.kind == "import" else "family"
    return network, ("models", network.entry, key), trial.problem, ""


# ---- printing ----------------------------------------------------------------------------------


def _numbers(result: _CheckResult) -> dict[str, Any]:
    mistakes = SpecError(result.mistakes).mistakes  # in order
    numbers: dict[str, Any] = {
        "mistakes": [dataclasses.asdict(mistake) for mistake in mistakes],
        "notices": [] if result.spec is None else list(result.spec.notices),
        "warnings": list(result.warnings),
    }
    if result.spec is not None:
        numbers["name"] = result.spec.document.name
    if result.spec is not None and result.opened is not None:
        data = result.opened.data
        sample = result.opened.sample
        target = sample.target
        if sample.parts:
            form: dict[str, Any] = {
                "inputs": {
                    name: dataclasses.asdict(part.input) for name, part in sample.parts.items()
                }
            }
        else:
            form = dataclasses.asdict(sample.input)
        test = {} if data.test is None else {"test_samples": len(data.test)}
        numbers |= {
            "samples": len(data.train),
            "validation_samples": len(data.validation or ()),
            **test,
            "classes": list(data.classes),
            "class_counts": _counts(data),
            "target": _describe_target(target),
            **form,
            "cache": None if result.cache is None else dataclasses.asdict(result.cache),
            "networks": [
                _record(network, trial) | {"steps_per_epoch": _steps_per_epoch(network, result)}
                for network, trial in _rows(result.spec, result)
            ],
        }
    return numbers


def _describe_target(target: TargetSpec) -> dict[str, Any]:
    """Return kind and number of outputs; of several targets, by name."""
    if target.parts:
        return {name: _describe_target(part) for name, part in target.parts.items()}
    return {"kind": target.kind, "outputs": target.outputs}


def _rows(spec: Spec, result: _CheckResult) -> Iterator[tuple[NetworkSpec, SmokeTestResult]]:
    for index, network in enumerate(spec.networks):
        yield network, result.trials.get(index, SmokeTestResult(index))


def _print(path: str, result: _CheckResult) -> None:
    if result.spec is None or result.opened is None:
        return
    data = result.opened.data
    image = result.opened.sample.input
    test = "" if data.test is None else f" and {len(data.test)} test"
    folds = result.spec.data.folds
    if folds is None:
        validation = f" and {len(data.validation or ())} validation"
        in_folds = ""
    else:
        validation = ""
        in_folds = f", in {folds} folds"
    print(
        f"{path}: {len(data.train)} training{validation}{test} samples of {image} "
        f"{result.opened.sample.target.after_samples} "
        f"({format_size(len(data.train) * image.nbytes)} decoded){in_folds}"
    )
    _print_classes(data)
    if result.cache is not None:
        print(result.cache.summary)
    standardizing = describe_standardizing(result.spec, result.opened)
    if standardizing:
        print(standardizing)
    rows = list(_rows(result.spec, result))
    device = "GPU" if result.spec.uses_gpus else "device"
    print_table(
        [
            "network",
            "model",
            "parameters",
            f"{device} memory",
            "batch",
            "optimizer",
            f"{device}s",
            "epochs",
            "steps an epoch",
        ],
        [_row(network, trial, _steps_per_epoch(network, result)) for network, trial in rows],
    )
    notes: dict[str, list[str]] = {}
    for network, trial in rows:
        for note in trial.notes:
            notes.setdefault(note, []).append(network.name)
    for note, names in notes.items():
        print(f"{', '.join(names)}: {note}")


def _counts(data: DataSet) -> dict[str, dict[str, int]]:
    """Count the samples of each class or label in each split; empty for other targets."""
    counts_by_split = {}
    for split, source in data.splits().items():
        if split != "train" and source is data.train:  # folds share the training data
            continue
        target = target_of(source)
        if target.parts:
            of_split = _counts_by_target(source)
            if of_split:
                counts_by_split[split] = of_split
            continue
        counts = target.semantics.counts(plain_targets(source), target.outputs)
        if counts is None:
            return {}
        names = data.classes or tuple(map(str, range(target.outputs)))
        counts_by_split[split] = dict(zip(names, counts.tolist(), strict=True))
    return counts_by_split


def _counts_by_target(source: Source) -> dict[str, int]:
    """Count the samples of each class or label of several targets."""
    by_name: dict[str, int] = {}
    for name, part in split_targets(source).items():
        target = target_of(part)
        counts = target.semantics.counts(plain_targets(part), target.outputs)
        if counts is not None:
            names = target.names or tuple(map(str, range(target.outputs)))
            named = [f"{name}: {output}" for output in names]
            by_name |= dict(zip(named, counts.tolist(), strict=True))
    return by_name


def _print_classes(data: DataSet) -> None:
    """Print the classes, or labels, with their number of samples in each split."""
    counts = _counts(data)
    if not counts:
        return
    names = list(counts["train"])
    if len(names) > _CLASSES:
        names.sort(key=counts["train"].__getitem__)
        noun = target_of(data.train).semantics.nouns[1]
        low, high = (counts["train"][name] for name in (names[0], names[-1]))
        print(
            f"{len(names)} {noun} with {low} to {high} training samples; "
            f"the {_ENDS} smallest and the {_ENDS} largest:"
        )
        names = names[:_ENDS] + names[-_ENDS:]
    headers = {"train": "training", "validation": "validation", "test": "test"}
    print_table(
        [target_of(data.train).semantics.nouns[0], *(headers[split] for split in counts)],
        [[name, *(by_name[name] for by_name in counts.values())] for name in names],
    )


def _steps_per_epoch(network: NetworkSpec, result: _CheckResult) -> list[int]:
    """Return the number of steps of an epoch; the fewest and most if the batch size may change."""
    assert result.opened is not None
    samples = result.opened.epoch_samples
    gpus = network.min_gpus
    sizes = {network.largest_batch(gpus), network.global_batch(gpus)}
    return sorted({-(-samples // size) for size in sizes})


def _row(network: NetworkSpec, trial: SmokeTestResult, steps: Sequence[int]) -> list[Any]:
    optimizer = network.train.optimizer
    rate = optimizer.learning_rate
    if rate is None:  # a custom function has its own default
        rate_text = ""
    else:
        rate_text = rate["name"] if isinstance(rate, dict) else f"{rate:g}"
    arguments = ", ".join(f"{key}={value}" for key, value in network.architecture.args.items())
    min_gpus = network.min_gpus
    max_gpus = network.max_gpus
    if max_gpus is None:
        gpus = f"{min_gpus} or more"
    elif min_gpus == max_gpus:
        gpus = str(min_gpus)
    else:
        gpus = f"{min_gpus} to {max_gpus}"
    memory = "" if trial.memory is None else format_size(trial.memory)
    return [
        network.name,
        f"{network.architecture.target}({arguments})",
        trial.parameters,
        memory,
        network.train.batch.size,
        f"{optimizer.name} {rate_text}".rstrip(),
        gpus,
        network.train.stopping.max_epochs,
        " to ".join(map(str, steps)),
    ]


def _record(network: NetworkSpec, trial: SmokeTestResult) -> dict[str, Any]:
    return {
        "name": network.name,
        "model": network.architecture.target,
        "args": dict(network.architecture.args),
        "parameters": trial.parameters,
        "memory": trial.memory,
        "notes": list(trial.notes),
        "problem": trial.problem,
        "batch": network.train.batch.size,
        "optimizer": network.train.optimizer.name,
        "max_epochs": network.train.stopping.max_epochs,
        "seed": network.seed,
        "min_gpus": network.min_gpus,
        "max_gpus": network.max_gpus,
        "drawn": network.parameters,
    }


def _print_families(args: argparse.Namespace) -> None:
    rows = [
        (name, field, default)
        for name, family in FAMILIES.items()
        for field, default in dataclasses.asdict(family()).items()
    ]
    show(
        args,
        lambda: {
            name: {field: default for owner, field, default in rows if owner == name}
            for name in FAMILIES
        },
        lambda: print_table(
            ["family", "parameter", "default"],
            [[name, field, str(default)] for name, field, default in rows],
        ),
    )
