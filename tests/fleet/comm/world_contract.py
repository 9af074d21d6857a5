"""The contract of every World: checks that all ranks of a launch call; see fleet.comm.protocols.

The same checks are called by ranks that are threads of one process (test_world_contract.py), and by
ranks that mpirun starts (tests/mpi/test_world.py).
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

CHECKS = {}
# These wait for other ranks by files, so they would never end in one process: ranks take turns.
NEED_PROCESSES = {"arrived_messages_are_received_at_the_first_call"}


def check(function):
    """Register a check with a number: all groups of a launch have different numbers."""
    CHECKS[function.__name__] = (function, 10 * len(CHECKS))
    return function


def run_check(name, world):
    """Call a check on this rank."""
    function, number = CHECKS[name]
    function(world, number)


def differing_methods(protocol, implementation):
    """Return the methods of a protocol that a class lacks, or has with other parameters."""
    names = []
    for name, member in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        method = getattr(implementation, name, None)
        if method is None or signature(method) != signature(member):
            names.append(name)
    return names


def signature(function):
    """Return the names, defaults and kinds of a function's parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.default, parameter.kind) for parameter in parameters]


def missing_attributes(protocol, instance):
    """Return the attributes and properties of a protocol that an instance does not have."""
    named = {
        *protocol.__annotations__,
        *(name for name, member in vars(protocol).items() if isinstance(member, property)),
    }
    return sorted(name for name in named if not (name.startswith("_") or hasattr(instance, name)))


# ---- protocols ---------------------------------------------------------------------------------


@check
def classes_implement_the_protocols(world, number):
    group = world.group([world.rank], number)
    broadcast = group.start_broadcast([np.zeros(1)], root=0)
    for protocol, instance in (
        (protocols.World, world),
        (protocols.Group, group),
        (protocols.Broadcast, broadcast),
    ):
        assert differing_methods(protocol, type(instance)) == []
        assert missing_attributes(protocol, instance) == []
    world.wait(lambda: broadcast.is_done() or None)


@check
def ranks_and_nodes_are_numbered(world, number):
    assert 0 <= world.rank < world.size
    nodes = world.node_of()
    assert len(nodes) == world.size
    assert sorted(set(nodes), key=nodes.index) == list(range(max(nodes) + 1))
    assert isinstance(world.library_name(), str)


@check
def no_rank_is_dead_without_a_death(world, number):
    world.check_for_deaths()
    assert world.dead_ranks == frozenset()


# ---- messages ----------------------------------------------------------------------------------


@check
def messages_of_one_sender_arrive_in_order(world, number):
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


@check
def messages_are_received_under_their_tag_only(world, number):
    world.send(world.rank, Tag.COORDINATOR, Ready(1))
    world.send(world.rank, Tag.PREPROCESSOR, Ready(2))
    assert world.wait_for_message(Tag.PREPROCESSOR) == Ready(2)
    assert world.receive(Tag.TRAINER) is None
    assert world.wait_for_message(Tag.COORDINATOR) == Ready(1)


@check
def arrived_messages_are_received_at_the_first_call(world, number):
    """Files order the ranks: rank 0 sends once no other rank calls MPI, then the others receive."""
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


@check
def background_tasks_run_once_even_without_a_wait(world, number):
    calls = []
    world.background_tasks.append(lambda: calls.append("busy") or True)
    world.background_tasks.append(lambda: calls.append("idle") or False)
    assert world.wait(lambda: "ready") == "ready"
    assert calls == ["busy", "idle"]
    world.background_tasks.clear()


@check
def background_tasks_run_during_a_wait(world, number):
    calls = []
    world.background_tasks.append(lambda: len(calls) < 5 and not calls.append(1))
    assert world.wait(lambda: len(calls) if len(calls) == 5 else None) == 5
    world.background_tasks.clear()


@check
def background_tasks_run_on_request(world, number):
    assert world.run_background_tasks() is False
    world.background_tasks[:] = [lambda: True, lambda: False]
    assert world.run_background_tasks() is True
    world.background_tasks.clear()


