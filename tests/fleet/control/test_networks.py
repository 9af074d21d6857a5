"""The index of the networks of a launch, and what changes it."""

from fleet.comm.messages import EpochDone, Failed
from fleet.control.effects import CheckpointRead, LogEvent, Outbox, SaveDeath
from fleet.control.network_changes import NetworkChanges
from fleet.control.networks import Networks, WaitingNetworks
from fleet.control.retries import Retries
from fleet.domain.events import EpochEnded, GroupFailed, NetworkFinished, NetworkVerdict
from fleet.domain.network import Death, NetworkStatus, Outcome
from fleet.domain.run import RunState
from tests.fleet.histories import record, spec

PRUNED = NetworkVerdict("a", 1, "stop", ("median",))


class Parts:
    """The networks of a launch, with what changes them, and the outbox of effects."""

    def __init__(self, names="a", history=(record(1),), retries=0, deaths=None):
        content = spec(*({"family": "softmax", "name": name} for name in names))
        run = RunState(content)
        run.restore({"a": NetworkStatus(history)})
        self.outbox = Outbox(run)
        self.waiting = WaitingNetworks(deaths=deaths or {})
        self.networks = Networks(run, content.networks, self.waiting)
        self.changes = NetworkChanges(self.networks, self.outbox)
        self.retries = Retries(retries, self.outbox, self.waiting)

    def events(self):
        return [effect.event for effect in self.outbox.drain() if isinstance(effect, LogEvent)]


def test_network_pruned_inside_an_epoch_ends_that_epoch():
    parts = Parts()
    parts.outbox.log(PRUNED)
    parts.changes.end_epoch(EpochDone("a", record(2), 0.0, ""))
    assert list(map(type, parts.events())) == [NetworkVerdict, EpochEnded]
    assert parts.networks.is_over("a")
    assert parts.networks.history("a") == (record(1), record(2))


def test_network_pruned_in_its_last_epoch_has_finished():
    parts = Parts()
    parts.outbox.log(PRUNED)
    parts.changes.await_checkpoint("a")
    parts.changes.restore(
        CheckpointRead("a", NetworkStatus((record(1), record(2)), Outcome("2 epochs")), 0)
    )
    assert parts.events()[-2:] == [
        EpochEnded("a", record(2)),
        GroupFailed("a", epochs=2, position=0, reason="2 epochs"),
    ]
    assert parts.networks.is_final("a")


def test_pruned_network_stays_pruned_after_a_failure():
    parts = Parts(retries=1)
    parts.outbox.log(PRUNED)
    assert parts.retries.try_retry(Failed("a", "a disk is full", "", may_pass=True))
    parts.retries.schedule("a")
    parts.outbox.now_s = 1e6
    parts.retries.end_backoffs()
    assert parts.networks.is_over("a")
    assert not parts.networks.is_final("a")


def test_export_out_of_memory_is_retried_on_an_own_gpu():
    parts = Parts(history=())
    parts.changes.end_epoch(EpochDone("a", record(1), 0.0, "1 epoch"))
    assert parts.retries.try_isolate(
        Failed("a", "out of memory", "", may_pass=False, out_of_memory=True), slots=2
    )
    assert parts.networks.has_trainable


def test_network_waits_until_its_retry_is_due():
    parts = Parts(retries=1)
    assert parts.retries.try_retry(Failed("a", "a disk is full", "", may_pass=True))
    parts.retries.schedule("a")
    assert set(parts.networks.unavailable) == {"a"}
    parts.outbox.now_s = parts.retries.next_s
    assert parts.retries.end_backoffs()
    assert not parts.networks.unavailable


def test_unleased_network_has_not_ended_for_this_launch():
    parts = Parts()
    parts.waiting.unleased.add("a")
    parts.outbox.run.set_status("a", NetworkStatus((record(1),), Outcome("1 epoch")))
    assert set(parts.networks.unavailable) == {"a"}
    assert not parts.networks.is_over("a")
    assert parts.networks.has_trainable
    parts.waiting.unleased.remove("a")
    assert parts.networks.are_over


def make_two(**options):
    """Return the networks ``a`` and ``b``, with one death of ``a``."""
    return Parts("ab", history=(), deaths={"a": [Death("rank 1 died", 0)]}, **options)


def test_network_with_a_death_waits_for_all_others():
    parts = make_two()
    assert set(parts.networks.unavailable) == {"a"}
    parts.outbox.log(NetworkFinished("b", "done", 0))
    assert set(parts.networks.unavailable) == {"b"}


def test_network_with_a_death_does_not_wait_for_untrainable_ones():
    parts = make_two()
    assert parts.changes.release_held()
    assert not parts.networks.unavailable
    assert not parts.changes.release_held()


def test_network_fails_after_max_deaths_without_an_epoch():
    parts = make_two()
    parts.changes.record_death("a", "rank 2 died")
    assert parts.outbox.drain() == [SaveDeath("a", Death("rank 2 died", 0))]
    assert parts.changes.check_deaths("a")[1] == 2
    assert "rank 1 died; rank 2 died" in parts.changes.check_deaths("a")[0]
    parts.changes.end_epoch(EpochDone("a", record(1), 0.0, ""))
    assert parts.changes.check_deaths("a") == ("", 0)


def test_death_with_another_cause_fails_no_network():
    parts = make_two()
    parts.changes.record_death("a", "rank 2 stopped answering", is_sure=False)
    assert parts.changes.check_deaths("a")[0] == ""
