"""A live run compared with its simulation."""

import pytest

from launch.errors import InputError
from scheduler.base import Cluster, Network, Options, RateTable, Record
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.policies import REFERENCE
from scheduler.simulation.ensemble import Stint
from scheduler.simulation.replay_run import replay, stints_of

RATES = RateTable(100, 2, (Network("a", (10.0,)), Network("b", (20.0,)), Network("c", (5.0,))))


def run(records):
    return replay(records, RATES, Cluster.of(1, 1), REFERENCE, Options(), Costs(), Stream())


def test_replay_run_run_is_simulated_with_epochs_that_it_needed():
    replayed = run(
        [
            Record(3.0, "group", "a", (0,)),
            Record(14.0, "epoch", "a"),
            Record(25.0, "epoch", "a"),
            Record(25.0, "stopped", "a"),
            Record(25.5, "group", "b", (0,)),
            Record(31.0, "epoch", "b"),
            Record(31.0, "stopped", "b"),
        ]
    )
    assert replayed.measured_s == 28.0
    # Network c never trained and is left out.
    assert replayed.simulated.makespan_s == pytest.approx(2 * 10 + 5)
    assert replayed.measured_s / replayed.simulated.makespan_s == pytest.approx(28 / 25)
    assert [stint.name for stint in replayed.stints] == ["a", "b"]


def test_stint_without_an_end_ends_with_the_record():
    assert stints_of(
        [Record(0.0, "group", "a", (1, 0)), Record(4.0, "epoch", "a"), Record(6.0, "epoch", "a")]
    ) == (Stint("a", (1, 0), 0.0, 6.0, 2),)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "has no epochs"),
        ([Record(1.0, "group", "a", (0,)), Record(0.5, "epoch", "a")], "back from 1.0 s to 0.5 s"),
        ([Record(1.0, "epoch", "a")], "at 1.0 s: epoch of a, which has no devices"),
        (
            [Record(1.0, "group", "z", (0,)), Record(2.0, "epoch", "z")],
            "epochs of z, for which there are no rates",
        ),
    ],
)
def test_replay_run_record_that_cannot_be_replayed_is_refused(records, message):
    with pytest.raises(InputError, match=message):
        run(records)
