"""The searchers in examples/ that use other libraries, with these libraries."""

import math

import pytest

from fleet.spec.dimensions import Range
from tests.fleet.search.launches import LEARNING_RATE, Launch, run_killed, search_of

SPACE = {
    LEARNING_RATE: Range(1e-5, 0.1, log=True),
    "blocks.0": Range(2, 20, integer=True),
    "filters": ([8], [8, 16]),
}
# example -> the modules that it needs, and its options
LIBRARIES = {
    "gest_searcher, libEnsemble": (
        ("gest_api", "libensemble"),
        {"generator": "libensemble.gen_classes.sampling:UniformSample", "random_seed": 3},
    ),
    "smac_searcher": (("smac",), {"n_trials": 16}),
    "neps_searcher": (("neps",), {"initial_design_size": 6}),
    "neps_searcher, random": (("neps",), {"algorithm": "random_search"}),
}


class Learning(Launch):
    """A launch in which a learning rate of 0.003 is the best."""

    def train(self, name):
        rate = self.added[name].values[LEARNING_RATE]
        self.value = lambda name, epoch: -abs(math.log10(rate / 0.003)) + 0.01 * epoch
        super().train(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LIBRARIES)
def test_other_library_after_a_kill_decides_the_same(kind):
    modules, options = LIBRARIES[kind]
    for module in modules:
        pytest.importorskip(module)
    sampler = f"{kind.partition(',')[0]}:Searcher"
    search = search_of(sampler, max_trials=12, options=options, seed=3)
    settings = {"kind": Learning, "epochs": 2}
    reference, _, _ = run_killed([], search, SPACE, **settings)
    killed, _, differences = run_killed([25], search, SPACE, **settings)
    assert not reference.controller.sampling.has_failed
    assert len(reference.added) == 12
    assert not any(add.wrong for add in reference.added.values())
    assert killed.decisions == reference.decisions
    assert not differences
