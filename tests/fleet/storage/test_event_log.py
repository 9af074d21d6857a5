"""The event log."""

import errno
import json
import math
import os
import stat
from dataclasses import replace

import pytest

from fleet.domain.events import (
    CommandReceived,
    EpochEnded,
    LaunchEnded,
    NetworkAdded,
    NetworkFinished,
    RankDied,
    SampleSkipped,
)
from fleet.errors import ExitStatus, StorageError
from fleet.storage import event_log
from fleet.storage.event_log import (
    EventLog,
    RunTail,
    events_of,
    launch_status,
    log_position,
    read_events,
    read_run,
)
from fleet.storage.paths import RunPaths
from tests.fleet.histories import record
from tests.fleet.logs import START

LOST, SKIPPED = RankDied(3, 2), SampleSkipped("x.png", "torn", True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def write_log(path, *events, clock=lambda: 0.0):
    log = EventLog(path, clock)
    for event in events:
        log.add(event)
    log.close()


def test_read_events_returns_order_and_times(path):
    times = iter([100.0, 101.5, 103.25])
    write_log(path, LOST, SKIPPED, clock=lambda: next(times))
    assert list(read_events(path)) == [(1.5, LOST), (3.25, SKIPPED)]


def test_event_log_writes_time_type_and_fields(path):
    write_log(path, SKIPPED)
    assert path.read_text() == (
        '{"t_s": 0.0, "event": "bad_sample", "name": "x.png", "reason": "torn", "training": true}\n'
    )


def test_read_events_skips_other_kinds_unparsed(path, monkeypatch):
    assert events_of(path, RankDied) == []  # without a log
    named = SampleSkipped("lost", "a file of this name", training=True)
    write_log(path, LOST, SKIPPED, named, LOST)
    read, events = [], event_log.event_from_json
    monkeypatch.setattr(
        event_log, "event_from_json", lambda record: read.append(record) or events(record)
    )
    assert events_of(path, RankDied) == [LOST, LOST]
    assert len(read) == 3  # the other kind was not parsed


def test_event_log_is_unbuffered(path):
    log = EventLog(path)
    log.add(LOST)
    assert list(read_events(path)) == [(pytest.approx(0.0, abs=60), LOST)]
    log.close()


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_read_events_skips_incomplete_line(path, cut):
    write_log(path, LOST, SKIPPED)
    path.write_bytes(path.read_bytes()[:-cut])
    write_log(path, LaunchEnded(0))
    # A line that only lacks its end is complete.
    assert [event for _, event in read_events(path)] == [
        LOST,
        *[SKIPPED] * (cut == 1),
        LaunchEnded(0),
    ]


@pytest.mark.parametrize("accepted", [0, 5, -1])
def test_line_follows_one_that_the_disk_refused_in_part(path, monkeypatch, accepted):
    log = EventLog(path)
    log.add(LOST)
    write = event_log.add_line

    def refuse(file, path, record):
        file.write((json.dumps(record) + "\n").encode()[:accepted])
        raise StorageError("the disk is full")

    monkeypatch.setattr(event_log, "add_line", refuse)
    with pytest.raises(StorageError):
        log.add(SKIPPED)
    monkeypatch.setattr(event_log, "add_line", write)
    log.add(LaunchEnded(0))
    log.close()
    events = [event for _, event in read_events(path)]
    assert events == [LOST, *[SKIPPED] * (accepted == -1), LaunchEnded(0)]


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_tail_reads_a_line_that_only_lacks_its_end_once(path, cut):
    write_log(path, LOST, SKIPPED)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    tail = RunTail(RunPaths(path.parent))
    assert [dated.event for dated in tail.poll()] == [LOST, *[SKIPPED] * (cut == 1)]
    with path.open("ab") as file:
        file.write(content[-cut:])
    write_log(path, LaunchEnded(0))
    events = [dated.event for dated in tail.poll()]
    assert events == [*[SKIPPED] * (cut > 1), LaunchEnded(0)]


@pytest.mark.parametrize(
    "line",
    [
        '{"t_s": 1.0, "event": "elsewhere"}',
        '{"t_s": 1.0, "event": "lost", "rank": 3}',
        '{"t_s": 1.0}',
        "[1]",
        "7",
        '{"t_s": NaN, "event": "lost", "rank": 3, "device": 2}',
        '{"t_s": "1", "event": "lost", "rank": 3, "device": 2}',
        '{"t_s": 1' + 400 * "0" + ', "event": "lost", "rank": 3, "device": 2}',
        "[" * 100_000,
        "\\x00",
    ],
)
def test_read_events_skips_invalid_lines(path, line):
    write_log(path, SKIPPED)
    tail = RunTail(RunPaths(path.parent))
    assert [dated.event for dated in tail.poll()] == [SKIPPED]
    with path.open("a") as file:
        file.write(line + "\n")
    write_log(path, LOST)
    assert [dated.event for dated in tail.poll()] == [LOST]
    assert [event for _, event in read_events(path)] == [SKIPPED, LOST]


def test_launch_status_from_log_or_abnormal_end(path):
    before = log_position(path)
    assert launch_status(0, path, before) == ExitStatus.INFRASTRUCTURE
    write_log(path, LOST)
    assert launch_status(0, path, before) == ExitStatus.INFRASTRUCTURE
    assert launch_status(9, path, before) == 9
    write_log(path, LaunchEnded(int(ExitStatus.RESUMABLE)))
    assert launch_status(0, path, before) == ExitStatus.RESUMABLE
    assert launch_status(0, path, log_position(path)) == ExitStatus.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("launcher", "events", "status"),
    [
        (0, [LaunchEnded(0)], 0),
        (1, [LaunchEnded(0)], 1),
        (139, [LaunchEnded(3)], 139),
        (3, [LaunchEnded(3)], 3),
        (0, [LaunchEnded(3)], 3),
        (143, [LaunchEnded(75)], 75),  # all is saved
        (137, [LOST, LaunchEnded(0)], 0),  # the others have survived
    ],
)
def test_launch_status_after_the_last_event(path, launcher, events, status):
    write_log(path, LOST, LaunchEnded(0))
    before = log_position(path)
    write_log(path, *events)
    assert launch_status(launcher, path, before) == status


