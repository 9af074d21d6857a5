import numpy as np
import pytest

from preprocess.source import open_data
from tests.preprocess.samples import pattern, write


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """Write two classes, cat with three and dog with five images of 4 x 6 pixels, all different."""
    for name, count in (("cat", 3), ("dog", 5)):
        for number in range(count):
            write(
                tmp_path / "pets" / name / f"{number}.png", pattern(4, 6, seed=10 * count + number)
            )
    return tmp_path / "pets"


@pytest.fixture
def data(folder):
    """Open the folder with two of five samples held out for validation."""
    return open_data("image_folder", str(folder), 0.4, seed=7)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "packed.h5")
