"""Lay out the screen of a running launch for any size of terminal (pure).

From top to bottom: title, numbers of networks, the best network so far, and a table with a row per
network. If there is no room for all networks, networks in training come first, then the best and
the failed ones, and the last line says how many are not shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from fleet.domain.run import RunNetwork, RunState
from fleet.domain.run_launch import RunGroup
from fleet.storage.leaderboard import short_names
from fleet.storage.results import NetworkResult, Status, without_means
from fleet.terminal import brief
from fleet.units import format_duration
from launch.errors import pluralize

_ELLIPSIS = "…"
_BEST = "best: "
# Columns of a name that are kept free, before the first further columns are added, and the others.
_MIN_NAME = 12
_FAIR_NAME = 24
_FIRST_COLUMNS = ("loss", "time left")
_RULE_HEIGHT = 12  # a lower table has no rule below its header
_MAX_NAME = 32
_BAR = 10
_HEADS = 3  # best networks that come before failed ones
_STYLES = {
    "training": "bold",
    "failed": "red",
    "pruned": "dim",
    "waiting": "dim",
    "skipped": "dim",
}
_ALWAYS_COUNTED = ("done", "training", "waiting", "pruned", "failed")


@dataclass(frozen=True)
class Progress:
    """The progress of a network that is training.

    Attributes:
        part: share of the current epoch.
        samples_per_s: its current rate; 0 if it is unknown.
        left_s: the longest time until its last epoch ends; None before its first epoch has ended.
        devices: its devices, as text.
    """

    part: float
    samples_per_s: float
    left_s: float | None
    devices: str


def progress_of(network: RunNetwork, group: RunGroup, run: RunState) -> Progress:
    """Return the progress of a network that a group trains."""
    last = network.status.history[-1] if network.epochs else None
    part = 0.0
    samples_per_s = 0.0
    epoch_samples = 1
    if last is not None:
        samples_per_s = last.samples / max(last.seconds, 1e-9)
        epoch_samples = last.samples
    elif run.launch is not None:
        epoch_samples = run.launch.start.samples
    pace = group.samples_per_s  # read once: another thread clears it when the epoch ends
    if pace is not None:
        part = group.samples / max(epoch_samples, group.samples, 1)
        samples_per_s = pace
    if last is None:
        left_s = None
    else:
        left_s = (network.max_epochs - network.epochs - part) * last.seconds
    return Progress(part, samples_per_s, left_s, ",".join(map(str, group.devices)))


@dataclass(frozen=True)
class ScreenRow:
    """A network on the screen.

    Attributes:
        state: how it is now, in a word, such as ``done``.
        epochs: its epochs so far and at most.
        score: value that it is judged by; NaN if there is none.
        monitor: name of that value.
        best_epoch: the epoch with the best score; 0 without one.
        values: its hyperparameters, as text.
        reason: why it failed.
        progress: its progress; None unless it is training.
    """

    name: str
    state: str
    epochs: tuple[int, int]
    loss: float
    score: float
    monitor: str
    best_epoch: int
    values: str
    reason: str = ""
    progress: Progress | None = None


@dataclass(frozen=True)
class Screen:
    """All that the screen shows.

    Attributes:
        title: name of the run, time so far, and time left.
        rows: the networks, best first.
        device: the kind of devices, such as GPU.
    """

    title: str
    rows: Sequence[ScreenRow] = field(default_factory=tuple)
    device: str = "GPU"

    def lines(self, width: int, height: int, with_table: bool = True) -> list[Text]:
        """Return at most ``height`` lines, none wider than ``width`` columns.

        Args:
            width: columns of the terminal.
            height: lines that the screen may take.
            with_table: whether the rows of the networks follow.
        """
        head = [
            Text(cut(self.title, width), "bold"),
            *(Text(line) for line in self._count_lines(width)),
            *self._best_lines(width),
        ]
        table = self._table(width, height - len(head)) if with_table else []
        return [*head, *table][: max(height, 0)]

    def _count_lines(self, width: int) -> list[str]:
        """Say how many networks are in each state."""
        counts = Counter(row.state for row in self.rows)
        states = [*_ALWAYS_COUNTED, *(state for state in counts if state not in _ALWAYS_COUNTED)]
        parts = [f"{counts[state]} {state}" for state in states]
        parts[-1] += f" of {len(self.rows)}"
        return [cut(line, width) for line in wrap_parts(parts, width)]

    def _best_lines(self, width: int) -> list[Text]:
        """Name the best network with its score and hyperparameters; empty before the first."""
        best = next((row for row in self.rows if is_ranked(row)), None)
        if best is None:
            return []
        value = format_score(best.score, best.monitor)
        forms = [
            f" {short_monitor(best.monitor)} {value} in epoch {best.best_epoch}",
            f" {short_monitor(best.monitor)} {value}",
            f" {value}",
        ]
        room = width - len(_BEST)
        needed = min(cell_len(best.name), _MAX_NAME)
        score = next((form for form in forms if needed + cell_len(form) <= room), forms[-1])
        line = f"{_BEST}{cut_middle(best.name, max(room - cell_len(score), 3))}{score}"
        if not best.values:
            texts = [line]
        elif cell_len(f"{line}; {best.values}") <= width:
            texts = [f"{line}; {best.values}"]
        else:
            texts = [line, f"{' ' * len(_BEST)}{best.values}"]
        return [Text(cut(text, width), "green") for text in texts]

    def _table(self, width: int, height: int) -> list[Text]:
        """Return the table with at most ``height`` lines, and a line on what it leaves out."""
        rows = sorted(self.rows, key=_interest(self.rows))
        with_header = height >= 4
        room = height - with_header - (height >= _RULE_HEIGHT)
        if room < 1 or not rows:
            return []
        if len(rows) > room:
            visible = rows[: max(room - 1, 0)]
        else:
            visible = rows
        lines = _rows(visible, width, self.device, with_header, height >= _RULE_HEIGHT)
        omitted = Counter(row.state for row in rows[len(visible) :])
        if omitted:
            states = ", ".join(f"{count} {state}" for state, count in omitted.items())
            text = f"{pluralize(omitted.total(), 'network')} not shown: {states}"
            lines.append(Text(cut(text, width), "dim"))
        return lines


def make_rows(results: Sequence[NetworkResult], run: RunState) -> list[ScreenRow]:
    """Return the rows of a screen.

    Args:
        results: the table of results, best network first.
        run: the state of the run.
    """
    groups: Mapping[str, RunGroup] = {} if run.launch is None else dict(run.launch.groups)
    return [
        _make_row(result, network, groups.get(result.name), run)
        for result in without_means(results)
        if (network := run.networks.get(result.name)) is not None
    ]


def _make_row(
    result: NetworkResult, network: RunNetwork, group: RunGroup | None, run: RunState
) -> ScreenRow:
    monitor = monitor_of(network, result)
    progress = None
    if network.status.outcome is not None or group is None:
        state = _state(result.status)
    else:
        state = "training"
        progress = progress_of(network, group, run)
    names = short_names(list(result.drawn))
    values = ", ".join(
        f"{name} {brief(value)}" for name, value in zip(names, result.drawn.values(), strict=True)
    )
    return ScreenRow(
        result.name,
        state,
        (network.epochs, network.max_epochs),
        result.loss,
        result.value(monitor),
        monitor,
        result.best_epoch,
        " ".join(values.split()),
        " ".join(result.reason.split()) if state == "failed" else "",
        progress,
    )


def _state(status: Status) -> str:
    match status:
        case Status.FINISHED:
            return "done"
        case Status.TRAINING:  # it has epochs, and no devices now
            return "waiting"
    return str(status)


def monitor_of(network: RunNetwork, result: NetworkResult) -> str:
    """Return the name of the value by which a network is judged."""
    if network.monitor is not None:
        return network.monitor
    if not math.isnan(result.val_accuracy):
        return "val_accuracy"
    return "val_loss" if not math.isnan(result.val_loss) else "loss"


def is_ranked(row: ScreenRow) -> bool:
    """Return True if a network can be the best one."""
    return row.state != "failed" and not math.isnan(row.score)


def _interest(rows: Sequence[ScreenRow]) -> Callable[[ScreenRow], tuple[int, int]]:
    """Return a sort key: networks in training, the best, failures, and then all others."""
    ranks = {row.name: number for number, row in enumerate(rows)}
    ranked = [row.name for row in rows if is_ranked(row) and row.state != "training"]
    best = set(ranked[:_HEADS])

    def key(row: ScreenRow) -> tuple[int, int]:
        if row.state == "training":
            group = 0
        elif row.name in best:
            group = 1
        elif row.state == "failed":
            group = 2
        else:
            group = 3 if is_ranked(row) else 4
        return group, ranks[row.name]

    return key


# ---- the table ----------------------------------------------------------------------------------


def _rows(
    rows: Sequence[ScreenRow], width: int, device: str, with_header: bool, with_rule: bool
) -> list[Text]:
    """Return a header, a rule, and a line for each row."""
    monitors = {row.monitor for row in rows if is_ranked(row)} or {row.monitor for row in rows}
    score = short_monitor(monitors.pop()) if len(monitors) == 1 else "score"
    columns: dict[str, list[str]] = {
        "network": [row.name for row in rows],
        "": [_bar_or_state(row) for row in rows],
        "epochs": [f"{row.epochs[0]}/{row.epochs[1]}" for row in rows],
        score: [format_score(row.score, row.monitor) for row in rows],
    }
    further = {
        "loss": [_number(row.loss) for row in rows],
        "time left": [_time_left(row) for row in rows],
        f"{device}s": ["" if row.progress is None else row.progress.devices for row in rows],
        "samples/s": [_rate(row) for row in rows],
    }
    widths = {
        header: max(map(cell_len, (header if with_header else "", *cells)))
        for header, cells in (columns | further).items()
    }
    widths["network"] = min(widths["network"], _MAX_NAME)
    used = sum(widths[header] + 2 for header in columns if header != "network")
    if width - used < min(widths["network"], _MIN_NAME):
        used -= widths.pop("") + 2  # too narrow for bars
        columns.pop("")
    for header, cells in further.items():
        room = _MIN_NAME if header in _FIRST_COLUMNS else _FAIR_NAME
        if width - used - widths[header] - 2 >= min(widths["network"], room):
            columns[header] = cells
            used += widths[header] + 2
    widths["network"] = max(min(widths["network"], width - used), 1)
    columns["network"] = distinguishable(columns["network"], widths["network"])
    room = width - used - widths["network"] - 2
    lines = []
    if with_header:
        line = "  ".join(_aligned(header, widths[header], header) for header in columns)
        lines.append(Text(cut(line, width), "bold"))
        if with_rule:
            lines.append(Text("─" * min(width, cell_len(line)), "dim"))
    for number, row in enumerate(rows):
        line = "  ".join(
            _aligned(cells[number], widths[header], header) for header, cells in columns.items()
        )
        note = row.reason or row.values
        if row.reason and row.progress is None and "" in columns:
            # The reason of a failure is worth more than empty cells.
            line = line.rstrip()
            line += f"  {cut(row.reason, max(width - cell_len(line) - 2, 0))}"
        elif note and room >= _MIN_NAME:
            line += f"  {cut(note, room)}"
        lines.append(Text(cut(line.rstrip(), width), _STYLES.get(row.state, "")))
    return lines


def _aligned(text: str, width: int, header: str) -> str:
    """Fill a cell to its width; numbers are aligned to the right."""
    if header in ("network", ""):
        return set_cell_size(text, width)
    return " " * (width - cell_len(text)) + text


def _bar_or_state(row: ScreenRow) -> str:
    if row.progress is None:
        return row.state
    finished, max_epochs = row.epochs
    share = min((finished + row.progress.part) / max(max_epochs, 1), 1.0)
    full = round(share * _BAR)
    return "━" * full + "╌" * (_BAR - full)


def _time_left(row: ScreenRow) -> str:
    if row.progress is None or row.progress.left_s is None:
        return ""
    return format_duration(max(row.progress.left_s, 0.0))


def _rate(row: ScreenRow) -> str:
    if row.progress is None or not row.progress.samples_per_s:
        return ""
    return f"{row.progress.samples_per_s:.0f}"


def _number(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def short_monitor(monitor: str) -> str:
    """Shorten the name of a monitored value.

    >>> short_monitor("val_accuracy")
    'val acc'
    """
    return monitor.replace("accuracy", "acc").replace("_", " ")


def format_score(value: float, monitor: str) -> str:
    """Format a score: an accuracy in percent, others with four digits; empty if there is none."""
    if math.isnan(value):
        return ""
    if monitor in ("accuracy", "val_accuracy"):
        return f"{value:.2%}"
    return _number(value)


# ---- text of a width ----------------------------------------------------------------------------


def cut(text: str, width: int) -> str:
    """Cut the end of a text that is wider than a number of columns.

    >>> cut("softmax", 5), cut("数据集", 5)
    ('soft…', '数据…')
    """
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    return set_cell_size(text, width - 1).rstrip() + _ELLIPSIS


def cut_middle(text: str, width: int) -> str:
    """Cut the middle of a text that is wider than a number of columns; more of its end stays.

    >>> cut_middle("densenet-large-3", 9)
    'den…rge-3'
    """
    if cell_len(text) <= width:
        return text
    if width < 3:
        return cut(text, width)
    head = (width - 1) * 2 // 5
    return set_cell_size(text, head).rstrip() + _ELLIPSIS + _end(text, width - 1 - head)


def _end(text: str, width: int) -> str:
    """Return the end of a text, at most a number of columns wide."""
    start = len(text)
    while start and cell_len(text[start - 1 :]) <= width:
        start -= 1
    return text[start:]


def distinguishable(names: Sequence[str], width: int) -> list[str]:
    """Cut names to a width so that they still differ, as far as the width allows.

    What all long names have in common at their beginning is cut first.

    >>> distinguishable(["experiment-small-1", "experiment-large-2"], 12)
    ['expe…small-1', 'expe…large-2']
    """
    wide = list(dict.fromkeys(name for name in names if cell_len(name) > width))
    common = _common_prefix(wide) if len(wide) > 1 else ""
    short = {name: _cut_after(name, common, width) for name in wide}
    results = [short.get(name, name) for name in names]
    counts = Counter(dict(zip(names, results, strict=True)).values())
    numbers: Counter[str] = Counter()
    for index, result in enumerate(results):
        if counts[result] > 1 and names[index] in short:
            numbers[result] += 1
            suffix = f"~{numbers[result]}"
            results[index] = cut(result, max(width - len(suffix), 0)) + suffix
    return results


def _cut_after(name: str, common: str, width: int) -> str:
    """Shorten the common prefix of a name; if that is not enough, its middle, too."""
    ending = name[len(common) :]
    head = width - 1 - cell_len(ending)
    if not common or head < 1:
        return cut_middle(name if not common else _ELLIPSIS + ending, width)
    return set_cell_size(common, head).rstrip() + _ELLIPSIS + ending


def _common_prefix(names: Sequence[str]) -> str:
    low = min(names)
    high = max(names)
    length = next(
        (index for index, letter in enumerate(low) if letter != high[index : index + 1]), len(low)
    )
    return low[:length]


def wrap_parts(parts: Sequence[str], width: int, separator: str = ", ") -> list[str]:
    """Join parts in as many lines as their width needs; a part that is too wide is not cut.

    >>> wrap_parts(["3 done", "2 training", "0 failed"], 18)
    ['3 done, 2 training', '0 failed']
    """
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{separator}{part}" if lines else part
        if lines and cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines
