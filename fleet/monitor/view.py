"""What a person sees of a run while it goes on: a live table on a terminal, plain lines in a batch log."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from fleet.domain import events as ev
from fleet.domain.events.search import USER
from fleet.domain.network import EpochRecord
from fleet.domain.run import RunGroup, RunNetwork, RunState
from fleet.monitor.html import html_table
from fleet.monitor.progress import EpochPart, Progress
from fleet.storage.files import STDOUT, storage_errors, with_retries
from fleet.terminal import brief, terminal, terminal_width
from fleet.units import format_duration, pluralize
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.sharing import useful_networks_per_gpu


class PlainView:
    """A line for each thing that happens, and now and then how far long epochs are; what a batch log wants.

    Args:
        run: as it is by its events; it has taken in each before that is told here.
        clock: seconds, from any origin; a test may give its own.
    """

    def __init__(
        self, run: RunState, out: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._out = out or sys.stdout
        self._clock = clock
        self._start = clock()
        # Open MPI gives a rank a terminal. That one has gone says EIO, as a disk does, but for good.
        self._patience_s = 0.0 if self._out.isatty() else None
        self._progress = Progress(run)

    def on_event(self, event: ev.Event) -> None:
        """Say what happened."""
        if isinstance(event, ev.GroupStarted | ev.EpochEnded):
            self._progress.mark_reported(event.network, self._clock() - self._start)
        self._print(format_event(event, self._run))

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Say how far it is, but seldom."""
        self._print(
            self._progress.make_line(network, samples, samples_per_s, self._clock() - self._start)
        )

    def _print(self, line: str) -> None:
        if line:
            line = f"[{format_duration(self._clock() - self._start):>12}] {line}\n"

            def write() -> None:
                nonlocal line
                with storage_errors(STDOUT):
                    # what cannot be flushed is kept, and flushed the next time
                    unsaid = line
                    line = ""
                    self._out.write(unsaid)
                    self._out.flush()

            with_retries(write, self._patience_s)

    def close(self) -> None:
        """Nothing is held."""


def format_event(event: ev.Event, run: RunState) -> str:
    """An event in a line, or nothing where it is not worth one; what holds for all of a launch is said only once.

    Args:
        run: which has taken in the event.
    """
    launch = run.launch
    if (
        isinstance(event, ev.RateMismatch)
        and event.corrected
        and launch is not None
        and launch.corrected > 1
    ):
        return ""
    if isinstance(event, ev.EpochEnded):
        most = {event.network: run.networks[event.network].max_epochs}
    else:
        most = {}
    return describe_event(event, most, "GPU" if launch is None else launch.start.device)


