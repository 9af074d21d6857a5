"""Views of a run while it goes on: a live table in a terminal, plain lines in a batch log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from fleet.domain import events as ev
from fleet.domain.events.search import USER
from fleet.domain.run import RunNetwork, RunState
from fleet.domain.run_launch import RunGroup
from fleet.monitor.html_parts import html_table
from fleet.monitor.live_screen import progress_of
from fleet.monitor.progress import Progress
from fleet.storage.files import STDOUT, storage_errors, with_retries
from fleet.terminal import brief
from fleet.units import format_duration
from launch.errors import pluralize
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.sharing import useful_networks_per_gpu


class PlainView:
    """A line for each event, and the progress within long epochs at intervals, for batch logs.

    Args:
        run: the state of the run, which has already applied each event passed here.
        out: where to print; standard output by default.
        clock: seconds since any origin; a test may replace it.
    """

    def __init__(
        self, run: RunState, out: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._out = out or sys.stdout
        self._clock = clock
        self._start = clock()
        # Open MPI gives a rank a terminal. If it is closed, writes fail with EIO permanently.
        self._patience_s = 0.0 if self._out.isatty() else None
        self._progress = Progress(run)

    def on_event(self, event: ev.Event) -> None:
        """Print a line about an event."""
        if isinstance(event, ev.GroupStarted | ev.EpochEnded):
            self._progress.mark_reported(event.network, self._clock() - self._start)
        self._print(format_event(event, self._run))

    def on_pace(self) -> None:
        """Print the progress of networks, at intervals."""
        self._print(self._progress.make_line(self._clock() - self._start))

    def _print(self, line: str) -> None:
        if line:
            line = f"[{format_duration(self._clock() - self._start):>12}] {line}\n"

            def write() -> None:
                nonlocal line
                with storage_errors(STDOUT):
                    # Output that cannot be flushed stays in the buffer until the next time.
                    pending = line
                    line = ""
                    self._out.write(pending)
                    self._out.flush()

            with_retries(write, self._patience_s)

    def close(self) -> None:
        """Do nothing; there is nothing to release."""


def format_event(event: ev.Event, run: RunState) -> str:
    """Format an event as a line; return "" if it needs none, or repeats one of this launch.

    Args:
        event: the event.
        run: the state of the run, which has already applied the event.
    """
    launch = run.launch
    if (
        isinstance(event, ev.RateMismatch)
        and event.corrected
        and launch is not None
        and launch.corrected > 1
    ):
        return ""
    device = "GPU" if launch is None else launch.start.device
    match event:
        case ev.LaunchStarted():
            if event.finished:
                done = f", {len(event.finished)} of them already finished"
            else:
                done = ""
            trainers = pluralize(event.trainers // event.fused, "trainer")
            if event.fused > 1:
                trainers += f" of up to {event.fused} networks each"
            return (
                f"{pluralize(event.networks, 'network')}{done}; {trainers}, "
                f"{pluralize(event.preprocessors, 'preprocessor')} on "
                f"{pluralize(event.nodes, 'node')}; "
                f"policy {event.policy}"
            )
        case ev.CachedRatesUsed():
            return _describe_cached_rates(event)
        case ev.RateMeasured():
            spread = f" ± {event.spread:.0%}" if event.spread else ""
            result = event.reason or f"{event.rate:.0f} samples/s{spread}"
            return (
                f"measured {event.done}/{event.total}: {event.network} on "
                f"{pluralize(event.gpus, device)}: {result}"
            )
        case ev.ProfilingFinished():
            if event.measurements:
                return f"rates are known after {format_duration(event.seconds)}"
            return "rates are known from earlier measurements"
        case ev.TrainersReady():
            return "all trainers are ready"
        case ev.CacheChosen() | ev.SupplyChanged() | ev.EarlierRunRead():
            return event.summary
        case ev.StreamStarted():
            return _describe_stream(event)
        case ev.RoundStarted():
            return f"round {event.round}: {', '.join(event.members)}"
        case ev.TimeLeftEstimated():
            return f"ETA: {_format_eta(event.low_s, event.high_s)}"
        case ev.GroupStarted():
            return f"  {event.network} on devices {list(event.devices)}"
        case ev.GroupChanged():
            return (
                f"  {event.network} on devices {list(event.devices)} instead of "
                f"{list(event.before)}, after "
                f"{format_duration(event.seconds)}"
            )
        case ev.EpochEnded():
            return _describe_epoch(event, run.networks[event.network].max_epochs)
        case ev.NetworkFinished():
            return f"{event.network} has finished: {event.reason}"
        case ev.NetworkLeased():
            return (
                f"{event.network} continues in this launch after {pluralize(event.epochs, 'epoch')}"
            )
        case ev.NetworkTested():
            return (
                f"{event.network} on the test data: loss {event.tested.loss:.4f}"
                f"{_share(event.tested.accuracy)}"
                + "".join(
                    f", {name} {value:.4g}"
                    for name, value in event.tested.metrics.items()
                    if value is not None
                )
            )
        case ev.NetworkAdded() if not event.wrong:
            values = ", ".join(f"{name} {brief(value)}" for name, value in event.values.items())
            parent = f" from {event.parent}" if event.parent else ""
            return f"{event.network} is new{parent}" + (f": {values}" if values else "")
        case ev.NetworkVerdict():
            return _describe_verdict(event)
        case ev.LaunchInterrupted():
            if event.replay:
                return (
                    f"{event.reason}: stopping; a replay cannot be resumed, so the same "
                    "command starts it over"
                )
            return (
                f"{event.reason}: finishing the step, saving, and stopping; run the same "
                "command to resume"
            )
        case _:
            return _describe_trouble(event, device)


def _describe_verdict(event: ev.NetworkVerdict) -> str:
    verb = {"pause": "is paused", "stop": "is pruned", "go_on": "continues"}[event.verdict]
    time = pluralize(event.epochs, "epoch")
    if event.by == (USER,) and event.verdict != "go_on":
        time = "its current epoch"  # commands come at any time
    return f"{event.network} {verb} after {time} (by {' and '.join(event.by)})"


def _format_eta(low_s: float, high_s: float) -> str:
    """Format a remaining time as a range."""
    low = format_duration(low_s)
    high = format_duration(high_s)
    if low != high:
        return f"{low} to {high}"
    return high


def _describe_cached_rates(event: ev.CachedRatesUsed) -> str:
    """Describe cached rates: their age, their machines, and how to measure again."""
    rates = [rate for network_rates in event.rates.values() for rate in network_rates]
    ages = sorted(rate.age_s for rate in rates)
    age = " to ".join(dict.fromkeys([_age(ages[0]), _age(ages[-1])]))
    hosts = ", ".join(sorted({rate.machine.partition(":")[0] for rate in rates}))
    return (
        f"using cached rates of {pluralize(len(event.rates), 'network')}, measured {age} ago on "
        f"{hosts}, spread up to {max(rate.spread for rate in rates):.0%}: {event.cache}; use "
        "--remeasure to measure again"
    )


def _age(seconds: float) -> str:
    if seconds < 2 * 86400:
        return format_duration(seconds)
    return f"{seconds // 86400:.0f} days"


def _describe_trouble(event: ev.Event, device: str) -> str:
    match event:
        case ev.RateMismatch():
            if event.corrected:
                advice = (
                    "the cache now has the new rate for later runs; further corrections in this "
                    "launch are not reported"
                )
            else:
                advice = "correct schedule.rates"
            return (
                f"WARNING: {event.network} on {pluralize(event.gpus, device)} trains "
                f"{event.rate:.0f} samples/s, but {event.expected:.0f} were expected: {advice}"
            )
        case ev.NetworkFailed():
            return f"{event.network} FAILED: {event.reason}"
        case ev.NetworkRetried(alone=True):
            return (
                f"{event.network} failed: {event.reason}; it shared a device, and is retried alone"
            )
        case ev.NetworkRetried():
            return (
                f"{event.network} failed: {event.reason}; this may be transient: retry "
                f"{event.retry} of {event.retries}"
            )
        case ev.NetworkRolledBack():
            if event.finished:
                return (
                    f"WARNING: {event.network} stays finished: {event.damage}; its best epoch "
                    "is intact"
                )
            if event.epochs or event.position:
                outcome = f"continues after epoch {event.epochs}"
            else:
                outcome = "starts over"
            return f"WARNING: {event.network} {outcome}: {event.damage}"
        case ev.NetworkWarned():
            return f"WARNING: {event.network}: {event.warning}"
        case ev.ChangesAccepted():
            return (
                f"{event.network} continues after epoch {event.epochs} with changed "
                f"{' '.join(event.files)}"
            )
        case ev.BestCheckpointDamaged():
            return f"WARNING: {event.network}: {event.damage}"
        case ev.GroupFailed():
            position = f"epoch {event.epochs}" + (
                f", sample {event.position}" if event.position else ""
            )
            return (
                f"{event.network} lost a rank and resumes from its last checkpoint, after "
                f"{position}"
            )
        case _:
            return _describe_trouble_around(event)


def _describe_trouble_around(event: ev.Event) -> str:
    """Describe events of the data, the searches, the ranks and the launch."""
    match event:
        case ev.TooLateToStart():
            return (
                f"too late to start {', '.join(event.networks)}: {format_duration(event.left_s)} "
                f"left, but groups took {format_duration(event.needed_s)} to start"
            )
        case ev.SharingLearned():
            return _describe_sharing(event)
        case ev.RunWarned():
            return f"WARNING: {event.warning}"
        case ev.DataChanged():
            return (
                f"the data has changed, and networks continue with it: {'; '.join(event.changes)}"
            )
        case ev.SearcherFailed():
            return (
                f"WARNING: the sampler of {event.entry} failed and will not be called again: "
                f"{event.reason}"
            )
        case ev.TrackerFailed():
            return (
                f"WARNING: trackers: cannot write {event.tracker}, continuing without it: "
                f"{event.reason}; fleet export can write the same data later"
            )
        case ev.SearcherStarted(changed=changed) if changed:
            return f"the search of {event.entry} continues with other settings: {changed}"
        case ev.ReplayDiffered():
            return f"WARNING: {event.entry}: {event.difference}; using the logged answer"
        case ev.RankDied():
            return f"rank {event.rank} has died; the other ranks continue"
        case ev.CommandReceived(do="yield"):
            hosts = ", ".join(map(str, event.given.get("hosts", ())))
            return f"requested: release {hosts} within {event.given.get('within_s')} s"
        case ev.NodesReleased():
            state = "end" if event.has_ended else "wait for the end of the launch"
            return (
                f"released after {event.seconds:.1f} s: {', '.join(event.hosts)}; the "
                f"processes there {state}"
            )
        case ev.SampleSkipped():
            return f"skipped {event.name}: {event.reason}"
        case _:
            return ""


def _describe_epoch(event: ev.EpochEnded, max_epochs: int) -> str:
    record = event.record
    if math.isnan(record.val_loss):
        validation = ""
    else:
        validation = f", validation {record.val_loss:.4f}{_share(record.val_accuracy)}"
    validation += "".join(
        f", {name} {record.value(name):.4g}"
        for name in record.metrics
        if name.startswith("val_") or f"val_{name}" not in record.metrics
    )
    return (
        f"{event.network} epoch {record.epoch}/{max_epochs}: loss "
        f"{record.loss:.4f}{_share(record.accuracy)}{validation} "
        f"({record.samples / max(record.seconds, 1e-9):.0f} samples/s)"
    )


def _share(accuracy: float) -> str:
    """Format an accuracy after a loss; empty for targets without classes."""
    if math.isnan(accuracy):
        return ""
    return f" {accuracy:.2%}"


def _describe_stream(event: ev.StreamStarted) -> str:
    """Describe whether input or training is the bottleneck, and what to change."""
    supply = (
        f"input {event.supply_samples_per_s:.0f} samples/s by "
        f"{pluralize(event.preprocessors, 'preprocessor')}"
    )
    if event.bottleneck:
        rates = f"{supply}, the fastest network consumes {event.demand_samples_per_s:.0f}: "
    else:
        rates = f"{supply}: "
    if event.kept:
        return rates + "decoded in the first epoch and then stored"
    if not event.bottleneck:
        return rates + "the rates of networks are not known yet"
    if event.bottleneck == "input":
        return rates + (
            "the input is the bottleneck (start more ranks or raise resources.preprocessors; or "
            "decode only once with data.cache: memory or file)"
        )
    spare = event.of - event.preprocessors
    if spare:
        advice = f" ({pluralize(spare, 'preprocessor')} of {event.of} could train instead)"
    else:
        advice = ""
    policy = POLICIES.get(event.policy)
    if policy is not None and policy.own_pace and event.pace == "shared":
        advice += (
            f"; {policy.name} is faster if networks train at their own pace: data.cache: memory or "
            "data.order: ring"
        )
    return f"{rates}training is the bottleneck{advice}"


def _describe_sharing(event: ev.SharingLearned) -> str:
    """Describe how many networks per GPU pay off, and what to change if more could."""
    summary = describe_sharing(event.speedups, event.device)
    if not event.bound:
        return summary
    is_tried = useful_networks_per_gpu(event.speedups) == event.slots
    if is_tried:
        more = "more may pay off"
    else:
        more = f"this run has {pluralize(event.slots, 'slot')} per {event.device}"
    if event.bound == "per_device":
        raised = "raise resources.networks_per_gpu, and "
    else:
        raised = ""
    return f"{summary}; {more}: {raised}start more ranks"


def describe_sharing(speedups: Sequence[float], device: str = "GPU") -> str:
    """Describe how many networks on one device pay off, in a line.

    Args:
        speedups: throughput of 1, 2, ... networks over that of one.
        device: the kind of device.

    >>> describe_sharing((1.0, 1.6, 1.61))
    '2 networks on one GPU train 1.6 times as fast as one, 3 networks 1.61 times: 2 pay off'
    """
    count = useful_networks_per_gpu(speedups)
    parts = [
        f"{pluralize(number, 'network')} {speedup:.3g} times"
        for number, speedup in enumerate(speedups, 1)
    ][1:]
    if not parts:
        return f"the throughput of networks that share a {device} is unknown"
    parts[0] = (
        parts[0].replace(" networks ", f" networks on one {device} train ") + " as fast as one"
    )
    return f"{', '.join(parts)}: {count} {'pays' if count == 1 else 'pay'} off"


# Events that the live table shows; lines about all other events stay on the screen above it.
PASSING_EVENTS = (
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


class LiveTitle:
    """The title of a live view: what goes on, the time so far, and the time left.

    Args:
        run: the state of the run, which has already applied each event passed here.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._title = "starting: loading the engine takes some seconds"
        self._start = time.monotonic()
        self._eta: ev.TimeLeftEstimated | None = None
        self._eta_at = 0.0

    def on_event(self, event: ev.Event) -> None:
        """Update the title."""
        match event:
            case ev.RateMeasured():
                self._title = format_event(event, self._run)
            case ev.TrainersReady():
                self._title = "all trainers are ready"
            case ev.RoundStarted():
                self._title = f"round {event.round}"
            case ev.TimeLeftEstimated():
                self._eta, self._eta_at = event, time.monotonic()
            case ev.LaunchInterrupted():
                self._title = "saving, then stopping (Ctrl-C again ends at once)"
                self._eta = None

    def on_pace(self) -> None:
        """Do nothing; the progress of networks is read when the view is drawn."""

    @property
    def title(self) -> str:
        """The current title."""
        seconds = format_duration(time.monotonic() - self._start)
        return f"{self._title}, {seconds}{self._format_time_left()}"

    def _format_time_left(self) -> str:
        """Format the latest estimate minus the time since it was made."""
        if self._eta is None:
            return ""
        passed = time.monotonic() - self._eta_at
        low_s, high_s = (max(0.0, end - passed) for end in (self._eta.low_s, self._eta.high_s))
        return f"; ETA {_format_eta(low_s, high_s)}"