@check
def background_tasks_run_during_a_sleep(world, number):
    calls = []
    world.background_tasks.append(lambda: calls.append(1) or True)
    world.sleep(0.001)
    assert calls
    world.background_tasks.clear()


@check
def background_tasks_run_inside_a_collective_of_a_group(world, number):
    group, calls = world.group(range(world.size), number), []
    world.background_tasks.append(lambda: calls.append(1) or True)
    group.sum(np.zeros(1))
    assert calls or world.size == 1
    world.background_tasks.clear()


# ---- all ranks ---------------------------------------------------------------------------------


@check
def all_ranks_get_the_value_of_the_root(world, number):
    for root in range(world.size):
        assert world.broadcast_value({"of": root} if world.rank == root else None, root) == {
            "of": root
        }


@check
def all_ranks_get_all_values_in_order(world, number):
    assert world.allgather(f"rank {world.rank}") == [f"rank {rank}" for rank in range(world.size)]


# ---- groups ------------------------------------------------------------------------------------


@check
def groups_keep_the_order_of_their_ranks(world, number):
    group = world.group(range(world.size)[::-1], number)
    assert (group.rank, group.size) == (world.size - 1 - world.rank, world.size)
    assert group.is_master == (world.rank == world.size - 1)
    assert group.allgather(world.rank) == list(range(world.size))[::-1]
    assert group.broadcast_value(world.rank) == world.size - 1
    group.free()


@check
def groups_work_at_the_same_time(world, number):
    mates = range(world.rank % 2, world.size, 2)
    group = world.group(mates, number + world.rank % 2)
    for value in range(3):
        assert group.allgather((value, world.rank)) == [(value, mate) for mate in mates]
    group.free()


@check
def ranks_may_have_several_groups(world, number):
    first = world.group(range(world.size), number)
    second = world.group(range(world.size), number + 1)
    buffer = np.full(3, world.rank)
    pending = first.start_broadcast([buffer], root=0)
    assert second.allgather("value") == ["value"] * world.size  # during the broadcast
    world.wait(lambda: pending.is_done() or None)
    assert (buffer == 0).all()
    for group in (first, second):
        group.free()


@check
def sums_are_equal_on_all_ranks(world, number):
    group = world.group(range(world.size), number)
    for dtype in (np.float32, np.float64):
        buffer = np.full((2, 3), world.rank + 1, dtype)
        group.sum(buffer)
        assert buffer.dtype == dtype
        assert (buffer == world.size * (world.size + 1) / 2).all()
    group.free()


@check
def large_sums_are_equal_on_all_ranks_bit_for_bit(world, number):
    group, calls = world.group(range(world.size), number), []
    world.background_tasks.append(lambda: calls.append(1) or False)
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
        transposed = np.full((200, 300), 1 + world.rank, dtype).T
        group.sum(transposed)
        assert (transposed == world.size * (world.size + 1) / 2).all()
    assert calls or world.size == 1
    world.background_tasks.clear()
    group.free()


@check
def broadcasts_send_arrays_of_any_dtype(world, number):
    group = world.group(range(world.size), number)
    buffers = [
        np.full((2, 3), group.is_master, dtype) for dtype in ("float16", "bool", "uint8", "float64")
    ]
    scalar = np.array(world.rank)
    group.broadcast([*buffers, scalar])
    assert all((buffer == 1).all() for buffer in buffers)
    assert scalar == 0
    group.free()


@check
def broadcasts_of_several_roots_may_overlap(world, number):
    group = world.group(range(world.size), number)
    buffers = [np.full(4, world.rank) for _ in range(world.size)]
    broadcasts = [group.start_broadcast([buffer], root) for root, buffer in enumerate(buffers)]
    world.wait(lambda: all(broadcast.is_done() for broadcast in broadcasts) or None)
    assert [buffer.tolist() for buffer in buffers] == [[root] * 4 for root in range(world.size)]
    group.free()


@check
def errors_other_than_deaths_are_not_translated(world, number):
    group = world.group([world.rank], number)
    group.check()
    with pytest.raises(ValueError, match="of the caller"), group.raising_group_failed():
        raise ValueError("of the caller")
    group.free()
