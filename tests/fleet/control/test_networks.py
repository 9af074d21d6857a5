"""The statuses of the networks of a run."""

from fleet.comm.messages import EpochDone, Failed
from fleet.control.effects import CheckpointRead, Outbox, SaveDeath
from fleet.control.networks import Networks
from fleet.domain.events import EpochEnded, GroupFailed, NetworkVerdict
from fleet.domain.network import Death, NetworkStatus, Outcome
from fleet.search.controller import LogEvent
from tests.fleet.histories import record, spec

DROPPED = NetworkVerdict("a", 1, "stop", ("median",))


def make_networks(retries=0, history=(record(1),)):
    """Return the network ``a``, and the outbox of effects."""
    networks, outbox = spec({"family": "softmax", "name": "a"}).networks, Outbox()
    return Networks(networks, {"a": NetworkStatus(history)}, retries, outbox), outbox


def test_network_pruned_inside_an_epoch_ends_that_epoch():
    networks, outbox = make_networks()
    networks.apply_verdict(DROPPED)
    networks.end_epoch(EpochDone("a", record(2), 0.0, ""))
    assert [type(effect.event) for effect in outbox.drain()] == [NetworkVerdict, EpochEnded]
    assert networks.is_over("a")
    assert networks.history("a") == (record(1), record(2))


def test_network_pruned_in_its_last_epoch_has_finished():
    networks, outbox = make_networks()
    networks.apply_verdict(DROPPED)
    networks.await_checkpoint("a")
    networks.restore(
        CheckpointRead("a", NetworkStatus((record(1), record(2)), Outcome("2 epochs")), 0)
    )
    assert [effect.event for effect in outbox.drain() if isinstance(effect, LogEvent)][-2:] == [
        EpochEnded("a", record(2)),
        GroupFailed("a", epochs=2, position=0, reason="2 epochs"),
    ]
    assert networks.is_final("a")


def test_pruned_network_stays_pruned_after_a_failure():
    networks, _ = make_networks(retries=1)
    networks.apply_verdict(DROPPED)
    assert networks.try_retry(Failed("a", "a disk is full", "", may_pass=True))
    networks.schedule_retry("a")
    networks.end_backoffs(1e6)
    assert networks.is_over("a")
    assert not networks.is_final("a")


def test_export_out_of_memory_is_retried_on_an_own_gpu():
    networks, _ = make_networks(history=())
    networks.end_epoch(EpochDone("a", record(1), 0.0, "1 epoch"))
    assert networks.try_isolate(
        Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), slots=2
    )
    assert networks.has_trainable


def make_two_networks(**options):
    """Return the networks ``a`` and ``b``, with one death of ``a``, and the outbox of effects."""
    networks = spec({"family": "softmax", "name": "a"}, {"family": "softmax", "name": "b"}).networks
    outbox = Outbox()
    return Networks(
        networks, {}, 0, outbox, deaths={"a": [Death("rank 1 died", 0)]}, **options
    ), outbox


def test_network_with_a_death_waits_for_all_others():
    networks, _ = make_two_networks()
    assert set(networks.unavailable) == {"a"}
    networks.finish("b", "done")
    assert set(networks.unavailable) == {"b"}


def test_network_with_a_death_does_not_wait_for_untrainable_ones():
    networks, _ = make_two_networks()
    assert networks.release_held()
    assert not networks.unavailable
    assert not networks.release_held()


def test_network_fails_after_max_deaths_without_an_epoch():
    networks, outbox = make_two_networks()
    networks.record_death("a", "rank 2 died")
    assert outbox.drain() == [SaveDeath("a", Death("rank 2 died", 0))]
    assert networks.check_deaths("a")[1] == 2
    assert "rank 1 died; rank 2 died" in networks.check_deaths("a")[0]
    networks.end_epoch(EpochDone("a", record(1), 0.0, ""))
    assert networks.check_deaths("a") == ("", 0)


def test_death_with_another_cause_fails_no_network():
    networks, _ = make_two_networks()
    networks.record_death("a", "rank 2 stopped answering", is_sure=False)
    assert networks.check_deaths("a")[0] == ""
