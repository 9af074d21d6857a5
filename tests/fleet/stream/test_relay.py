"""Broadcasts of chunks between nodes."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.comm.roles import assign
from fleet.stream.layout import Layout, Turns
from fleet.stream.relay import Relay
from tests.examples import examples
from tests.fleet.one_process import Launch
from tests.fleet.stream.streams import GREY, set_of, window_of


def value_of(sequence):
    """Return the value of all pixels and labels of a chunk."""
    return 1 + sequence


def fill(target, sequence):
    rows = target.rows(sequence)
    target.inputs[rows], target.targets[rows] = value_of(sequence), value_of(sequence)
    target.publish(sequence)


def holds(target, sequence):
    rows = target.rows(sequence)
    return bool(
        target.has(sequence)
        and (target.inputs[rows] == value_of(sequence)).all()
        and (target.targets[rows] == value_of(sequence)).all()
    )


@settings(deadline=None, max_examples=examples(40))
@given(
    st.integers(2, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(0, 999)
)
def test_relay_copies_a_sample_set_to_all_nodes(nodes, preprocessors, samples, chunk, seed):
    roles = assign(
        [node for node in range(nodes) for _ in range(preprocessors + 1)],
        nodes * preprocessors,
        None,
    )
    targets = [set_of(samples, chunk) for _ in range(nodes)]

    def rank_main(world):
        node = roles.node_of[world.rank]
        if world.rank != roles.leader(node):
            return
        target, turns = targets[node], roles.preprocessors
        own_chunks = [
            number
            for number in range(target.chunks)
            if roles.node_of[turns[number % len(turns)]] == node
        ]
        relay = Relay(world, roles, target, Turns(0, turns), number=1, end=target.chunks)
        random = Random(seed + node)
        while not target.is_complete():
            if own_chunks and random.random() < 0.5:
                fill(target, own_chunks.pop(0))
            world.pause(relay.step(lambda sequence: True) or bool(own_chunks))
        relay.finish()

    assert Launch(len(roles.node_of), seed).run(rank_main)
    for target in targets:
        assert all(holds(target, number) for number in range(target.chunks))


LAYOUT = Layout(GREY, samples=40, chunk=4, slots=3, lookahead=3, readers=1)


def on_two_nodes(seed, use):
    """Run ``use(world, node, relay, windows)`` on the leaders of two nodes; return the windows."""
    roles = assign([0, 0, 1, 1], 2, None)
    windows = [window_of(LAYOUT, is_relayed=True) for _ in range(2)]

    def rank_main(world):
        if world.rank in roles.preprocessors:
            node = roles.node_of[world.rank]
            relay = Relay(world, roles, windows[node], Turns(0, roles.preprocessors), number=0)
            use(world, node, relay, windows)
            relay.finish()

    assert Launch(4, seed=seed).run(rank_main)
    return windows


def test_relay_writes_a_chunk_only_if_its_slot_is_claimed():
    allowed = []

    def use(world, node, relay, windows):
        if node == 0:
            fill(windows[0], 0)
        for turn in range(40):
            if node == 1 and turn == 20:
                assert not windows[1].has(0)
                allowed.append(0)
            world.pause(relay.step(lambda sequence: sequence in allowed) or True)

    windows = on_two_nodes(3, use)
    assert holds(windows[1], 0)
    assert not windows[1].has(1)  # no rank has prepared it


def test_relay_protects_chunks_in_progress_only():
    cursors = []

    def use(world, node, relay, windows):
        window = windows[node]
        cursors.append(int(window.cursors[-1]))
        if node == 0:
            fill(window, 0)
        while not windows[1].has(0) or window.cursors[-1] == 0:
            world.pause(relay.step(lambda sequence: sequence == 0) or True)
        cursors.append(int(window.cursors[-1]))

    on_two_nodes(5, use)
    assert sorted(cursors) == [0, 0, 1, 1]


def test_relay_leaders_end_together():
    def use(world, node, relay, windows):
        if node == 0:
            fill(windows[0], 0)
            assert relay.step(lambda sequence: False)  # starts a broadcast that node 1 never claims

    windows = on_two_nodes(1, use)
    assert not np.any(windows[1].stamps)
