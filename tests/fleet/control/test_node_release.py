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
from tests.fleet.control.told import Told

WANTED = {"a": [0, 1], "b": [3, 4], "c": [6]}


class Launch(Told):
    """Three nodes of three ranks. Rank 0 coordinates; devices 0 and 1, 3 to 5, and 6 to 8 are ranks 1, 2, ... 8."""

    def __init__(self, wanted=None, networks="abc", **rest):
        roles = assign((0,) * 3 + (1,) * 3 + (2,) * 3, None, None, own_preprocessing=True)
        super().__init__(wanted or WANTED, networks, roles=roles, **rest)
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
    def left(self):
        return [
            (event.hosts, event.devices, event.seconds, event.has_ended)
            for event in self.of("NodesReleased")
        ]


def test_release_moves_the_groups_of_the_chosen_node():
    told = Launch(hosts=("n1", "n2", "n3"))
    told.wanted = {"a": [0, 1], "b": [3, 4], "c": [5]}
    told.wait(10.0)
    assert dict(told.give_back().actions) == {"c": "app"}
    assert told.read() == {6: [Pause(ends=True)]}
    told.hear(Paused("c", 0), after=1.0)
    assert told.read() == {6: [Stop(final=False)]}
    told.hear(Stopped("c", 0.5))
    (start,) = told.read()[
        5
    ]  # before its old rank has said that it waits: the checkpoint is written
    assert (type(start), start.network.name, told.left) == (Start, "c", [])
    told.hear(Ready(6), after=1.0)
    assert told.left == [(("n3",), (6, 7, 8), 2.0, False)]


def test_release_prefers_nodes_with_fewer_groups():
    assert Launch({"a": [0], "b": [3], "c": [4]}).offer(1, 60.0).nodes == (2,)
    assert Launch({"a": [0], "b": [3], "c": [6]}).offer(2, 60.0).nodes == (2, 1)


def test_release_kills_the_cheapest_group_without_time_to_save():
    told = Launch()
    told.wait(100.0)
    told.end_epoch("b", gpus=2)
    told.wait(10.0)  # 2 GPUs have trained for 10 s since, one for 110 s
    offer = told.give_back(within_s=1.0)
    assert (offer.nodes, dict(offer.actions)) == ((1,), {"b": "kill"})
    told.read()
    told.hear(Paused("b", 1))
    assert told.read() == {3: [Stop(final=False, saves=False)]}


def test_checkpoints_inside_epochs_bound_what_is_lost():
    told = Launch(parts={"checkpoint": {"every": "5s"}})
    told.wait(100.0)
    assert told.offer(1, 1.0).nodes == (2,)  # one GPU for 5 s, not two


def test_what_a_checkpoint_takes_is_what_the_last_one_took():
    told = Launch()
    told.wait(100.0)
    assert dict(told.offer(1, 5.0).actions) == {"c": "kill"}
    told.end_epoch("a", final="done")
    told.hear(Stopped("a", 0.5))
    assert dict(told.offer(1, 5.0).actions) == {"c": "app"}


def test_release_assumes_the_step_time_of_the_largest_batch():
    told = Launch(
        parts={"train": {"batch": {"size": [128, 1024]}}, "schedule": {"policy": "elastic"}}
    )
    told.wait(100.0)
    told.end_epoch("a", final="done")
    told.hear(Stopped("a", 0.5))
    assert [dict(told.offer(1, within_s).actions) for within_s in (5.0, 9.0)] == [
        {"c": "kill"},
        {"c": "app"},
    ]


def test_a_node_without_groups_is_given_back_at_once():
    told = Launch({"a": [0, 1], "b": [3, 4]}, "ab")
    told.give_back()
    assert told.left == [(("node 2",), (6, 7, 8), 0.0, False)]


def test_no_device_of_a_node_that_was_given_back_is_planned_for():
    told = Launch()
    told.give_back()
    assert told.offer(1, 60.0).nodes == (1,)
    with pytest.raises(UserError, match="2 nodes cannot be released: this launch can release 1"):
        told.offer(2, 60.0)


def test_release_tells_a_forming_group_once_it_has_formed():
    told = Launch({"a": [0, 1], "b": [3, 4]}, "abc")
    told.wanted = WANTED
    told.end_epoch("a")
    assert isinstance(told.read()[6][0], Start)
    told.give_back(2)
    assert 6 not in told.read()
    told.hear(Joined("c"))
    assert told.read() == {6: [Pause(ends=True)]}


def test_release_frees_devices_of_a_group_that_fails():
    told = Launch()
    told.give_back()
    told.hear(Failed("c", "the loss became nan", "", may_pass=False), Ready(6))
    assert told.left


def test_release_ends_the_ranks_of_the_node_with_ulfm():
    told = Launch(outlives=True)
    told.give_back()
    told.hear(Paused("c", 0), Stopped("c", 0.5))
    told.read()
    told.hear(Ready(6))
    mail = told.read()
    assert [mail[rank][-1] for rank in (6, 7, 8)] == [LeaveLaunch()] * 3
    assert [event.has_ended for event in told.of("NodesReleased")] == [True]
    told.hear(RanksDied((6, 7, 8)))
    assert told.of("RankDied") == []


def test_all_ranks_of_the_node_are_told_to_end_and_no_other():
    told = Launch({"a": [0, 1], "b": [3, 4]}, "ab", outlives=True)
    told.give_back()
    assert told.read() == {rank: [LeaveLaunch()] for rank in (6, 7, 8)}


def test_release_does_not_wait_for_dead_ranks():
    told = Launch(outlives=True)
    told.give_back()
    told.hear(RanksDied((6,)))
    assert told.left
    assert [event.rank for event in told.of("RankDied")] == [6]
    assert set(told.read()) >= {7, 8}


def test_the_end_of_the_launch_goes_before():
    told = Launch()
    told.give_back()
    told.hear(EndRequested("SIGTERM came"), Paused("c", 0))
    told.hear(Paused("a", 0), Paused("b", 0))
    told.read()
    told.hear(*(Stopped(name, 0.1) for name in "abc"), *(Ready(rank) for rank in (1, 2, 3, 4, 6)))
    assert told.ensemble.status is ExitStatus.RESUMABLE
    assert set(told.read()) == set(range(1, 9))
    assert told.left == []


def test_a_launch_says_when_too_little_would_be_left():
    told = Launch({"a": [0, 1, 3, 4, 5, 6]}, "a", gpus={"a": [6, 6]})
    with pytest.raises(UserError, match="a needs 6 GPUs, but only 5 would be left"):
        told.offer(1, 60.0)


def test_the_node_of_the_coordinator_stays():
    told = Launch({"a": [0]}, "a")
    told.give_back(2)
    with pytest.raises(UserError, match="1 node cannot be released: this launch can release 0"):
        told.offer(1, 60.0)


def test_released_idle_ranks_are_told_when_the_run_ends():
    told = Launch({"a": [0, 1]}, "a")
    told.give_back()
    told.end_epoch("a", final="done")
    told.read()
    told.hear(Stopped("a", 0.1), Ready(1), Ready(2))
    assert told.ensemble.status is ExitStatus.OK
    assert told.read() == {rank: [Exit()] for rank in range(1, 9)}
