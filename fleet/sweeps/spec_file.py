"""Write a sweep as a spec in which the data and the network are missing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleet.domain.network import SCORES
from fleet.errors import UserError
from fleet.spec.search import NETWORK_OBJECTIVES, Mode, Search
from fleet.spec.space import override, space_of
from fleet.spec.yaml_file import dump_plain
from fleet.storage.trials_file import FileObjective, FileTrial, TrialsFile
from fleet.sweeps.sweep import Sweep
from fleet.vocabulary.measures import UP, direction_of

_WIDTH = 100
_STAND_INS: dict[Mode, str] = {"maximize": "val_accuracy", "minimize": "val_loss"}

# Beginning of the name of a metric -> that of the same quantity here.
_PREFIXES = {
    "validation_": "val_",
    "valid_": "val_",
    "eval_": "val_",
    "val_": "val_",
    "training_": "",
    "train_": "",
}


@dataclass(frozen=True)
class SpecDraft:
    """The spec of a sweep.

    Attributes:
        content: its keys.
        trials: the prior trials; None without any.
        sweep: the sweep with the keys of a spec, and with all notes.
    """

    content: Mapping[str, Any]
    trials: TrialsFile | None
    sweep: Sweep


def draft_spec(sweep: Sweep, source: Path, trials_file: str | None) -> SpecDraft:
    """Return the spec of a sweep.

    Args:
        sweep: the sweep, with the keys of a spec.
        source: the file or folder that it was read from.
        trials_file: the name of the file of prior trials; None if none is written.

    Raises:
        UserError: the space or the search is invalid.
    """
    sweep = replace(sweep, left_out=list(sweep.left_out), changed=list(sweep.changed))
    space_of(sweep.space)
    objectives = list(_objectives(sweep))
    search = dict(sweep.search) if sweep.search is not None and sweep.space else None
    if sweep.search is not None and search is None:
        sweep.change("parameters", "all are constant, so that one network is trained")
    train = override(
        {},
        {
            key.removeprefix("train."): value
            for key, value in sweep.fixed.items()
            if key.startswith("train.")
        },
    )
    stopping = dict(sweep.stopping)
    if len(objectives) == 1 or search is None:
        if objectives:
            stopping["monitor"] = objectives[0][1].value
    elif objectives:
        search["objectives"] = [vars(objective) for _, objective in objectives]
    if "train.stopping.max_epochs" in sweep.space:
        stopping.pop("max_epochs", None)
    if metrics := _metrics(objectives):
        train["metrics"] = metrics
    if stopping:
        train["stopping"] = {**stopping, **train.get("stopping", {})}
    trials = None
    if sweep.trials and search is not None:
        trials = _trials_file(sweep, source, objectives)
        if trials is not None and trials_file is not None:
            search["warm_start"] = [trials_file]
    if search is not None and sweep.seed is not None:
        search["seed"] = sweep.seed
    name = _as_name(sweep.name or source.stem)
    arguments = {key: value for key, value in sweep.fixed.items() if not key.startswith("train.")}
    entry = {
        "name": name,
        **sweep.entry,
        "args": override({}, arguments),
        "space": dict(sweep.space),
        "search": search,
    }
    content = {
        "name": name,
        "seed": sweep.seed,
        "models": [_without_empty(entry)],
        "prune": dict(sweep.prune) if search is not None else {},
        "train": train,
    }
    _check_search(search)
    return SpecDraft(_without_empty(content), trials, sweep)


def _without_empty(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value not in (None, {})}


def _as_name(text: str) -> str:
    """Return a text as a name of networks: letters, digits, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:64] or "net"


def _check_search(search: Mapping[str, Any] | None) -> None:
    if search is None:
        return
    try:
        TypeAdapter(Search).validate_python(search)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key = ".".join(map(str, mistake["loc"]))
        raise UserError(f"search.{key}: {mistake['msg']}") from None


# ---- objectives ----------------------------------------------------------------------------------


