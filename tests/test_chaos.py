"""Which cases of faults are carried out."""

import pytest

from tests.chaos.__main__ import Seeds, parse


@pytest.mark.parametrize(
    ("argv", "seeds"),
    [
        ("--seeds 17 3", Seeds((17, 3), (), (), ())),
        ("--tensorflow-seeds 2", Seeds((), (2,), (), ())),
        ("--beside-seeds 4", Seeds((), (), (4,), ())),
        ("--search-seeds 1 --beside-seeds 0", Seeds((), (), (0,), (1,))),
        ("--cases 10 --tensorflow 1", Seeds(range(10), range(1), range(3), range(2))),
    ],
)
def test_cases_are_repeated_by_their_seeds_alone(argv, seeds):
    assert [tuple(cases) for cases in parse(argv.split())[1]] == [
        tuple(expected) for expected in seeds
    ]
