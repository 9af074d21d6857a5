"""Requests of a launch for leases of networks, if several launches share a run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.control.lease_requests import LeaseRequests, LeaveRun, ReleaseLease, RequestLeases
from tests.examples import examples

NAMES = "abcde"


def test_lease_requests_prefer_few_epochs_up_to_the_maximum():
    claims = LeaseRequests({"a": 4, "b": 0, "c": 2}, max_leases=2, idle_s=300)
    assert claims.decide(0.0) == [RequestLeases(("b", "c", "a"), 2)]
    claims.add_lease("b", 0, is_over=False)
    assert claims.decide(1.0) == [RequestLeases(("c", "a"), 2)]
    claims.add_lease("a", 5, is_over=False)
    assert claims.decide(2.0) == [RequestLeases((), 0)]
    claims.end_lease("b")
    assert claims.decide(3.0) == [ReleaseLease("b"), RequestLeases(("c",), 2)]


def test_lease_of_a_finished_network_is_released():
    claims = LeaseRequests({"a": 4, "b": 5}, max_leases=1, idle_s=300)
    claims.decide(0.0)
    claims.add_lease("a", 9, is_over=True)
    assert claims.decide(1.0) == [ReleaseLease("a"), RequestLeases(("b",), 1)]


def test_launch_leaves_after_a_time_without_networks():
    claims = LeaseRequests({"a": 0, "b": 0}, max_leases=1, idle_s=10)
    claims.decide(0.0)
    claims.add_lease("a", 0, is_over=False)
    claims.decide(9.0)
    assert claims.decide(100.0) == []
    claims.end_lease("a")
    claims.decide(100.0)
    assert claims.decide(109.0) == []
    effects = claims.decide(110.0)
    assert effects[0] == RequestLeases((), 0)
    assert isinstance(effects[1], LeaveRun)
    assert "for 10.0 s" in effects[1].reason
    assert claims.decide(200.0) == []


def test_lease_of_a_paused_network_does_not_count():
    claims = LeaseRequests({"a": 0, "b": 0}, max_leases=1, idle_s=10)
    claims.decide(0.0)
    claims.add_lease("a", 1, is_over=False)
    assert claims.decide(1.0, ["a"]) == [RequestLeases(("b",), 2)]
    claims.add_lease("b", 1, is_over=False)
    assert claims.decide(2.0, ["a"]) == [RequestLeases((), 0)]
    assert claims.decide(100.0, ["a"]) == []  # b trains
    claims.decide(101.0, ["b", "a"])
    assert not any(isinstance(effect, LeaveRun) for effect in claims.decide(110.0, ["b", "a"]))
    assert isinstance(claims.decide(111.0, ["b", "a"])[-1], LeaveRun)


def test_launch_without_remaining_networks_does_not_leave():
    claims = LeaseRequests({"a": 0}, max_leases=1, idle_s=10)
    claims.add_lease("a", 3, is_over=True)
    claims.decide(0.0)
    assert claims.decide(100.0) == []


def test_lease_requests_are_empty_at_the_end():
    claims = LeaseRequests({"a": 0, "b": 0}, max_leases=2, idle_s=10)
    claims.add_lease("a", 0, is_over=False)
    claims.decide(0.0)
    claims.end()
    assert claims.decide(1.0) == [RequestLeases((), 0)]
    claims.end_lease("a")
    assert claims.decide(2.0) == [ReleaseLease("a")]


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_lease_requests_end_with_all_networks_over(data):
    """Two launches share leases: no network is held twice, and all networks are trained."""
    launches = [
        LeaseRequests(dict.fromkeys(NAMES, 0), data.draw(st.integers(1, 3)), idle_s=1e9)
        for _ in range(2)
    ]
    wants, holders, done = [RequestLeases((), 0), RequestLeases((), 0)], {}, set()
    for now in range(200):
        names = data.draw(st.integers(0, 1)) if now < 100 else now % 2
        claims = launches[names]
        free = [name for name in wants[names].names if name not in holders]
        local = sorted(name for name, holder in holders.items() if holder == names)
        if (
            free
            and len(local) < wants[names].max_leases
            and (now >= 100 or data.draw(st.booleans()))
        ):
            claims.add_lease(free[0], 0, free[0] in done)
            holders[free[0]] = names
        elif local and (now >= 100 or data.draw(st.booleans())):
            done.add(local[0])
            claims.end_lease(local[0])
        for effect in claims.decide(float(now)):
            if isinstance(effect, RequestLeases):
                wants[names] = effect
            elif isinstance(effect, ReleaseLease):
                assert holders.pop(effect.network) == names
                assert effect.network in done
    assert done == set(NAMES)
    assert not holders