def _objectives(sweep: Sweep) -> Iterator[tuple[int, FileObjective]]:
    """Yield the objectives of the spec, each with its index among the metrics of the sweep."""
    values = set[str]()
    for index, metric in enumerate(sweep.metrics):
        value = quantity_of(metric.name)
        if value is not None and _mode_of(value) != metric.mode:
            sweep.leave_out(
                f"metric {metric.name}",
                f"{value} is always {_mode_of(value)}d here, and cannot be {metric.mode}d",
            )
            value = None
        if not index and (value is None or value in NETWORK_OBJECTIVES):
            value = _STAND_INS[metric.mode]
            described = metric.name or "the objective without a name"
            sweep.change(
                f"metric {metric.name}".strip(),
                f"{value} is monitored in place of {described}; results of prior trials count as "
                f"{value}"
                if sweep.trials
                else f"{value} is monitored in place of {described}",
            )
        elif value is None or value in values:
            sweep.leave_out(
                f"metric {metric.name or index}".strip(),
                "an objective is loss, accuracy, a metric of Keras, or one of "
                f"{', '.join(NETWORK_OBJECTIVES)}; add your own to train.metrics",
            )
            continue
        elif value != metric.name:
            sweep.change(f"metric {metric.name}", f"is {value}")
        values.add(value)
        yield index, FileObjective(value, metric.mode)


def quantity_of(name: str) -> str | None:
    """Return the quantity of a run that a metric of another tool evidently is.

    >>> [quantity_of(name) for name in ("val/acc", "validation_loss", "val_mae", "Train Loss")]
    ['val_accuracy', 'val_loss', 'val_mae', 'loss']
    >>> quantity_of("reward")
    """
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for prefix, replacement in _PREFIXES.items():
        if text.startswith(prefix):
            text = replacement + text.removeprefix(prefix)
            break
    text = re.sub(r"(?<![a-z])acc$", "accuracy", text)
    if text in SCORES or name in NETWORK_OBJECTIVES or direction_of(text) is not None:
        return text
    return None


def _metrics(objectives: Sequence[tuple[int, FileObjective]]) -> list[str]:
    """Return the metrics that a run has to compute for its objectives."""
    return [
        objective.value.removeprefix("val_")
        for _, objective in objectives
        if objective.value not in (*SCORES, *NETWORK_OBJECTIVES)
    ]


def _mode_of(value: str) -> Mode:
    if value in NETWORK_OBJECTIVES:
        return NETWORK_OBJECTIVES[value]
    return "maximize" if direction_of(value) == UP else "minimize"


# ---- prior trials --------------------------------------------------------------------------------


def _trials_file(
    sweep: Sweep, source: Path, objectives: Sequence[tuple[int, FileObjective]]
) -> TrialsFile | None:
    """Return the prior trials with the objectives of the spec."""
    if not objectives:
        sweep.leave_out("trials", "it is unknown what their results are")
        return None
    indices = [index for index, _ in objectives]
    trials: list[FileTrial] = [
        replace(trial, results=tuple(trial.results[index] for index in indices))
        for trial in sweep.trials
    ]
    return TrialsFile(
        tuple(objective for _, objective in objectives),
        tuple(trials),
        f"{sweep.kind} {source.name}",
    )


# ---- text ----------------------------------------------------------------------------------------


def spec_text(draft: SpecDraft, command: str) -> str:
    """Return the YAML of a spec, with comments about what is missing and what was changed."""
    sweep = draft.sweep
    paragraphs = [
        [f"Written by `{command}`, from: {sweep.kind} {sweep.name}".rstrip()],
        [f"Description: {sweep.description}"] if sweep.description else [],
        [
            "Add the data and the network:",
            "  data: {source: image_folder, path: FOLDER}",
            "  models: `family: NAME`, or `build: module:function` with those parameters of "
            "`space` and `args` that do not begin with train.",
        ],
        _section("Said in another way:", sweep.changed),
        _section("Not said:", sweep.left_out),
    ]
    lines = [line for paragraph in paragraphs for line in paragraph]
    comments = "\n".join(map(_comment, lines))
    return f"{comments}\n{dump_plain(draft.content)}"


def _section(heading: str, notes: Sequence[Any]) -> list[str]:
    return [heading, *(f"  {note}" for note in notes)] if notes else []


def _comment(line: str) -> str:
    """Return a line as a comment, wrapped and with characters that YAML accepts."""
    text = "".join(character if character.isprintable() else " " for character in line)
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        text.strip(),
        _WIDTH,
        initial_indent=f"# {indent}",
        subsequent_indent=f"# {indent}    ",
        break_on_hyphens=False,
    )