class LiveTable(LiveTitle):
    """A table of the networks that are training, made with rich."""

    def table(self) -> Any:
        """Return the current table."""
        from rich import box
        from rich.table import Table

        table = Table(
            *("network", "devices", "epochs", "", "loss", "val acc", "samples/s", "max time left"),
            title=self.title,
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        groups = {} if self._run.launch is None else dict(self._run.launch.groups)
        for name in sorted(groups, key=lambda name: self._run.networks[name].number):
            network = self._run.networks[name]
            if network.status.outcome is None:
                table.add_row(name, *self._cells(network, groups[name]))
        return table

    def _cells(self, network: RunNetwork, group: RunGroup) -> list[Any]:
        """Return the cells of a network that is training."""
        from rich.progress_bar import ProgressBar

        last = network.status.history[-1] if network.epochs else None
        progress = progress_of(network, group, self._run)
        loss = accuracy = time_left = ""
        if last is not None:
            loss = _format(last.loss, "{:.4f}")
            accuracy = _format(last.val_accuracy, "{:.2%}")
        if progress.left_s is not None:
            time_left = format_duration(progress.left_s)
        completed = network.epochs + progress.part
        return [
            progress.devices,
            f"{network.epochs}/{network.max_epochs}",
            ProgressBar(total=network.max_epochs, completed=completed, width=20),
            loss,
            accuracy,
            f"{progress.samples_per_s:.0f}",
            time_left,
        ]


class NotebookView(LiveTable):
    """A table in a notebook cell; finally the results, best network first.

    Args:
        run: the state of the run.
        display: the display handle that :meth:`make_display` returned.
    """

    def __init__(self, run: RunState, display: Any) -> None:
        super().__init__(run)
        self._display = display
        self._drawn_at = time.monotonic()

    @staticmethod
    def is_notebook() -> bool:
        """Return True if this process is the kernel of a notebook."""
        shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
        return hasattr(shell, "kernel")

    @staticmethod
    def make_display() -> Any:
        """Return a display handle for a table in the current cell."""
        from IPython.display import display

        return display({"text/plain": "starting"}, raw=True, display_id=True)

    def draw(self) -> None:
        """Update the cell, at most once a second."""
        if time.monotonic() - self._drawn_at >= 1:
            self._display.update(self.table())
            self._drawn_at = time.monotonic()

    def finish(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show the table of results in the cell."""
        self._display.update(
            {"text/html": html_table(headers, rows), "text/plain": "results"}, raw=True
        )
