"""Requests for nodes: which are chosen, what their groups do, and when they are free."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.messages import (
    Exit,
    Failed,
    Joined,
    LeaveLaunch,
    Pace,
    Pause,
    Paused,
    Ready,
    Start,
    Stop,
    Stopped,
)
from fleet.comm.roles import assign
from fleet.companions.node_release.release import PlannedRelease, parse_request
from fleet.control.effects import EndRequested, NodesRequested, RanksDied
from fleet.domain.events import NodesReleased
from fleet.errors import ExitStatus, UserError
from tests.examples import examples
from tests.fleet.control.driver import ControllerDriver
from tests.fleet.control.test_random_launches import all_policies, check_status, launches
from tests.refusals import refused

PLAN = {"a": [0, 1], "b": [3, 4], "c": [6]}


class Launch(ControllerDriver):
    """A launch on three nodes of three ranks.

    Rank 0 coordinates; devices 0 and 1, 3 to 5, and 6 to 8 are ranks 1, 2, ... 8.
    """

    make_node_release = PlannedRelease

    def __init__(self, plan=None, networks="abc", **options):
        roles = assign((0,) * 3 + (1,) * 3 + (2,) * 3, None, None, own_preprocessing=True)
        super().__init__(plan or PLAN, networks, roles=roles, **options)
        self.begin()
        for event in self.events_of("GroupStarted"):  # a step of 128 samples takes a second
            self.handle(Pace(event.network, 10, 128.0))

    def offer(self, count, within_s):
        return self.controller.node_release.offer(count, within_s, self.now)

    def wait(self, seconds):
        self.handle(None, after=seconds)

    def release(self, count=1, within_s=60.0):
        offer = self.offer(count, within_s)
        self.handle(NodesRequested("one", offer))
        return offer

    @property
    def released(self):
        return [
            (event.hosts, event.devices, event.seconds, event.has_ended)
            for event in self.events_of("NodesReleased")
        ]


def test_release_moves_the_groups_of_the_chosen_node():
    driver = Launch(hosts=("n1", "n2", "n3"))
    driver.plan = {"a": [0, 1], "b": [3, 4], "c": [5]}
    driver.wait(10.0)
    assert dict(driver.release().actions) == {"c": "app"}
    assert driver.read_mail() == {6: [Pause(run_ends=True)]}
    driver.handle(Paused("c", 0), after=1.0)
    assert driver.read_mail() == {6: [Stop(final=False)]}
    driver.handle(Stopped("c", 0.5))
    # before its old rank is ready: the checkpoint is written
    (start,) = driver.read_mail()[5]
    assert (type(start), start.network.name, driver.released) == (Start, "c", [])
    driver.handle(Ready(6), after=1.0)
    assert driver.released == [(("n3",), (6, 7, 8), 2.0, False)]


def test_release_prefers_nodes_with_fewer_groups():
    assert Launch({"a": [0], "b": [3], "c": [4]}).offer(1, 60.0).nodes == (2,)
    assert Launch({"a": [0], "b": [3], "c": [6]}).offer(2, 60.0).nodes == (2, 1)


def test_release_kills_the_cheapest_group_without_time_to_save():
    driver = Launch()
    driver.wait(100.0)
    driver.end_epoch("b", gpus=2)
    driver.wait(10.0)  # 2 GPUs have trained for 10 s since, one for 110 s
    offer = driver.release(within_s=1.0)
    assert (offer.nodes, dict(offer.actions)) == ((1,), {"b": "kill"})
    driver.read_mail()
    driver.handle(Paused("b", 1))
    assert driver.read_mail() == {3: [Stop(final=False, saves=False)]}


def test_release_counts_checkpoints_inside_epochs():
    driver = Launch(parts={"checkpoint": {"every": "5s"}})
    driver.wait(100.0)
    assert driver.offer(1, 1.0).nodes == (2,)  # one GPU for 5 s, not two


def test_release_assumes_the_duration_of_the_last_checkpoint():
    driver = Launch()
    driver.wait(100.0)
    assert dict(driver.offer(1, 5.0).actions) == {"c": "kill"}
    driver.end_epoch("a", final="done")
    driver.handle(Stopped("a", 0.5))
    assert dict(driver.offer(1, 5.0).actions) == {"c": "app"}


def test_release_assumes_the_step_time_of_the_largest_batch():
    driver = Launch(
        parts={"train": {"batch": {"size": [128, 1024]}}, "schedule": {"policy": "elastic"}}
    )
    driver.wait(100.0)
    driver.end_epoch("a", final="done")
    driver.handle(Stopped("a", 0.5))
    assert [dict(driver.offer(1, within_s).actions) for within_s in (5.0, 9.0)] == [
        {"c": "kill"},
        {"c": "app"},
    ]


def test_release_of_a_node_without_groups_is_immediate():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "ab")
    driver.release()
    assert driver.released == [(("node 2",), (6, 7, 8), 0.0, False)]


def test_released_nodes_cannot_be_released_again():
    driver = Launch()
    driver.release()
    assert driver.offer(1, 60.0).nodes == (1,)
    with refused(UserError, "2 nodes", "release 1,"):
        driver.offer(2, 60.0)


def test_release_pauses_a_forming_group_once_it_has_formed():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "abc")
    driver.plan = PLAN
    driver.end_epoch("a")
    assert isinstance(driver.read_mail()[6][0], Start)
    driver.release(2)
    assert 6 not in driver.read_mail()
    driver.handle(Joined("c"))
    assert driver.read_mail() == {6: [Pause(run_ends=True)]}


def test_release_frees_devices_of_a_group_that_fails():
    driver = Launch()
    driver.release()
    driver.handle(Failed("c", "the loss became nan", "", may_pass=False), Ready(6))
    assert driver.released


def test_release_ends_the_ranks_of_the_node_with_ulfm():
    driver = Launch(outlives=True)
    driver.release()
    driver.handle(Paused("c", 0), Stopped("c", 0.5))
    driver.read_mail()
    driver.handle(Ready(6))
    mail = driver.read_mail()
    assert [mail[rank][-1] for rank in (6, 7, 8)] == [LeaveLaunch()] * 3
    assert [event.has_ended for event in driver.events_of("NodesReleased")] == [True]
    driver.handle(RanksDied((6, 7, 8)))
    assert driver.events_of("RankDied") == []


def test_release_ends_all_ranks_of_the_node_and_no_others():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "ab", outlives=True)
    driver.release()
    assert driver.read_mail() == {rank: [LeaveLaunch()] for rank in (6, 7, 8)}


def test_release_does_not_wait_for_dead_ranks():
    driver = Launch(outlives=True)
    driver.release()
    driver.handle(RanksDied((6,)))
    assert driver.released
    assert [event.rank for event in driver.events_of("RankDied")] == [6]
    assert set(driver.read_mail()) >= {7, 8}


def test_end_request_takes_precedence_over_a_release():
    driver = Launch()
    driver.release()
    driver.handle(EndRequested("SIGTERM came"), Paused("c", 0))
    driver.handle(Paused("a", 0), Paused("b", 0))
    driver.read_mail()
    driver.handle(
        *(Stopped(name, 0.1) for name in "abc"), *(Ready(rank) for rank in (1, 2, 3, 4, 6))
    )
    assert driver.controller.status is ExitStatus.RESUMABLE
    assert set(driver.read_mail()) == set(range(1, 9))
    assert driver.released == []


def test_release_is_refused_if_too_few_gpus_would_be_left():
    driver = Launch({"a": [0, 1, 3, 4, 5, 6]}, "a", gpus={"a": [6, 6]})
    with refused(UserError, "a needs 6 GPUs", "only 5"):
        driver.offer(1, 60.0)


def test_release_keeps_the_node_of_the_coordinator():
    driver = Launch({"a": [0]}, "a")
    driver.release(2)
    with refused(UserError, "1 node", "release 0,"):
        driver.offer(1, 60.0)


def test_released_idle_ranks_exit_with_the_run():
    driver = Launch({"a": [0, 1]}, "a")
    driver.release()
    driver.end_epoch("a", final="done")
    driver.read_mail()
    driver.handle(Stopped("a", 0.1), Ready(1), Ready(2))
    assert driver.controller.status is ExitStatus.OK
    assert driver.read_mail() == {rank: [Exit()] for rank in range(1, 9)}


@pytest.mark.long_but_first
@all_policies
@settings(max_examples=examples(40))
@given(st.data())
def test_random_launch_releases_nodes_and_trains_on(policy, data):
    ranks = data.draw(
        launches(
            policy,
            nodes=st.integers(2, 3),
            make_node_release=PlannedRelease,
            outlives=st.booleans(),
            deaths=st.sampled_from([0, 0, 0, 1]),
            node_requests=st.dictionaries(
                st.integers(1, 150),
                st.tuples(st.integers(1, 2), st.sampled_from([0.1, 5, 120])),
                min_size=1,
                max_size=2,
            ),
        )
    )
    status = ranks.run()
    proposals = [
        message.offer.nodes for _, message, _ in ranks.inputs if isinstance(message, NodesRequested)
    ]
    remaining = [event.nodes for event in ranks.events if isinstance(event, NodesReleased)]
    assert len(set(remaining)) == len(remaining)
    # the launch may end before all requested nodes are released
    assert set(remaining) <= set(proposals)
    if not ranks.setup.outlives:
        ranks.check_end()
    check_status(status, ranks)
    ranks.check_histories()
    ranks.repeat()


def test_choose_returns_the_event_and_the_input_of_a_command():
    driver = Launch(hosts=("n1", "n2", "n3"))
    content = {"nodes": 1, "within_s": 60}
    event, request = driver.controller.node_release.choose("one", content, driver.now)
    assert (event.do, event.networks) == ("yield", ("c",))
    assert event.given == {"nodes": [2], "hosts": ["n3"], "within_s": 60, "ways": {"c": "app"}}
    assert request == NodesRequested("one", driver.offer(1, 60.0))


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ({"nodes": 0, "within_s": 5}, "nodes is 0"),
        ({"nodes": True, "within_s": 5}, "nodes is True"),
        ({"nodes": 1, "within_s": "2min"}, "within_s is '2min'"),
        ({"nodes": 1, "within_s": -1}, "within_s is -1"),
        ({"nodes": 1, "within_s": float("nan")}, "within_s is nan"),
        ({"nodes": 1}, "within_s is None"),
    ],
)
def test_parse_request_refuses_invalid_values(content, wrong):
    with refused(UserError, wrong):
        parse_request(content)
