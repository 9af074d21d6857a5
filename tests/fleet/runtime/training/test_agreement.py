"""Failures on one rank of a group, which fail all ranks."""

import pytest

from fleet.engines.base import check_peers
from fleet.runtime.training.agreement import TrainingFailed, all_or_none
from tests.fleet.one_process import Launch


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("failing", [[], [0], [-1], [0, -1]], ids=str)
def test_agreement_does_not_wait_for_failed_rank(ranks, failing):
    failing, output = {index % ranks for index in failing}, {}

    def rank_main(world):
        group = world.group(range(ranks), 1)

        def build():
            if group.rank in failing:
                raise ValueError(f"not on rank {group.rank}")
            check_peers(group)
            return "built"

        try:
            result = all_or_none(group, build)
        except TrainingFailed as error:
            result = error.reason
        # the ranks take part in the same collective again
        output[group.rank] = (result, group.allgather(group.rank))

    assert Launch(ranks, seed=len(failing)).run(rank_main)
    expected = f"not on rank {min(failing)}" if failing else "built"
    assert sorted(output) == list(range(ranks))
    for result, gathered in output.values():
        assert expected in result
        assert gathered == list(range(ranks))
