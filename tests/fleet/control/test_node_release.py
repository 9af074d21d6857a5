"""Nodes that are asked for: which are chosen, what their groups do, and when they are free."""

import pytest

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
from fleet.control.effects import EndRequested, NodesRequested, RanksDied
from fleet.errors import ExitStatus, UserError
from tests.fleet.control.driver import ControllerDriver

WANTED = {"a": [0, 1], "b": [3, 4], "c": [6]}


class Launch(ControllerDriver):
    """Three nodes of three ranks. Rank 0 coordinates; devices 0 and 1, 3 to 5, and 6 to 8 are ranks 1, 2, ... 8."""

    def __init__(self, plan=None, networks="abc", **rest):
        roles = assign((0,) * 3 + (1,) * 3 + (2,) * 3, None, None, own_preprocessing=True)
        super().__init__(plan or WANTED, networks, roles=roles, **rest)
        self.begin()
        for event in self.of("GroupStarted"):  # a step of 128 samples takes a second
            self.hear(Pace(event.network, 10, 128.0))

    def offer(self, count, within_s):
        return self.ensemble.offer_nodes(count, within_s, self.now)

    def wait(self, seconds):
        self.hear(None, after=seconds)

    def give_back(self, count=1, within_s=60.0):
        offer = self.offer(count, within_s)
        self.hear(NodesRequested("one", offer))
        return offer

    @property
    def released(self):
        return [
            (event.hosts, event.devices, event.seconds, event.has_ended)
            for event in self.of("NodesReleased")
        ]


def test_release_moves_the_groups_of_the_chosen_node():
    driver = Launch(hosts=("n1", "n2", "n3"))
    driver.plan = {"a": [0, 1], "b": [3, 4], "c": [5]}
    driver.wait(10.0)
    assert dict(driver.give_back().actions) == {"c": "app"}
    assert driver.read() == {6: [Pause(run_ends=True)]}
    driver.hear(Paused("c", 0), after=1.0)
    assert driver.read() == {6: [Stop(final=False)]}
    driver.hear(Stopped("c", 0.5))
    (start,) = driver.read()[
        5
    ]  # before its old rank has said that it waits: the checkpoint is written
    assert (type(start), start.network.name, driver.released) == (Start, "c", [])
    driver.hear(Ready(6), after=1.0)
    assert driver.released == [(("n3",), (6, 7, 8), 2.0, False)]


def test_release_prefers_nodes_with_fewer_groups():
    assert Launch({"a": [0], "b": [3], "c": [4]}).offer(1, 60.0).nodes == (2,)
    assert Launch({"a": [0], "b": [3], "c": [6]}).offer(2, 60.0).nodes == (2, 1)


def test_release_kills_the_cheapest_group_without_time_to_save():
    driver = Launch()
    driver.wait(100.0)
    driver.end_epoch("b", gpus=2)
    driver.wait(10.0)  # 2 GPUs have trained for 10 s since, one for 110 s
    offer = driver.give_back(within_s=1.0)
    assert (offer.nodes, dict(offer.actions)) == ((1,), {"b": "kill"})
    driver.read()
    driver.hear(Paused("b", 1))
    assert driver.read() == {3: [Stop(final=False, saves=False)]}


def test_checkpoints_inside_epochs_bound_what_is_lost():
    driver = Launch(parts={"checkpoint": {"every": "5s"}})
    driver.wait(100.0)
    assert driver.offer(1, 1.0).nodes == (2,)  # one GPU for 5 s, not two


def test_what_a_checkpoint_takes_is_what_the_last_one_took():
    driver = Launch()
    driver.wait(100.0)
    assert dict(driver.offer(1, 5.0).actions) == {"c": "kill"}
    driver.end_epoch("a", final="done")
    driver.hear(Stopped("a", 0.5))
    assert dict(driver.offer(1, 5.0).actions) == {"c": "app"}


