"""The status of a network by its checkpoint and by the log."""

import pytest

from fleet.domain.network import NetworkStatus, Outcome
from fleet.storage.recovery import SKIPPED
from tests.fleet.histories import record

PRUNED = NetworkStatus.pruned((record(1),))


@pytest.mark.parametrize(
    ("by_checkpoint", "by_log", "expected"),
    [
        (NetworkStatus((record(1),)), PRUNED, PRUNED),
        (
            NetworkStatus(outcome=Outcome("3 epochs")),
            PRUNED,
            NetworkStatus(outcome=Outcome("3 epochs")),
        ),
        (NetworkStatus(), NetworkStatus(outcome=SKIPPED), NetworkStatus()),
        (
            NetworkStatus(outcome=SKIPPED),
            NetworkStatus(outcome=SKIPPED),
            NetworkStatus(outcome=SKIPPED),
        ),
    ],
    ids=["pruned", "finished since", "no longer skipped", "skipped"],
)
def test_log_says_which_networks_are_pruned(by_checkpoint, by_log, expected):
    assert by_checkpoint.with_logged_pruning(by_log) == expected


def test_skipped_network_with_other_epochs_is_skipped():
    assert NetworkStatus(outcome=SKIPPED).with_history((record(1),)).outcome == SKIPPED