def describe_event(event: ev.Event, max_epochs: Mapping[str, int], device: str = "GPU") -> str:
    """An event in a line, or nothing where it is not worth one.

    Args:
        device: what networks are trained on, in a word.
    """
    match event:
        case ev.LaunchStarted():
            if event.finished:
                done = f", {len(event.finished)} of them done before"
            else:
                done = ""
            return (
                f"{pluralize(event.networks, 'network')}{done}; {pluralize(event.trainers, 'trainer')}, "
                f"{pluralize(event.preprocessors, 'preprocessor')} on {pluralize(event.nodes, 'node')}; "
                f"policy {event.policy}"
            )
        case ev.CachedRatesUsed():
            return _describe_remembered(event)
        case ev.RateMeasured():
            spread = f" ± {event.spread:.0%}" if event.spread else ""
            result = event.reason or f"{event.rate:.0f} samples/s{spread}"
            return f"measured {event.done}/{event.total}: {event.network} on {pluralize(event.gpus, device)}: {result}"
        case ev.ProfilingFinished():
            return "rates known" + (
                f" after {format_duration(event.seconds)}"
                if event.measurements
                else ", measured before"
            )
        case ev.TrainersReady():
            return "all trainers are ready"
        case ev.CacheChosen():
            return event.summary
        case ev.StreamStarted():
            return _describe_stream(event)
        case ev.RoundStarted():
            return f"round {event.round}: {', '.join(event.members)}"
        case ev.TimeLeftEstimated():
            return f"ETA: {format_eta(event)}"
        case ev.GroupStarted():
            return f"  {event.network} on devices {list(event.devices)}"
        case ev.GroupChanged():
            return (
                f"  {event.network} on devices {list(event.devices)} instead of {list(event.before)}, after "
                f"{format_duration(event.seconds)}"
            )
        case ev.EpochEnded():
            return _describe_epoch(event, max_epochs[event.network])
        case ev.NetworkFinished():
            return f"{event.network} is done: {event.reason}"
        case ev.NetworkLeased():
            return f"{event.network} is trained here from now on, after {pluralize(event.epochs, 'epoch')}"
        case ev.NetworkTested():
            return (
                f"{event.network} on the test data: loss {event.loss:.4f}{_share(event.accuracy)}"
                + "".join(
                    f", {name} {value:.4g}"
                    for name, value in event.metrics.items()
                    if value is not None
                )
            )
        case ev.NetworkAdded() if not event.wrong:
            values = ", ".join(f"{name} {brief(value)}" for name, value in event.values.items())
            parent = f" from {event.parent}" if event.parent else ""
            return f"{event.network} is new{parent}" + (f": {values}" if values else "")
        case ev.NetworkVerdict():
            return _describe_judged(event)
        case ev.LaunchInterrupted():
            if event.replay:
                return f"{event.reason}: stopping; a replay cannot be resumed, the same command starts it over"
            return f"{event.reason}: finishing the step, saving, and stopping; the same command resumes it"
        case _:
            return _describe_trouble(event, device)


def _describe_judged(event: ev.NetworkVerdict) -> str:
    done = {"pause": "is paused", "stop": "is pruned", "go_on": "goes on"}[event.verdict]
    when = pluralize(event.epochs, "epoch")
    if event.by == (USER,) and event.verdict != "go_on":
        when += ", or the one that it is in"  # commands come at any time
    return f"{event.network} {done} after {when}: {' and '.join(event.by)}"


def format_eta(estimated: ev.TimeLeftEstimated) -> str:
    """How long a run will go on, as a range."""
    low = format_duration(estimated.low_s)
    high = format_duration(estimated.high_s)
    if low != high:
        return f"{low} to {high}"
    return high


def _describe_remembered(event: ev.CachedRatesUsed) -> str:
    """Whose rates are used, how old they are, and how to be rid of them."""
    rates = [rate for found in event.rates.values() for rate in found]
    ages = sorted(rate.age_s for rate in rates)
    age = " to ".join(dict.fromkeys([_age(ages[0]), _age(ages[-1])]))
    hosts = ", ".join(sorted({rate.machine.partition(":")[0] for rate in rates}))
    return (
        f"rates of {pluralize(len(event.rates), 'network')} found out {age} ago on {hosts}, spread up to "
        f"{max(rate.spread for rate in rates):.0%}: {event.cache}; --remeasure measures them anew"
    )


def _age(seconds: float) -> str:
    if seconds < 2 * 86400:
        return format_duration(seconds)
    return f"{seconds // 86400:.0f} days"


