"""Noticing that what others write will not come."""

import pytest

from fleet.errors import InfrastructureError
from fleet.stream.order import Epoch, StrictOrder
from fleet.stream.own import FromKept, OwnStream
from fleet.stream.stall import Standstill
from fleet.stream.validation import SharedValidation
from tests.fleet.stream.streams import Alone, alone_in_the_world, pipeline, set_of


@pytest.mark.parametrize("what", ["training", "validation"])
def test_samples_that_should_stay_and_come_no_more_are_an_error(what):
    alone = pipeline(20)
    shared = set_of(20, 6)
    shared.publish(0)

    def use(world):
        if what == "validation":
            return SharedValidation(shared, world, stall_s=0.05).await_all()
        stream = OwnStream(FromKept(alone, shared, stall_s=0.05), StrictOrder(alone, 20), world, pytest.fail)
        return list(stream.batches(Epoch(0), 0, 8, Alone()))

    with pytest.raises(InfrastructureError, match=rf"no further {what} samples .* \(data.stall\): 1 of 4 chunks"):
        alone_in_the_world(use)


def test_samples_that_come_slowly_are_waited_for():
    now = 0.0
    shared = set_of(20, 6)
    standstill = Standstill(shared, "training", 1.0, lambda: now)
    for chunk in range(3):
        standstill.look()
        now += 0.9
        standstill.look()
        shared.publish(chunk)
    standstill.rest()
    now += 5  # nobody waits
    standstill.look()
    now += 1.1
    with pytest.raises(InfrastructureError):
        standstill.look()
