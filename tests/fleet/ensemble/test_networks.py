"""What becomes of the networks of a run."""

from fleet.comm.messages import EpochDone
from fleet.ensemble.effects import Keep, Outbox
from fleet.ensemble.networks import Networks
from fleet.storage.state import Standing
from tests.fleet.histories import record, spec


def test_a_network_that_is_dropped_within_an_epoch_ends_that_and_says_after_how_many():
    outbox = Outbox()
    networks = Networks(spec({"family": "softmax", "name": "a"}).networks, {"a": Standing((record(1),))}, 0, outbox)
    networks.prune("a")
    networks.end_epoch(EpochDone("a", record(2), "", 0.0, 0))
    kept = [effect.standing for effect in outbox.take() if isinstance(effect, Keep)]
    assert [(standing.outcome.reason, standing.outcome.is_pruned) for standing in kept] == [
        ("pruned after 1 epoch", True), ("pruned after 2 epochs", True)]
    assert networks.history("a") == (record(1), record(2))