def _describe_trouble(event: ev.Event, device: str) -> str:
    match event:
        case ev.RateMismatch():
            if event.corrected:
                kept = (
                    "the cache of rates has the new rate now, and later runs go by it; this launch corrects other "
                    "wrong rates there without a message"
                )
            else:
                kept = "correct schedule.rates"
            return (
                f"WARNING: {event.network} on {pluralize(event.gpus, device)} trains {event.rate:.0f} samples/s, "
                f"and was taken to train {event.expected:.0f}: {kept}"
            )
        case ev.NetworkFailed():
            return f"{event.network} FAILED: {event.reason}"
        case ev.NetworkRetried(alone=True):
            return f"{event.network} failed: {event.reason}; it trained beside others, and is tried again alone"
        case ev.NetworkRetried():
            return (
                f"{event.network} failed: {event.reason}; this may pass: retry {event.retry} of "
                f"{event.retries}"
            )
        case ev.NetworkRolledBack():
            if event.finished:
                return f"WARNING: {event.network} stays finished: {event.damage}; its best epoch is whole"
            if event.epochs or event.position:
                goes_on = f"goes on after epoch {event.epochs}"
            else:
                goes_on = "starts over"
            return f"WARNING: {event.network} {goes_on}: {event.damage}"
        case ev.NetworkWarned():
            return f"WARNING: {event.network}: {event.warning}"
        case ev.ChangesAccepted():
            return f"{event.network} goes on after epoch {event.epochs} with changed {' '.join(event.files)}"
        case ev.BestCheckpointDamaged():
            return f"WARNING: {event.network}: {event.damage}"
        case ev.GroupFailed():
            where = f"epoch {event.epochs}" + (
                f", sample {event.position}" if event.position else ""
            )
            return (
                f"{event.network} lost a rank, and goes back to its last checkpoint: after {where}"
            )
        case _:
            return _describe_trouble_around(event)


def _describe_trouble_around(event: ev.Event) -> str:
    """What is of no one network: of the data, the searches, the ranks and the launch."""
    match event:
        case ev.TooLateToStart():
            return (
                f"too late to start {', '.join(event.networks)}: {format_duration(event.left_s)} are left, "
                f"but a group has taken {format_duration(event.needed_s)} to start"
            )
        case ev.SharingLearned():
            return _describe_sharing(event)
        case ev.SupplyChanged():
            return event.summary
        case ev.DataChanged():
            return f"the data has changed, and networks go on with it: {'; '.join(event.changes)}"
        case ev.SearcherFailed():
            return f"WARNING: the searcher of {event.entry} is not called again: {event.reason}"
        case ev.TrackerFailed():
            return (
                f"WARNING: track: {event.tracker} is not written, and the run goes on without it: {event.reason}; "
                "fleet export writes the same later"
            )
        case ev.SearcherStarted(changed=changed) if changed:
            return f"the search of {event.entry} goes on with other settings: {changed}"
        case ev.EarlierRunRead():
            return event.summary
        case ev.ReplayDiffered():
            return f"WARNING: {event.entry}: {event.difference}; what was logged holds"
        case ev.RankDied():
            return f"rank {event.rank} has died; the others go on"
        case ev.CommandReceived(do="yield"):
            hosts = ", ".join(map(str, event.given.get("hosts", ())))
            return f"asked for: {hosts}, within {event.given.get('within_s')} s"
        case ev.NodesReleased():
            became = "end" if event.has_ended else "wait for the end of the launch"
            return f"given back after {event.seconds:.1f} s: {', '.join(event.hosts)}; the processes there {became}"
        case ev.SampleSkipped():
            return f"skipped {event.name}: {event.reason}"
        case _:
            return ""


def _describe_epoch(event: ev.EpochEnded, max_epochs: int) -> str:
    record = event.record
    if math.isnan(record.val_loss):
        judged = ""
    else:
        judged = f", validation {record.val_loss:.4f}{_share(record.val_accuracy)}"
    judged += "".join(
        f", {name} {record.value(name):.4g}"
        for name in record.metrics
        if name.startswith("val_") or f"val_{name}" not in record.metrics
    )
    return (
        f"{event.network} epoch {record.epoch}/{max_epochs}: loss {record.loss:.4f}{_share(record.accuracy)}"
        f"{judged} ({record.samples / max(record.seconds, 1e-9):.0f} samples/s)"
    )


def _share(accuracy: float) -> str:
    """An accuracy behind a loss; nothing of targets that are no classes."""
    if math.isnan(accuracy):
        return ""
    return f" {accuracy:.2%}"


