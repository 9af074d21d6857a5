"""Work without looking for garbage."""

import gc

from fleet.gc_pause import without_collecting


def test_nothing_is_collected_meanwhile():
    with without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with without_collecting():
        pass
    was_on = gc.isenabled()
    gc.enable()
    assert not was_on  # who had switched it off finds it so
