import numpy as np
import pytest

from tests.preprocess.samples import pattern, write


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """Two classes, cat with three and dog with five images of 4 x 6 pixels, all different."""
    for name, count in (("cat", 3), ("dog", 5)):
        for number in range(count):
            write(tmp_path / "pets" / name / f"{number}.png", pattern(4, 6, seed=10 * count + number))
    return tmp_path / "pets"
