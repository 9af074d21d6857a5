"""A whole coordinator in runs in which everything happens that can; the model of the ranks looks at its orders."""

import pytest

from tests.examples import examples
from tests.fleet.runtime.random_runs import RandomRun
from tests.recorded import LAUNCHES


@pytest.mark.parametrize("seed", range(min(LAUNCHES, examples(14))))
def test_a_run_comes_to_its_end_whatever_happens(seed, tmp_path):
    run = RandomRun(seed, tmp_path)
    run.run()
    run.check_histories()
    run.log_lines()
