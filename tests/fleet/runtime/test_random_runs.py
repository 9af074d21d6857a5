"""A real coordinator in random runs; the model of the ranks checks its orders."""

import pytest

from tests.examples import examples
from tests.fleet.runtime.random_runs import RandomRun
from tests.recorded import LAUNCHES


@pytest.mark.parametrize("seed", range(min(LAUNCHES, examples(14))))
def test_random_run_finishes_correctly(seed, tmp_path):
    run = RandomRun(seed, tmp_path)
    run.run()
    run.check_histories()
    run.log_lines()