def _describe_stream(event: ev.StreamStarted) -> str:
    """Whether input or training is the bottleneck, and what to change."""
    supply = f"input {event.supply_samples_per_s:.0f} samples/s by {pluralize(event.preprocessors, 'preprocessor')}"
    if event.bottleneck:
        rates = f"{supply}, the fastest network takes {event.demand_samples_per_s:.0f}: "
    else:
        rates = f"{supply}: "
    if event.kept:
        return rates + "decoded in the first epoch, kept from then on"
    if not event.bottleneck:
        return rates + "training will show how much networks take"
    if event.bottleneck == "input":
        return rates + (
            "input is the bottleneck (more preprocessors: start more ranks, raise resources.preprocessors; "
            "or decode once: data.cache: memory, or file)"
        )
    spare = event.of - event.preprocessors
    if spare:
        advice = f" ({pluralize(spare, 'preprocessor')} of {event.of} could train instead)"
    else:
        advice = ""
    policy = POLICIES.get(event.policy)
    if policy is not None and policy.own_pace and event.pace == "shared":
        advice += (
            f"; {policy.name} is faster where networks go at their own pace: data.cache: memory, or "
            "data.order: ring"
        )
    return f"{rates}training is the bottleneck{advice}"


def _describe_sharing(event: ev.SharingLearned) -> str:
    """How many networks pay on one GPU, and what to do where more than may share one would, or might."""
    told = describe_sharing(event.speedups, event.device)
    if not event.bound:
        return told
    is_tried = useful_networks_per_gpu(event.speedups) == event.slots
    if is_tried:
        more = "more may pay"
    else:
        more = f"this run has {pluralize(event.slots, 'slot')} on each {event.device}"
    if event.bound == "per_device":
        raised = "raise resources.networks_per_gpu, and "
    else:
        raised = ""
    return f"{told}; {more}: {raised}start more ranks"


def describe_sharing(speedups: Sequence[float], device: str = "GPU") -> str:
    """How many networks pay on one device, in a line.

    Args:
        device: what they share.

    >>> describe_sharing((1.0, 1.6, 1.61))
    '2 networks on one GPU train 1.6 times as much as one, 3 networks 1.61 times: 2 pay'
    """
    count = useful_networks_per_gpu(speedups)
    parts = [
        f"{pluralize(number, 'network')} {speedup:.3g} times"
        for number, speedup in enumerate(speedups, 1)
    ][1:]
    if not parts:
        return f"it is not known how much networks train together that share a {device}"
    parts[0] = (
        parts[0].replace(" networks ", f" networks on one {device} train ") + " as much as one"
    )
    return f"{', '.join(parts)}: {count} {'pays' if count == 1 else 'pay'}"


# What the live table itself shows, or is over in a moment; the lines of all else stay on the screen above it.
_PASSING = (
    ev.RateMeasured,
    ev.TrainersReady,
    ev.RoundStarted,
    ev.TimeLeftEstimated,
    ev.GroupStarted,
    ev.GroupChanged,
    ev.EpochEnded,
    ev.NetworkLeased,
    ev.CommandReceived,
)


def _format(number: float, form: str) -> str:
    if math.isnan(number):
        return ""
    return form.format(number)


