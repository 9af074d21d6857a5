"""What a person sees of a run while it goes on: a live table on a terminal, plain lines in a batch log."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from fleet.spec import Spec
from fleet.storage.files import STDOUT, storing
from fleet.terminal import terminal, terminal_width
from fleet.units import counted, format_duration


class PlainView:
    """A line for each thing that happens; what a batch log wants."""

    def __init__(self, spec: Spec, out: IO[str] | None = None) -> None:
        self._out, self._start = out or sys.stdout, time.monotonic()
        self._max_epochs = {network.name: network.train.converge.max_epochs for network in spec.networks}

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Say what happened."""
        line = describe(event, fields, self._max_epochs)
        if line:
            with storing(STDOUT):
                print(f"[{format_duration(time.monotonic() - self._start):>12}] {line}", file=self._out, flush=True)

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Too often for a log."""

    def close(self) -> None:
        """Nothing is held."""


def describe(event: str, fields: dict[str, Any], max_epochs: dict[str, int]) -> str:
    """An event in a line, or nothing where it is not worth one."""
    match event:
        case "start":
            done = f", {len(fields['finished'])} of them done before" if fields["finished"] else ""
            return (f"{counted(fields['networks'], 'network')}{done}; {counted(fields['trainers'], 'trainer')}, "
                    f"{counted(fields['preprocessors'], 'preprocessor')} on {counted(fields['nodes'], 'node')}; "
                    f"policy {fields['policy']}")
        case "measured":
            result = fields.get("reason") or f"{fields['rate']:.0f} samples/s"
            return (f"measured {fields['done']}/{fields['total']}: {fields['network']} on "
                    f"{counted(fields['gpus'], 'GPU')}: {result}")
        case "profiled":
            after = f" after {format_duration(fields['seconds'])}" if fields["measurements"] else ", measured before"
            return f"rates known{after}"
        case "stream":
            return describe_stream(fields)
        case "round":
            return f"round {fields['round']}: {', '.join(fields['members'])}"
        case "group":
            return f"  {fields['network']} on devices {fields['devices']}"
        case "regroup":
            return (f"  {fields['network']} on devices {fields['devices']} instead of {fields['before']}, after "
                    f"{format_duration(fields['seconds'])}")
        case "epoch":
            judged = "" if fields["val_loss"] != fields["val_loss"] else (
                f", validation {fields['val_loss']:.4f} {fields['val_accuracy']:.2%}")
            rate = fields["samples"] / max(fields["seconds"], 1e-9)
            return (f"{fields['network']} epoch {fields['epoch']}/{max_epochs[fields['network']]}: "
                    f"loss {fields['loss']:.4f} {fields['accuracy']:.2%}{judged} ({rate:.0f} samples/s)")
        case "final":
            return f"{fields['network']} is done: {fields['reason']}"
        case "failed":
            return f"{fields['network']} FAILED: {fields['reason']}"
        case "too_late":
            return (f"too late to start {', '.join(fields['networks'])}: {format_duration(fields['left_s'])} are left, "
                    f"and a group has taken {format_duration(fields['needed_s'])} to start")
        case "retry":
            return (f"{fields['network']} failed: {fields['reason']}; that may pass: retry {fields['retry']} of "
                    f"{fields['retries']}")
        case "fell_back":
            is_left = fields["epochs"] or fields["position"]
            goes_on = f"goes on after epoch {fields['epochs']}" if is_left else "starts over"
            return f"WARNING: {fields['network']} {goes_on}: {fields['damage']}"
        case "best_lost":
            return f"WARNING: {fields['network']}: {fields['damage']}"
        case "interrupted":
            if fields["replay"]:
                return f"{fields['reason']}: stopping; a replay does not go on, the same command starts it over"
            return f"{fields['reason']}: finishing the step, saving, and stopping; the same command goes on"
        case "lost":
            return f"rank {fields['rank']} has died; the others go on"
        case "struck":
            where = f"epoch {fields['epochs']}" + (f", sample {fields['position']}" if fields["position"] else "")
            return f"{fields['network']} lost a rank, and goes back to its last checkpoint: after {where}"
        case "bad_sample":
            return f"skipped {fields['name']}: {fields['reason']}"
        case _:
            return ""


def describe_stream(fields: dict[str, Any]) -> str:
    """Whether input or training is the bottleneck, and what to change."""
    rates = (f"input {fields['supply_samples_per_s']:.0f} samples/s by "
             f"{counted(fields['preprocessors'], 'preprocessor')}, the fastest network takes "
             f"{fields['demand_samples_per_s']:.0f}: ")
    if fields["kept"]:
        return rates + "decoded in the first epoch, kept from then on"
    if fields["bottleneck"] == "input":
        return rates + ("input is the bottleneck (more preprocessors: start more ranks, raise resources.preprocessors; "
                        "or decode once: data.cache: memory, or file)")
    spare = fields["of"] - fields["preprocessors"]
    advice = f" ({counted(spare, 'preprocessor')} of {fields['of']} could train instead)" if spare else ""
    if fields["policy"] == "adaptive" and fields["pace"] == "shared":
        advice += "; adaptive is faster where networks go at their own pace: data.cache: memory, or data.order: ring"
    return f"{rates}training is the bottleneck{advice}"


# What stays on the screen above the live table.
_STAYING = {"start", "profiled", "stream", "final", "failed", "too_late", "retry", "fell_back", "best_lost", "lost",
            "struck", "interrupted", "bad_sample"}


@dataclass(frozen=True)
class _Row:
    """What the table shows of a network; it is replaced whole, for another thread draws the table.

    Attributes:
        devices: that train it; none while it is not shown.
        part: of the epoch after ``epoch``.
    """

    most: int
    epoch: int
    devices: tuple[int, ...] = ()
    part: float = 0.0
    rate: float = 0.0
    loss: float = math.nan
    val: float = math.nan
    epoch_s: float = math.nan

    def cells(self) -> list[str]:
        """The text of it, without the bar."""
        left = (self.most - self.epoch - self.part) * self.epoch_s
        return [",".join(map(str, self.devices)), f"{self.epoch}/{self.most}", _shown(self.loss, "{:.4f}"),
                _shown(self.val, "{:.2%}"), f"{self.rate:.0f}", "" if math.isnan(left) else format_duration(left)]


def _shown(number: float, form: str) -> str:
    return "" if math.isnan(number) else form.format(number)


class LiveView:
    """A table that is drawn anew a few times a second; the lines above it scroll away.

    Args:
        epochs: that networks have trained in earlier launches.
    """

    def __init__(self, spec: Spec, screen: IO[str], epochs: Mapping[str, int]) -> None:
        from rich.console import Console
        from rich.live import Live

        # Of all networks from the beginning, so that the table never changes its size while it is drawn.
        self._rows = {network.name: _Row(network.train.converge.max_epochs, epochs.get(network.name, 0))
                      for network in spec.networks}
        self._title = "starting: TensorFlow takes some seconds"
        self._samples, self._start = 1, time.monotonic()
        console = Console(file=screen, force_terminal=True, width=terminal_width(screen))
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4)
        self._live.start()

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Change the table; what should stay on the screen is printed above it."""
        max_epochs = {name: row.most for name, row in self._rows.items()}
        if event in _STAYING:
            self._live.console.print(describe(event, fields, max_epochs), highlight=False)
        elif event == "measured":
            self._title = describe(event, fields, max_epochs)
        elif event == "round":
            self._title = f"round {fields['round']}"
        elif event == "group":
            self._change(fields["network"], devices=tuple(fields["devices"]), rate=0.0, part=0.0)
        elif event == "regroup":
            self._change(fields["network"], devices=tuple(fields["devices"]))
        elif event == "epoch":
            self._change(fields["network"], epoch=fields["epoch"], part=0.0, loss=fields["loss"],
                         val=fields["val_accuracy"], rate=fields["samples"] / max(fields["seconds"], 1e-9),
                         epoch_s=fields["seconds"])
            self._samples = max(fields["samples"], 1)
        if event in ("fell_back", "struck"):
            self._change(fields["network"], epoch=fields["epochs"])
        if event in ("final", "failed", "retry", "stopped", "struck"):
            self._change(fields["network"], devices=())

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Move a network's bar."""
        if network in self._rows:
            self._change(network, part=samples / max(self._samples, samples), rate=samples_per_s)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self._live.stop()

    def _change(self, network: str, **values: Any) -> None:
        self._rows[network] = dataclasses.replace(self._rows[network], **values)

    def _table(self) -> Any:
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(title=f"{self._title}, {format_duration(time.monotonic() - self._start)}",
                      title_justify="left", box=box.SIMPLE_HEAD)
        for header in ("network", "devices", "epochs", "", "loss", "val acc", "samples/s", "at most"):
            table.add_column(header)
        for name, row in self._rows.items():
            if row.devices:
                devices, epochs, *more = row.cells()
                table.add_row(name, devices, epochs,
                              ProgressBar(total=row.most, completed=row.epoch + row.part, width=20), *more)
        return table


def make_view(spec: Spec, plain: bool, epochs: Mapping[str, int]) -> PlainView | LiveView:
    """The view that fits where the output goes.

    Args:
        epochs: that networks have trained in earlier launches.
    """
    screen = None if plain else terminal()
    return PlainView(spec) if screen is None else LiveView(spec, screen, epochs)
