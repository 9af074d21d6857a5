"""What becomes of the networks of a run."""

from fleet.comm.messages import EpochDone, Failed
from fleet.domain.events import EpochEnded, GroupStruck, NetworkJudged
from fleet.domain.network import Outcome, Standing
from fleet.ensemble.effects import CheckpointRead, Outbox
from fleet.ensemble.networks import Networks
from fleet.search.mind import Note
from tests.fleet.histories import record, spec

DROPPED = NetworkJudged("a", 1, "stop", ("median",))


def made(retries=0, history=(record(1),)):
    """The network ``a``, and what is to be done."""
    networks, outbox = spec({"family": "softmax", "name": "a"}).networks, Outbox()
    return Networks(networks, {"a": Standing(history)}, retries, outbox), outbox


def test_a_network_that_is_dropped_within_an_epoch_ends_that_and_says_after_how_many():
    networks, outbox = made()
    networks.judge(DROPPED)
    networks.end_epoch(EpochDone("a", record(2), 0.0, ""))
    assert [type(effect.event) for effect in outbox.take()] == [NetworkJudged, EpochEnded]
    assert networks.is_over("a")
    assert networks.history("a") == (record(1), record(2))


def test_a_network_that_is_dropped_in_its_last_epoch_has_finished_also_by_its_checkpoint():
    networks, outbox = made()
    networks.judge(DROPPED)
    networks.strike("a")
    networks.take_up(CheckpointRead("a", Standing((record(1), record(2)), Outcome("2 epochs")), 0))
    assert [effect.event for effect in outbox.take() if isinstance(effect, Note)][-2:] == [
        EpochEnded("a", record(2)),
        GroupStruck("a", epochs=2, position=0, reason="2 epochs"),
    ]
    assert networks.is_final("a")


def test_a_network_that_was_dropped_and_fails_for_a_while_stays_dropped():
    networks, _ = made(retries=1)
    networks.judge(DROPPED)
    assert networks.may_retry(Failed("a", "a disk is full", "", may_pass=True))
    networks.rest("a")
    networks.wake(1e6)
    assert networks.is_over("a")
    assert not networks.is_final("a")


def test_what_runs_out_of_memory_beside_others_in_its_export_is_exported_alone():
    networks, _ = made(history=())
    networks.end_epoch(EpochDone("a", record(1), 0.0, "1 epoch"))
    assert networks.is_isolated(
        Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), slots=2
    )
    assert networks.has_left
