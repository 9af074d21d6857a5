"""Let product code report to the oracles what it does, where no file or message shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.simulate import kernel as k


class Witness:
    """What product code may report; an observer overrides what it wants to know."""

    def begins_part(self, process: k.Process, training: Any, state: Any) -> None:
        """A rank trains an epoch from a position on."""

    def steps(self, process: k.Process, trainable: Any, inputs: Any, size: int) -> None:
        """A rank takes its part in a training step."""

    def trained(
        self, process: k.Process, name: str, began_s: float, ended_s: float, failed: bool
    ) -> None:
        """A rank has trained a network, until it left its group, failed or died."""

    def reaches(self, process: k.Process, training: Any, state: Any) -> None:
        """A rank has a state inside an epoch or at its end, which may be saved."""

    def ends_epoch(self, process: k.Process, training: Any, state: Any) -> None:
        """A rank ends an epoch."""

    def saved(self, process: k.Process, name: str, state: Any) -> None:
        """A rank has written a checkpoint, and what belongs to it, to the disk."""

    def saves(self, process: k.Process, name: str, state: Any) -> None:
        """A rank writes a checkpoint."""

    def takes_chunk(self, process: k.Process, sequence: int, missed: Iterable[int]) -> None:
        """A rank reads a chunk of a ring, after its group has missed some."""

    def reads_arrays(self, process: k.Process, path: Path) -> None:
        """A process reads the weights in a checkpoint."""

    def reads_sample(self, process: k.Process, source: str, index: int) -> None:
        """A process reads a sample of :class:`tests.sources.Numbered`."""

    def observed_rate(self, process: k.Process, name: str, shape: Any, observed: Any) -> None:
        """A coordinator receives the rate of a group."""

    def planned(self, process: k.Process, rates: Mapping[str, Any]) -> None:
        """A coordinator has planned with these learned rates."""

    def limited(self, table: Any, limited: Any) -> None:
        """A coordinator has limited a table of rates by the input."""

    def built(self, process: k.Process, name: str, parameters: int, in_row: int | None) -> None:
        """A network was built, and its row has a number of parameters."""

    def chose_cache(self, spec: Any, opened: Any, resources: Any, earlier: Any, cache: str) -> None:
        """A launch has chosen where samples are kept."""

    def wrote_table(self, process: k.Process) -> None:
        """Rank 0 has written the table of results because it has changed."""

    def left_table(self, process: k.Process, networks: int) -> None:
        """Rank 0 has not written the table of some networks, although it has changed."""

    def augmented(self, process: k.Process, has_work: bool, epochs: int) -> None:
        """A trainer has augmented stored samples, and keeps some epochs of them."""

    def is_idle(self, process: k.Process, devices: Iterable[int], is_idle: bool) -> None:
        """A coordinator has heard that trainers wait for work, or has given them some."""

    def shares_epochs(self, spec: Any, opened: Any, used_bytes: int, epochs: int) -> None:
        """A launch has chosen how many augmented epochs the trainers of a node share."""

    def throughput(self, process: k.Process, rank: int, samples_per_s: float) -> None:
        """A coordinator receives the rate of a preprocessor."""

    def begins_line(self, process: k.Process, path: Path, record: Any) -> Any:
        """Rank 0 writes a line of an event log; returns what :meth:`ends_line` is given."""

    def ends_line(self, path: Path, line: Any, is_written: bool) -> None:
        """The line was written, or not."""

    def synced_log(self, process: k.Process, path: Path) -> None:
        """All lines of a log so far are on the disk."""

    def decided(self, process: k.Process, path: Path, statuses: Mapping[str, Any]) -> None:
        """A coordinator has carried out all effects of a decision."""


def _current() -> tuple[Witness, k.Process] | None:
    kernel = k.active()
    if kernel is None or kernel.witness is None:
        return None
    assert kernel.process is not None
    return kernel.witness, kernel.process


def install() -> None:
    """Wrap the functions that report; once, before a simulation."""
    _watch_training()
    _watch_checkpoints()
    _watch_logs()
    _watch_samples()
    _watch_ring()
    _watch_rates()
    _watch_start()
    _watch_table()
    _watch_devices()
    _watch_augmentation()


def _watch_training() -> None:
    from fleet.engines.softmax import SoftmaxRegression
    from fleet.runtime.training.loop import TrainingLoop

    step = SoftmaxRegression.step
    run = TrainingLoop.run
    train_part = TrainingLoop._train_part
    end_epoch = TrainingLoop._end_epoch
    save = TrainingLoop._save

    def watched_step(self: Any, inputs: Any, targets: Any, size: int, *more: Any) -> Any:
        if current := _current():
            current[0].steps(current[1], self, inputs, size)
        return step(self, inputs, targets, size, *more)

    def watched_run(self: Any, training: Any, *more: Any) -> None:
        kernel, current = k.active(), _current()
        began_s = 0.0 if kernel is None else kernel.now
        failed = True
        try:
            run(self, training, *more)
            failed = False
        finally:
            if kernel and current:
                name = training.network.name
                current[0].trained(current[1], name, began_s, kernel.now, failed)

    def watched_part(self: Any, training: Any, state: Any, *more: Any) -> Any:
        if current := _current():
            current[0].begins_part(current[1], training, state)
        result = train_part(self, training, state, *more)
        if current:
            current[0].reaches(current[1], training, result[0])
        return result

    def watched_end(self: Any, training: Any, state: Any, *more: Any) -> Any:
        if current := _current():
            current[0].ends_epoch(current[1], training, state)
        return end_epoch(self, training, state, *more)

    def watched_save(self: Any, training: Any, state: Any, *more: Any, **named: Any) -> Any:
        current = _current()
        if current:
            current[0].reaches(current[1], training, state)
        save(self, training, state, *more, **named)
        if current and not state.position:
            current[0].reports_epoch(current[1], training, state)

    SoftmaxRegression.step = watched_step
    TrainingLoop.run = watched_run
    TrainingLoop._train_part = watched_part
    TrainingLoop._end_epoch = watched_end
    TrainingLoop._save = watched_save


def _watch_checkpoints() -> None:
    from fleet.storage.writer import CheckpointWriter

    write = CheckpointWriter._write

    def watched_write(self: Any, name: str, state: Any, is_best: bool) -> None:
        if current := _current():
            current[0].saves(current[1], name, state)
        write(self, name, state, is_best)
        if current := _current():
            current[0].saved(current[1], name, state)

    CheckpointWriter._write = watched_write

    from fleet.storage import checkpoint

    read_verified = checkpoint.read_verified

    def watched_read(path: Path, with_arrays: bool, *more: Any, **named: Any) -> Any:
        current = _current()
        if current and with_arrays:
            current[0].reads_arrays(current[1], path)
        return read_verified(path, with_arrays, *more, **named)

    checkpoint.read_verified = watched_read


def _watch_samples() -> None:
    from tests.sources import Numbered

    read = Numbered.read

    def watched(self: Any, index: int) -> Any:
        if current := _current():
            current[0].reads_sample(current[1], self.word, index)
        return read(self, index)

    Numbered.read = watched


def _watch_ring() -> None:
    from fleet.stream.ring import RingReader

    take = RingReader._take

    def watched(self: Any, is_of_use: Any, group: Any, missed: Any) -> int:
        sequence: int = take(self, is_of_use, group, missed)
        if current := _current():
            current[0].takes_chunk(current[1], sequence, missed)
        return sequence

    RingReader._take = watched


def _watch_rates() -> None:
    from fleet.control.rates import LearnedRates, Rates, Supply
    from fleet.control.stream_grants import StreamGrants

    mark_planned = LearnedRates.mark_planned
    limited_table = Supply.limited_table
    record_throughput = StreamGrants.record_throughput

    def watched(observe: Any) -> Any:
        def watched_observe(self: Any, name: str, shape: Any, observed: Any) -> None:
            if current := _current():
                current[0].observed_rate(current[1], name, shape, observed)
            observe(self, name, shape, observed)

        return watched_observe

    def watched_plan(self: Any, is_new: bool, probes: Any, is_over: Any) -> None:
        before = self._planned_table
        mark_planned(self, is_new, probes, is_over)
        current = _current()
        # A network that fails after its last epoch returns to a table whose rates were logged
        # without it.
        if current and self._planned_table is not before:
            models = self._planned_table.models
            rates = {model.name: model.rates for model in models if not is_over(model.name)}
            current[0].planned(current[1], rates)

    def watched_limit(self: Any, rates: Any) -> Any:
        limited = limited_table(self, rates)
        if current := _current():
            current[0].limited(rates.table, limited)
        return limited

    def watched_throughput(self: Any, throughput: Any) -> None:
        record_throughput(self, throughput)
        if current := _current():
            rate = throughput.samples_per_s
            current[0].throughput(current[1], throughput.rank, rate)

    Rates.observe = watched(Rates.observe)
    LearnedRates.observe = watched(LearnedRates.observe)
    LearnedRates.mark_planned = watched_plan
    Supply.limited_table = watched_limit
    StreamGrants.record_throughput = watched_throughput


def _watch_augmentation() -> None:
    from fleet.stream.augment import AugmentedEpochs

    finish = AugmentedEpochs.finish

    def watched(self: Any, *arguments: Any) -> Any:
        bad = finish(self, *arguments)
        if current := _current():
            current[0].augmented(current[1], self._pipeline.has_host_work, len(self._epochs))
        return bad

    AugmentedEpochs.finish = watched


def _watch_devices() -> None:
    from fleet.control.devices import DevicePool

    mark_ready = DevicePool.mark_ready
    assign = DevicePool.assign

    def watched_ready(self: Any, ready: Any) -> None:
        mark_ready(self, ready)
        current = _current()
        device = self._roles.device_of.get(ready.rank)
        if current and device is not None:
            current[0].is_idle(current[1], [device], True)

    def watched_assign(self: Any, devices: Any) -> None:
        assign(self, devices)
        if current := _current():
            current[0].is_idle(current[1], devices, False)

    DevicePool.mark_ready = watched_ready
    DevicePool.assign = watched_assign


def _watch_table() -> None:
    from fleet.storage.results import Results

    write_if_due = Results.write_if_due

    def watched(self: Any) -> None:
        before = self._version
        has_changed = self.run.changes.version > before
        write_if_due(self)
        current = _current()
        if current and self._version > before:
            current[0].wrote_table(current[1])
        elif current and has_changed:
            current[0].left_table(current[1], len(self.networks))

    Results.write_if_due = watched


def _watch_start() -> None:
    from fleet.control.network_changes import NetworkChanges
    from fleet.runtime.startup import memory, prepare

    choose_cache = prepare.choose_cache
    count_shared_epochs = memory.count_shared_epochs
    set_parameters = NetworkChanges.set_parameters

    def watched_choice(spec: Any, opened: Any, resources: Any, earlier: Any = None) -> Any:
        choice = choose_cache(spec, opened, resources, earlier)
        current = _current()
        if current and current[1].label != "observer":
            current[0].chose_cache(spec, opened, resources, earlier, choice.cache)
        return choice

    def watched_count(spec: Any, opened: Any, used_bytes: int, shared_free: float) -> int:
        epochs = count_shared_epochs(spec, opened, used_bytes, shared_free)
        if current := _current():
            current[0].shares_epochs(spec, opened, used_bytes, epochs)
        return epochs

    def watched_built(self: Any, name: str, parameters: int) -> None:
        set_parameters(self, name, parameters)
        if current := _current():
            in_row = self._outbox.run.parameters.get(name)
            current[0].built(current[1], name, parameters, in_row)

    prepare.choose_cache = watched_choice
    memory.count_shared_epochs = watched_count
    NetworkChanges.set_parameters = watched_built


def _watch_logs() -> None:
    from fleet.runtime.coordinator import Coordinator
    from fleet.storage import event_log

    add_line = event_log.add_line
    sync = event_log.EventLog._sync
    carry_out = Coordinator._carry_out_all

    def watched_line(file: Any, path: Path, record: Any) -> None:
        current = _current()
        if current is None:
            add_line(file, path, record)
            return
        line = current[0].begins_line(current[1], path, record)
        is_written = False
        try:
            add_line(file, path, record)
            is_written = True
        finally:
            if current[1].is_alive:
                current[0].ends_line(path, line, is_written)

    def watched_sync(self: Any) -> None:
        sync(self)
        if current := _current():
            current[0].synced_log(current[1], self._path)

    def watched_effects(self: Any, effects: Any) -> None:
        carry_out(self, effects)
        if effects and (current := _current()):
            path = self.event_log._path
            current[0].decided(current[1], path, self.results.run.statuses)

    event_log.add_line = watched_line
    event_log.EventLog._sync = watched_sync
    Coordinator._carry_out_all = watched_effects
