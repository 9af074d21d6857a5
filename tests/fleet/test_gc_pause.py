"""Pauses of garbage collection."""

import gc

from fleet.gc_pause import paused_collection


def test_paused_collection_restores_the_state():
    with paused_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with paused_collection():
        pass
    was_on = gc.isenabled()
    gc.enable()
    assert not was_on  # it stays off
