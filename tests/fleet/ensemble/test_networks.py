"""What becomes of the networks of a run."""

from fleet.comm.messages import EpochDone, Failed
from fleet.domain.network import Outcome, Standing
from fleet.ensemble.effects import CheckpointRead, Keep, Outbox
from fleet.ensemble.networks import Networks
from tests.fleet.histories import record, spec


def test_a_network_that_is_dropped_within_an_epoch_ends_that_and_says_after_how_many():
    outbox = Outbox()
    networks = Networks(spec({"family": "softmax", "name": "a"}).networks, {"a": Standing((record(1),))}, 0, outbox)
    networks.prune("a")
    networks.end_epoch(EpochDone("a", record(2), 0.0, ""))
    kept = [effect.standing for effect in outbox.take() if isinstance(effect, Keep)]
    assert [(standing.outcome.reason, standing.outcome.is_pruned) for standing in kept] == [
        ("pruned after 1 epoch", True), ("pruned after 2 epochs", True)]
    assert networks.history("a") == (record(1), record(2))


def test_a_network_that_is_dropped_in_its_last_epoch_has_finished_also_by_its_checkpoint():
    outbox, done = Outbox(), Standing((record(1), record(2)), Outcome("2 epochs"))
    networks = Networks(spec({"family": "softmax", "name": "a"}).networks, {"a": Standing((record(1),))}, 0, outbox)
    networks.prune("a")
    networks.strike("a")
    networks.take_up(CheckpointRead("a", done, 0))
    assert [effect.standing for effect in outbox.take() if isinstance(effect, Keep)][-1] == done
    assert networks.is_final("a")


def test_a_network_that_was_dropped_and_fails_for_a_while_stays_dropped():
    outbox = Outbox()
    networks = Networks(spec({"family": "softmax", "name": "a"}).networks, {"a": Standing((record(1),))}, 1, outbox)
    networks.prune("a")
    assert networks.may_retry(Failed("a", "a disk is full", "", may_pass=True))
    networks.rest("a")
    networks.wake(1e6)
    assert networks.is_over("a")
    assert not networks.is_final("a")


def test_what_runs_out_of_memory_beside_others_in_its_export_is_exported_alone():
    outbox = Outbox()
    networks = Networks(spec({"family": "softmax", "name": "a"}).networks, {}, 0, outbox)
    networks.end_epoch(EpochDone("a", record(1), 0.0, "1 epoch"))
    assert networks.is_isolated(Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), slots=2)
    assert networks.has_left