class LiveTable:
    """What networks that train are doing, as a table of rich.

    Args:
        run: as it is by its events; it has taken in each before that is told here.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._paces: dict[str, EpochPart] = {}
        self._title = "starting: loading the engine takes some seconds"
        self._start = time.monotonic()
        self._eta: ev.TimeLeftEstimated | None = None
        self._eta_at = 0.0

    def on_event(self, event: ev.Event) -> None:
        """Change the table."""
        match event:
            case ev.RateMeasured():
                self._title = format_event(event, self._run)
            case ev.RoundStarted():
                self._title = f"round {event.round}"
            case ev.TimeLeftEstimated():
                self._eta, self._eta_at = event, time.monotonic()

    def on_pace(self, network: str, samples: int, samples_per_s: float) -> None:
        """Move a network's bar."""
        known = self._run.networks.get(network)
        if known is not None and known.group is not None:
            self._paces[network] = EpochPart(samples, samples_per_s, known.epochs, known.group)

    def _format_time_left(self) -> str:
        """The latest estimate, less what has passed since then."""
        if self._eta is None:
            return ""
        passed = time.monotonic() - self._eta_at
        return "; ETA " + format_eta(
            dataclasses.replace(
                self._eta,
                low_s=max(0.0, self._eta.low_s - passed),
                high_s=max(0.0, self._eta.high_s - passed),
            )
        )

    def table(self) -> Any:
        """How it stands at this moment."""
        from rich import box
        from rich.table import Table

        table = Table(
            title=f"{self._title}, {format_duration(time.monotonic() - self._start)}{self._format_time_left()}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for header in (
            "network",
            "devices",
            "epochs",
            "",
            "loss",
            "val acc",
            "samples/s",
            "at most",
        ):
            table.add_column(header)
        groups = {} if self._run.launch is None else dict(self._run.launch.groups)
        for name in sorted(groups, key=lambda name: self._run.networks[name].number):
            network = self._run.networks[name]
            if network.status.outcome is None:
                table.add_row(name, *self._cells(name, network, groups[name]))
        return table

    def _cells(self, name: str, network: RunNetwork, group: RunGroup) -> list[Any]:
        """What the table shows of a network that trains."""
        from rich.progress_bar import ProgressBar

        epochs = network.epochs
        most = network.max_epochs
        last = network.status.history[-1] if epochs else None
        part = 0.0
        if last is None:
            samples_per_s = 0.0
        else:
            samples_per_s = last.samples / max(last.seconds, 1e-9)
        pace = self._paces.get(name)
        if pace is not None and pace.is_current(network):
            part = pace.samples / max(self._samples(last), pace.samples)
            samples_per_s = pace.samples_per_s
        left = math.nan if last is None else (most - epochs - part) * last.seconds
        return [
            ",".join(map(str, group.devices)),
            f"{epochs}/{most}",
            ProgressBar(total=most, completed=epochs + part, width=20),
            "" if last is None else _format(last.loss, "{:.4f}"),
            "" if last is None else _format(last.val_accuracy, "{:.2%}"),
            f"{samples_per_s:.0f}",
            "" if math.isnan(left) else format_duration(left),
        ]

    def _samples(self, last: EpochRecord | None) -> int:
        """The samples of an epoch."""
        launch = self._run.launch
        return max(
            last.samples if last is not None else 1 if launch is None else launch.start.samples, 1
        )


class LiveView(LiveTable):
    """A table that is drawn anew a few times a second; the lines above it scroll away.

    Another thread draws it, from what is known of the run at that moment.
    """

    def __init__(self, run: RunState, screen: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(run)
        console = Console(file=screen, force_terminal=True, width=terminal_width(screen))
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=4)
        self._live.start()

    def on_event(self, event: ev.Event) -> None:
        """Change the table; what should stay on the screen is printed above it."""
        if not isinstance(event, _PASSING) and (line := format_event(event, self._run)):
            self._live.console.print(line, highlight=False)
        super().on_event(event)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self._live.stop()


class NotebookView(LiveTable):
    """A table in a cell of a notebook; at last the results, the best network first.

    Args:
        place: where it stands, of :meth:`make_display`.
    """

    def __init__(self, run: RunState, place: Any) -> None:
        super().__init__(run)
        self._display = place
        self._drawn_at = time.monotonic()

    @staticmethod
    def is_notebook() -> bool:
        """Whether this process is the kernel of a notebook."""
        shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
        return hasattr(shell, "kernel")

    @staticmethod
    def make_display() -> Any:
        """A place for a table in the cell that is at work."""
        from IPython.display import display

        return display({"text/plain": "starting"}, raw=True, display_id=True)

    def draw(self) -> None:
        """Show how it stands, once a second."""
        if time.monotonic() - self._drawn_at >= 1:
            self._display.update(self.table())
            self._drawn_at = time.monotonic()

    def finish(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Leave the table of results in the cell."""
        self._display.update(
            {"text/html": html_table(headers, rows), "text/plain": "the results"}, raw=True
        )


def make_view(run: RunState, plain: bool) -> PlainView | LiveView:
    """The view that fits where the output goes.

    Args:
        run: as it is by its events.
    """
    screen = None if plain else terminal()
    if screen is None:
        return PlainView(run)
    return LiveView(run, screen)
