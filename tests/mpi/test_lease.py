"""Two launches in one folder; the first is stopped for longer than its lease."""

import signal

import pytest

from fleet.domain.events import EpochEnded
from fleet.storage.event_log import events_of
from fleet.storage.paths import RunPaths
from tests.mpi.conftest import send_all, spec
from tests.waiting import wait_until

EPOCHS = 30
LEASE = {"FLEET_LEASE": "2s"}


def content_of(paths):
    """Return the saved files byte for byte, without the log, which may still get a line."""
    return {
        path: path.read_bytes()
        for path in [paths.results, *paths.models.rglob("*")]
        if path.is_file()
    }


@pytest.mark.long
def test_lease_lost_while_stopped_ends_launch_safely(launch, tmp_path):
    content = spec(
        tmp_path,
        [{"family": "softmax", "name": "a"}],
        samples=200,
        source="slow",
        train={"stopping": {"max_epochs": EPOCHS}},
    )
    paths = RunPaths(tmp_path / "run")
    first = launch.start(2, content, environment=LEASE)
    wait_until(lambda: len(events_of(paths.events, EpochEnded)) >= 3, first)
    send_all(first, signal.SIGSTOP)
    second = launch(2, content, environment=LEASE)
    assert second.status == 0, second.output
    assert "it is taken over if there is no sign of life for 2 s" in second.output
    before = content_of(paths)
    send_all(first, signal.SIGCONT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode not in (0, 2, 3, 75)
    assert "has been taken over by another launch" in output
    assert "Traceback" not in output
    assert content_of(paths) == before
    assert [record.epoch for record in second.history("a")] == list(range(1, EPOCHS + 1))
