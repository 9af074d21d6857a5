"""What every World promises, each promise a function that all ranks of a launch call: see fleet.comm.protocols.

The same functions are called by the ranks of one process (test_promises.py), and by those that mpirun starts
(tests/mpi/test_world.py).
"""

import inspect
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from fleet.comm import protocols
from fleet.comm.messages import Pace, Ready, Tag

PROMISES = {}
# Of ranks that are processes: those of one process take turns, and each would wait for the others by a file for ever.
OF_PROCESSES = {"what_has_come_is_heard_at_the_first_look"}


def promise(function):
    """Number it: no two groups of a launch have one number."""
    PROMISES[function.__name__] = (function, 10 * len(PROMISES))
    return function


def keep(name, world):
    """Call a promise on this rank."""
    function, number = PROMISES[name]
    function(world, number)


def differences(protocol, kept_by):
    """The methods of a protocol that something lacks, or has with other parameters."""
    results = []
    for name, member in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        parameters = inspect.signature(member).parameters.values()
        own_rows = (
            inspect.signature(getattr(kept_by, name)).parameters.values()
            if hasattr(kept_by, name)
            else ()
        )
        if [(p.name, p.default, p.kind) for p in parameters] != [
            (p.name, p.default, p.kind) for p in own_rows
        ]:
            results.append(name)
    return results


def lacking(protocol, instance):
    """The attributes and properties of a protocol that an instance does not have."""
    named = {
        *protocol.__annotations__,
        *(name for name, member in vars(protocol).items() if isinstance(member, property)),
    }
    return sorted(name for name in named if not hasattr(instance, name))


# ---- what there is -----------------------------------------------------------------------------


@promise
def all_that_the_protocols_name_is_there(world, number):
    group = world.group([world.rank], number)
    started = group.start_broadcast([np.zeros(1)], root=0)
    for protocol, instance in (
        (protocols.World, world),
        (protocols.Group, group),
        (protocols.Broadcast, started),
    ):
        assert differences(protocol, type(instance)) == []
        assert lacking(protocol, instance) == []
    world.wait(lambda: started.is_done() or None)


@promise
def ranks_know_their_places(world, number):
    assert 0 <= world.rank < world.size
    nodes = world.node_of()
    assert len(nodes) == world.size
    assert sorted(set(nodes), key=nodes.index) == list(range(max(nodes) + 1))
    assert isinstance(world.library_name(), str)


@promise
def nobody_is_lost_without_a_death(world, number):
    world.check_for_deaths()
    assert world.dead_ranks == frozenset()


# ---- messages ----------------------------------------------------------------------------------


@promise
def messages_of_one_sender_come_in_order(world, number):
    for position in range(3):
        for rank in range(world.size):
            world.send(rank, Tag.TRAINER, Pace(str(world.rank), position, 0.0))
    received = [world.wait_for_message(Tag.TRAINER) for _ in range(3 * world.size)]
    for rank in range(world.size):
        assert [message.samples for message in received if message.network == str(rank)] == [
            0,
            1,
            2,
        ]
    assert world.receive(Tag.TRAINER) is None


@promise
def a_message_is_heard_under_its_tag_only(world, number):
    world.send(world.rank, Tag.COORDINATOR, Ready(1))
    world.send(world.rank, Tag.PREPROCESSOR, Ready(2))
    assert world.wait_for_message(Tag.PREPROCESSOR) == Ready(2)
    assert world.receive(Tag.TRAINER) is None
    assert world.wait_for_message(Tag.COORDINATOR) == Ready(1)


@promise
def what_has_come_is_heard_at_the_first_look(world, number):
    """Files say that it is sent once none of the others calls MPI any more, and heard after that."""
    folder = Path(world.broadcast_value(tempfile.mkdtemp() if world.rank == 0 else None))

    def await_files(*names):
        while not all((folder / name).exists() for name in names):
            time.sleep(0.001)

    if world.rank == 0:
        await_files(*map(str, range(1, world.size)))
        for rank in range(1, world.size):
            world.send(rank, Tag.TRAINER, Ready(number))
        (folder / "sent").touch()
    else:
        (folder / str(world.rank)).touch()
        await_files("sent")
        assert world.receive(Tag.TRAINER) == Ready(number)
    world.allgather(None)
    if world.rank == 0:
        shutil.rmtree(folder)


# ---- waiting -----------------------------------------------------------------------------------


@promise
def a_rank_that_is_never_kept_waiting_does_its_duties_all_the_same(world, number):
    done = []
    world.background_tasks.append(lambda: done.append("busy") or True)
    world.background_tasks.append(lambda: done.append("idle") or False)
    assert world.wait(lambda: "at once") == "at once"
    assert done == ["busy", "idle"]
    world.background_tasks.clear()


@promise
def duties_go_on_for_as_long_as_a_rank_waits(world, number):
    done = []
    world.background_tasks.append(lambda: len(done) < 5 and not done.append(1))
    assert world.wait(lambda: len(done) if len(done) == 5 else None) == 5
    world.background_tasks.clear()


