"""Requests of a launch for leases of networks, if several launches share a run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.companions.shared_run.lease_requests import LeaseRequest, LeaseRequests
from tests.examples import examples

NAMES = "abcde"


def test_lease_requests_prefer_few_epochs_up_to_the_maximum():
    requests = LeaseRequests({"a": 4, "b": 0, "c": 2}, max_leases=2, idle_s=300)
    assert requests.decide(0.0) == LeaseRequest(("b", "c", "a"), 2)
    requests.add_lease("b", 0)
    assert requests.decide(1.0) == LeaseRequest(("c", "a"), 2)
    requests.add_lease("a", 5)
    assert requests.decide(2.0) == LeaseRequest()
    requests.end_lease("b")
    assert requests.decide(3.0) == LeaseRequest(("c",), 2)


def test_launch_leaves_after_a_time_without_networks():
    requests = LeaseRequests({"a": 0, "b": 0}, max_leases=1, idle_s=10)
    requests.decide(0.0)
    requests.add_lease("a", 0)
    requests.decide(9.0)
    assert requests.decide(100.0) == LeaseRequest()
    requests.end_lease("a")
    requests.decide(100.0)
    assert requests.decide(109.0) == LeaseRequest(("b",), 1)
    request = requests.decide(110.0)
    assert request[:2] == ((), 0)
    assert "for 10.0 s" in request.leave_reason
    assert requests.decide(200.0) == LeaseRequest()


def test_lease_of_a_paused_network_does_not_count():
    requests = LeaseRequests({"a": 0, "b": 0}, max_leases=1, idle_s=10)
    requests.decide(0.0)
    requests.add_lease("a", 1)
    assert requests.decide(1.0, ["a"]) == LeaseRequest(("b",), 2)
    requests.add_lease("b", 1)
    assert requests.decide(2.0, ["a"]) == LeaseRequest()
    assert requests.decide(100.0, ["a"]) == LeaseRequest()  # b trains
    requests.decide(101.0, ["b", "a"])
    assert not requests.decide(110.0, ["b", "a"]).leave_reason
    assert requests.decide(111.0, ["b", "a"]).leave_reason


def test_launch_without_remaining_networks_does_not_leave():
    requests = LeaseRequests({"a": 0}, max_leases=1, idle_s=10)
    requests.add_lease("a", 3)
    requests.end_lease("a")
    requests.decide(0.0)
    assert requests.decide(100.0) == LeaseRequest((), 1)


def test_lease_requests_are_empty_at_the_end():
    requests = LeaseRequests({"a": 0, "b": 0}, max_leases=2, idle_s=10)
    requests.add_lease("a", 0)
    requests.decide(0.0)
    assert requests.decide(1.0, ends=True) == LeaseRequest()
    requests.end_lease("a")
    assert requests.decide(2.0) == LeaseRequest()


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_lease_requests_end_with_all_networks_over(data):
    """Two launches share leases: no network is held twice, and all networks are trained."""
    launches = [
        LeaseRequests(dict.fromkeys(NAMES, 0), data.draw(st.integers(1, 3)), idle_s=1e9)
        for _ in range(2)
    ]
    wants, holders, done = [LeaseRequest(), LeaseRequest()], {}, set()

    def end(index, name):
        launches[index].end_lease(name)
        assert holders.pop(name) == index

    for now in range(200):
        index = data.draw(st.integers(0, 1)) if now < 100 else now % 2
        requests = launches[index]
        free = [name for name in wants[index].names if name not in holders]
        local = sorted(name for name, holder in holders.items() if holder == index)
        if (
            free
            and len(local) < wants[index].max_leases
            and (now >= 100 or data.draw(st.booleans()))
        ):
            requests.add_lease(free[0], 0)
            holders[free[0]] = index
            if free[0] in done:
                end(index, free[0])
        elif local and (now >= 100 or data.draw(st.booleans())):
            done.add(local[0])
            end(index, local[0])
        wants[index] = requests.decide(float(now))
    assert done == set(NAMES)
    assert not holders
