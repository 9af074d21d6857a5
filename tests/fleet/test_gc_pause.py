"""Work without looking for garbage."""

import gc

from fleet.gc_pause import paused_collection


def test_nothing_is_collected_meanwhile():
    with paused_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with paused_collection():
        pass
    was_on = gc.isenabled()
    gc.enable()
    assert not was_on  # who had switched it off finds it so
