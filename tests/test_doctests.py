"""The examples in docstrings are correct."""

import doctest
import re
from importlib import import_module

import pytest

from tests.places import PACKAGES, ROOT, sources

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sources(package)
}
# Importing these starts MPI or TensorFlow, or needs an optional package.
HEAVY = {
    name
    for name, path in MODULES.items()
    if name.startswith("fleet.engines.keras.")  # the package imports TensorFlow
    or (
        name.startswith(("fleet.comm.", "fleet.engines.", "fleet.export."))
        and re.search(
            r"^(from|import) "
            r"(mpi4py|tensorflow|keras|torch|safetensors|mlflow|wandb|optuna|fleet\.comm\.(world|group)"
            r"|fleet\.engines\.(keras|models|torch))\b",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
}


@pytest.mark.parametrize("name", sorted(MODULES.keys() - HEAVY))
def test_docstring_examples_hold(name):
    assert doctest.testmod(import_module(name.removesuffix(".__init__"))).failed == 0


def test_modules_that_are_left_out_have_no_examples():
    assert [name for name in HEAVY if ">>>" in MODULES[name].read_text(encoding="utf-8")] == []
