"""Who may import whom: one root, three leaves, one door for MPI and one for TensorFlow.

The files are read, not run, so that an import inside a function counts as well.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
LEAVES = ("preprocess", "scheduler", "launch")
TENSORFLOW = {"tensorflow", "keras", "horovod"}


def imported(source):
    """The top-level names of all packages that a module's text imports anywhere, also by their name as a text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0]
        elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
            yield from (argument.value.split(".")[0] for argument in node.args
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str))


def _called(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def files(package):
    return sorted((ROOT / package).rglob("*.py"))


def wrong(paths, forbidden):
    return [f"{path.relative_to(ROOT)} imports {name}" for path in paths
            for name in sorted(set(imported(path.read_text(encoding="utf-8"))) & set(forbidden))]


@pytest.mark.parametrize("text", [
    "import mpi4py.MPI", "from mpi4py import MPI", "import numpy, mpi4py as door", "__import__('mpi4py')",
    "importlib.import_module('mpi4py.MPI')", "def function():\n    if True:\n        from mpi4py import MPI",
    "if TYPE_CHECKING:\n    from mpi4py import MPI"])
def test_an_import_is_found_wherever_it_stands(text):
    assert "mpi4py" in set(imported(text))


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_neither_fleet_nor_another_leaf_nor_what_fleet_stands_on(leaf):
    forbidden = {"fleet", "mpi4py", *TENSORFLOW, *LEAVES} - {leaf}
    assert files(leaf)
    assert wrong(files(leaf), forbidden) == []


def test_launch_stands_on_the_standard_library():
    others = {name for path in files("launch") for name in imported(path.read_text(encoding="utf-8"))}
    assert others - {"launch"} <= sys.stdlib_module_names


def test_mpi_comes_in_by_one_door():
    assert wrong([path for path in files("fleet") if path.name != "mpi.py"], {"mpi4py"}) == []


def test_tensorflow_comes_in_by_the_engines_alone():
    assert wrong([path for path in files("fleet") if not path.name.startswith("engine_")], TENSORFLOW) == []


# ---- what a command loads ----------------------------------------------------------------------


def loads(statements, tmp_path):
    """The packages that take seconds to load, or need a launcher, and come in with some statements."""
    program = f"{statements}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False,
                           capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 0, ended.stderr
    return {name.split(".")[0] for name in json.loads(ended.stdout.splitlines()[-1])} & {"mpi4py", *TENSORFLOW}


SPEC = """
data: {source: "tests.sources:numbered", path: "30", transforms: []}
models: [{family: resnet, grid: {width: [8, 16]}}, {family: softmax}]
"""

RATES = """{"samples_per_epoch": 100, "gpus_per_node": 2, "models": [{"name": "a", "rates": [10.0]}]}"""


def test_the_command_line_and_its_help_load_no_mpi_and_no_tensorflow(tmp_path):
    assert loads("import fleet.__main__ as m; assert m.main(['--help']) == 0", tmp_path) == set()


def test_declaring_the_arguments_of_all_commands_loads_no_mpi_and_no_tensorflow(tmp_path):
    modules = sorted({module for module, _ in COMMANDS.values()})
    assert loads(f"import argparse, importlib\nfor name in {modules!r}:\n"
                 "    importlib.import_module(name).configure(argparse.ArgumentParser())", tmp_path) == set()


@pytest.mark.parametrize("command", [["check", "spec.yaml"], ["check", "--families"], ["schema"],
                                     *([["plan", "--rates", "rates.json", "--gpus", "2", "--gpus-per-node", "2"]]
                                       if "plan" in COMMANDS else [])], ids=" ".join)
def test_commands_that_need_neither_load_no_mpi_and_no_tensorflow(command, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "rates.json").write_text(RATES)
    assert loads(f"import fleet.__main__ as m; assert m.main({command!r}) == 0", tmp_path) == set()


def test_the_help_of_the_main_job_starts_no_mpi(tmp_path):
    assert loads("import fleet.run as r\ntry: r.main(['--help'])\nexcept SystemExit as end: assert end.code == 0",
                 tmp_path) == set()