def test_event_log_writes_nan_as_null(path):
    event = EpochEnded("a", record(1, val_loss=math.nan, val_accuracy=math.inf))
    write_log(path, event)

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["val_loss"] is None
    ((_, again),) = read_events(path)
    assert math.isnan(again.record.val_loss)
    assert math.isnan(again.record.val_accuracy)


def ranks_of(paths):
    """Return the dead rank of each launch of a run, in the order of reading."""
    return [event.rank for _, event in read_run(paths) if isinstance(event, RankDied)]


def test_read_run_merges_concurrent_logs_by_date(
    tmp_path,
):
    paths = RunPaths(tmp_path)
    for rank, launch, date in (
        (1, "", 0.0),
        (2, "", 50.0),
        (3, "17", 20.0),
        (4, "18", 10.0),
        (5, "17", 60.0),
    ):
        write_log(RunPaths(tmp_path, launch).events, replace(START, date=date), RankDied(rank, 0))
    assert ranks_of(paths) == [1, 4, 3, 2, 5]
    assert [type(event) for _, event in read_run(paths)] == [type(START), RankDied] * 5


def test_read_run_keeps_order_if_clock_goes_back(tmp_path):
    for rank, launch, date in ((1, "17", 90.0), (2, "17", 30.0), (3, "18", 60.0), (4, "18", 100.0)):
        write_log(RunPaths(tmp_path, launch).events, replace(START, date=date), RankDied(rank, 0))
    assert ranks_of(RunPaths(tmp_path)) == [3, 1, 2, 4]


def test_event_log_is_dated_by_the_file_system(path):
    log = EventLog(path)
    assert log.date() == os.stat(path).st_mtime
    log.close()


@pytest.mark.parametrize(("error", "calls"), [(errno.ESTALE, 2), (errno.EINVAL, 1)])
def test_event_log_syncs_its_name_again_if_that_may_help(path, monkeypatch, error, calls):
    log = EventLog(path)
    folders = []

    def fsync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            folders.append(file)
            if len(folders) == 1:
                raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    log.sync_all()
    assert len(folders) == calls
    log.close()


def test_event_log_syncs_added_networks_before_what_follows(path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(path.read_text()))
    monkeypatch.setattr(event_log, "sync_names", lambda folder: None)
    log = EventLog(path)
    log.add(LOST)
    log.sync()
    assert synced == []  # later launches derive the others
    log.add(NetworkAdded("net", "entry", 0, {}, (1, 1), 3))
    log.add(CommandReceived("c", "stop", ("net",)))
    log.sync()
    assert synced == [path.read_text()]
    log.close()
    assert len(synced) == 2


def test_log_in_use_stays_open(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.close(is_in_use=True)
    log.add(NetworkFinished("a", "1 epoch", 1))
    log.close()
    assert len(events_of(tmp_path / "events.jsonl", NetworkFinished)) == 1