@promise
def duties_are_done_on_demand(world, number):
    assert world.run_background_tasks() is False
    world.background_tasks[:] = [lambda: True, lambda: False]
    assert world.run_background_tasks() is True
    world.background_tasks.clear()


@promise
def duties_are_done_while_a_rank_rests(world, number):
    done = []
    world.background_tasks.append(lambda: done.append(1) or True)
    world.sleep(0.001)
    assert done
    world.background_tasks.clear()


@promise
def duties_are_done_inside_a_collective_of_a_group(world, number):
    group, done = world.group(range(world.size), number), []
    world.background_tasks.append(lambda: done.append(1) or True)
    group.sum(np.zeros(1))
    assert done or world.size == 1
    world.background_tasks.clear()


# ---- all ranks ---------------------------------------------------------------------------------


@promise
def all_ranks_share_the_roots_value(world, number):
    for root in range(world.size):
        assert world.broadcast_value({"of": root} if world.rank == root else None, root) == {
            "of": root
        }


@promise
def all_ranks_gather_everybodys_value_in_order(world, number):
    assert world.allgather(f"rank {world.rank}") == [f"rank {rank}" for rank in range(world.size)]


# ---- groups ------------------------------------------------------------------------------------


@promise
def a_group_has_the_order_that_it_is_given(world, number):
    group = world.group(range(world.size)[::-1], number)
    assert (group.rank, group.size) == (world.size - 1 - world.rank, world.size)
    assert group.is_master == (world.rank == world.size - 1)
    assert group.allgather(world.rank) == list(range(world.size))[::-1]
    assert group.broadcast_value(world.rank) == world.size - 1
    group.free()


@promise
def groups_work_side_by_side(world, number):
    mates = range(world.rank % 2, world.size, 2)
    group = world.group(mates, number + world.rank % 2)
    for value in range(3):
        assert group.allgather((value, world.rank)) == [(value, mate) for mate in mates]
    group.free()


@promise
def the_same_ranks_may_have_several_groups(world, number):
    entry, second = (
        world.group(range(world.size), number),
        world.group(range(world.size), number + 1),
    )
    pending = entry.start_broadcast([own_value := np.full(3, world.rank)], root=0)
    assert second.allgather("other") == ["other"] * world.size  # under way at the same time
    world.wait(lambda: pending.is_done() or None)
    assert (own_value == 0).all()
    for group in (entry, second):
        group.free()


@promise
def a_sum_is_that_of_all_ranks_on_every_rank(world, number):
    group = world.group(range(world.size), number)
    for dtype in (np.float32, np.float64):
        buffer = np.full((2, 3), world.rank + 1, dtype)
        group.sum(buffer)
        assert buffer.dtype == dtype
        assert (buffer == world.size * (world.size + 1) / 2).all()
    group.free()


@promise
def a_large_sum_is_the_same_on_all_ranks_to_the_last_bit(world, number):
    group, done = world.group(range(world.size), number), []
    world.background_tasks.append(lambda: done.append(1) or False)
    for shape, dtype in (
        ((333, 1001), np.float32),
        ((4_100_001,), np.float32),
        ((7, 101, 300), np.float64),
    ):
        values = np.linspace(0.1, 1.3, int(np.prod(shape)), dtype=dtype).reshape(shape)
        buffer = values / (1 + world.rank)
        group.sum(buffer)
        np.testing.assert_allclose(
            buffer, values * sum(1 / (1 + rank) for rank in range(world.size)), rtol=1e-5
        )
        assert len(set(group.allgather(zlib.crc32(buffer)))) == 1
        turned = np.full((200, 300), 1 + world.rank, dtype).T
        group.sum(turned)
        assert (turned == world.size * (world.size + 1) / 2).all()
    assert done or world.size == 1
    world.background_tasks.clear()
    group.free()


@promise
def a_broadcast_gives_all_the_masters_arrays_of_any_type(world, number):
    group = world.group(range(world.size), number)
    buffers = [
        np.full((2, 3), group.is_master, dtype) for dtype in ("float16", "bool", "uint8", "float64")
    ]
    group.broadcast([*buffers, number := np.array(world.rank)])
    assert all((buffer == 1).all() for buffer in buffers)
    assert number == 0
    group.free()


@promise
def broadcasts_of_any_root_may_be_under_way_together(world, number):
    group = world.group(range(world.size), number)
    buffers = [np.full(4, world.rank) for _ in range(world.size)]
    started = [group.start_broadcast([buffer], root) for root, buffer in enumerate(buffers)]
    world.wait(lambda: all(broadcast.is_done() for broadcast in started) or None)
    assert [buffer.tolist() for buffer in buffers] == [[root] * 4 for root in range(world.size)]
    group.free()


@promise
def an_error_that_is_no_death_stays_what_it_is(world, number):
    group = world.group([world.rank], number)
    group.check()
    with pytest.raises(ValueError, match="of the caller"), group.raising_group_failed():
        raise ValueError("of the caller")
    group.free()
