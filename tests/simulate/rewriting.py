"""Change functions of FLEET after it was imported, in place.

The code of a function is replaced, not the function, so all that refers to it uses the new code:
other modules, tables and decorators.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.simulate.command import install
from tests.simulate.hashes import fix_hashes

ROOT = Path(__file__).parents[2]
# Subpackages of fleet that the simulation measures.
PACKAGES = ("comm", "control", "runtime", "storage", "stream")

# Files that no simulation can run, or whose only effect is text that users read -> the reason.
NOT_SIMULATED = {
    "fleet/comm/mpi.py": "the real MPI",
    "fleet/runtime/external/tracking.py": "starts another program, which writes to trackers",
    "fleet/runtime/resume_command.py": "a message: the command that resumes a run",
    "fleet/runtime/startup/data_warnings.py": "messages: warnings of what surely hurts training",
    "fleet/runtime/startup/engine_import.py": "imports TensorFlow or PyTorch",
    "fleet/runtime/startup/padding.py": "inputs of unequal length, which take Keras or PyTorch",
    "fleet/runtime/training/shared_gpus.py": "real GPUs: their MPS daemon",
    "fleet/storage/leaderboard.py": "messages: tables of results",
}
# Functions that the simulation replaces (tests/simulate/product.py).
REPLACED = (
    "fleet/runtime/training/building.py kill_after",
    "fleet/storage/lease.py _namespace",
    "fleet/storage/lease.py _text",
)


def package_of(path: str) -> str:
    """Return the package of a file.

    >>> package_of("fleet/comm/world.py")
    'comm'
    """
    return path.split("/")[1]


def files() -> list[str]:
    """Return the files of all packages that are simulated, from the root."""
    paths = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / "fleet" / package).rglob("*")
    ]
    return sorted(path for path in paths if path.endswith(".py") and path not in NOT_SIMULATED)


def module_of(path: str) -> str:
    """Return the name of a file's module.

    >>> module_of("fleet/comm/world.py"), module_of("fleet/comm/__init__.py")
    ('fleet.comm.world', 'fleet.comm')
    """
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of a module, then install the simulation and import all files."""
    parser.add_argument("--job", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    fix_hashes(parser.prog.split()[-1])
    install()
    import_all()
    return arguments


def import_all() -> None:
    """Import all files of the packages."""
    for path in files():
        importlib.import_module(module_of(path))


def parse(path: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse((ROOT / path).read_text())


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Iterate over the outermost functions and the methods, with their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", member


class LiveFunctions:
    """All functions of this process, by the place of their code."""

    def __init__(self) -> None:
        self._functions: defaultdict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for value in gc.get_objects():
            if isinstance(value, FunctionType):
                self._functions[_key(value.__code__)].append(value)

    def replace(self, path: str, tree: ast.Module, names: dict[str, object]) -> None:
        """Let the functions of a file run other code.

        Args:
            path: the file, which was imported.
            tree: its changed syntax tree, with the functions where they were.
            names: further global names that the changed code uses.
        """
        module = sys.modules[module_of(path)]
        vars(module).update(names)
        code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
        for new in _codes(code):
            for function in self._functions.get(_key(new), ()):
                if function.__code__ != new:
                    function.__code__ = new


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def import_what_is_imported_by(function: Callable[[], object]) -> None:
    """Import the modules that a function imports, without any other effect of calling it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        function()
        os.write(writer, "\n".join(sys.modules).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        names = file.read().split("\n")
    os.waitpid(child, 0)
    for name in names:
        if name and name not in sys.modules and name != "__main__":
            importlib.import_module(name)