def test_release_assumes_the_step_time_of_the_largest_batch():
    driver = Launch(
        parts={"train": {"batch": {"size": [128, 1024]}}, "schedule": {"policy": "elastic"}}
    )
    driver.wait(100.0)
    driver.end_epoch("a", final="done")
    driver.hear(Stopped("a", 0.5))
    assert [dict(driver.offer(1, within_s).actions) for within_s in (5.0, 9.0)] == [
        {"c": "kill"},
        {"c": "app"},
    ]


def test_a_node_without_groups_is_given_back_at_once():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "ab")
    driver.give_back()
    assert driver.released == [(("node 2",), (6, 7, 8), 0.0, False)]


def test_no_device_of_a_node_that_was_given_back_is_planned_for():
    driver = Launch()
    driver.give_back()
    assert driver.offer(1, 60.0).nodes == (1,)
    with pytest.raises(UserError, match="2 nodes cannot be released: this launch can release 1"):
        driver.offer(2, 60.0)


def test_release_tells_a_forming_group_once_it_has_formed():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "abc")
    driver.plan = WANTED
    driver.end_epoch("a")
    assert isinstance(driver.read()[6][0], Start)
    driver.give_back(2)
    assert 6 not in driver.read()
    driver.hear(Joined("c"))
    assert driver.read() == {6: [Pause(run_ends=True)]}


def test_release_frees_devices_of_a_group_that_fails():
    driver = Launch()
    driver.give_back()
    driver.hear(Failed("c", "the loss became nan", "", may_pass=False), Ready(6))
    assert driver.released


def test_release_ends_the_ranks_of_the_node_with_ulfm():
    driver = Launch(outlives=True)
    driver.give_back()
    driver.hear(Paused("c", 0), Stopped("c", 0.5))
    driver.read()
    driver.hear(Ready(6))
    mail = driver.read()
    assert [mail[rank][-1] for rank in (6, 7, 8)] == [LeaveLaunch()] * 3
    assert [event.has_ended for event in driver.of("NodesReleased")] == [True]
    driver.hear(RanksDied((6, 7, 8)))
    assert driver.of("RankDied") == []


def test_all_ranks_of_the_node_are_told_to_end_and_no_other():
    driver = Launch({"a": [0, 1], "b": [3, 4]}, "ab", outlives=True)
    driver.give_back()
    assert driver.read() == {rank: [LeaveLaunch()] for rank in (6, 7, 8)}


def test_release_does_not_wait_for_dead_ranks():
    driver = Launch(outlives=True)
    driver.give_back()
    driver.hear(RanksDied((6,)))
    assert driver.released
    assert [event.rank for event in driver.of("RankDied")] == [6]
    assert set(driver.read()) >= {7, 8}


def test_the_end_of_the_launch_goes_before():
    driver = Launch()
    driver.give_back()
    driver.hear(EndRequested("SIGTERM came"), Paused("c", 0))
    driver.hear(Paused("a", 0), Paused("b", 0))
    driver.read()
    driver.hear(*(Stopped(name, 0.1) for name in "abc"), *(Ready(rank) for rank in (1, 2, 3, 4, 6)))
    assert driver.ensemble.status is ExitStatus.RESUMABLE
    assert set(driver.read()) == set(range(1, 9))
    assert driver.released == []


def test_a_launch_says_when_too_little_would_be_left():
    driver = Launch({"a": [0, 1, 3, 4, 5, 6]}, "a", gpus={"a": [6, 6]})
    with pytest.raises(UserError, match="a needs 6 GPUs, but only 5 would be left"):
        driver.offer(1, 60.0)


def test_the_node_of_the_coordinator_stays():
    driver = Launch({"a": [0]}, "a")
    driver.give_back(2)
    with pytest.raises(UserError, match="1 node cannot be released: this launch can release 0"):
        driver.offer(1, 60.0)


def test_released_idle_ranks_are_told_when_the_run_ends():
    driver = Launch({"a": [0, 1]}, "a")
    driver.give_back()
    driver.end_epoch("a", final="done")
    driver.read()
    driver.hear(Stopped("a", 0.1), Ready(1), Ready(2))
    assert driver.ensemble.status is ExitStatus.OK
    assert driver.read() == {rank: [Exit()] for rank in range(1, 9)}
