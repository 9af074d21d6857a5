"""The command line of the fault tests."""

import pytest

from tests.chaos.__main__ import Seeds, parse


@pytest.mark.parametrize(
    ("argv", "seeds"),
    [
        ("--seeds 17 3", Seeds((17, 3), (), ())),
        ("--tensorflow-seeds 2", Seeds((), (2,), ())),
        ("--search-seeds 1 --tensorflow-seeds 0", Seeds((), (0,), (1,))),
        ("--cases 10 --tensorflow 1", Seeds(range(10), range(1), range(2))),
    ],
)
def test_parse_selects_cases_by_their_seeds(argv, seeds):
    assert [tuple(cases) for cases in parse(argv.split())[1]] == [
        tuple(expected) for expected in seeds
    ]
