"""Hash the source files that define a network: its ``build:`` function and local imports.

The files are read, never run: rank 0 imports no TensorFlow.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.domain.network import Code
from fleet.package_names import RESERVED_NAMES

_OURS = frozenset({"fleet", *RESERVED_NAMES})
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class _Module:
    """A module's file, by the name under which it is imported."""

    name: str
    file: Path
    root: Path

    @property
    def relative_path(self) -> str:
        return self.file.relative_to(self.root).as_posix()

    @property
    def package(self) -> str:
        """The package from which its relative imports start."""
        if self.file.name == "__init__.py":
            return self.name
        return self.name.rpartition(".")[0]


def hash_sources(target: str, spec_folder: Path = Path()) -> Code:
    """Return the files that define what an import path names, with hashes.

    These are the files of its module, of the packages around it, and of everything that they
    import, directly or not, from the folder of that module, the working folder and the folder of
    the spec. Installed packages are left out, and so are imports whose names only running the code
    would reveal.

    Args:
        target: ``module:name``; a plain name depends on no file.
        spec_folder: folder of the spec.

    Returns:
        An empty mapping if the module cannot be found or read.
    """
    name, colon, _ = target.partition(":")
    if not colon:
        return {}
    importlib.invalidate_caches()
    root = _root(name.partition(".")[0], spec_folder)
    if root is None:
        return {}
    is_installed = _is_installed(root)
    roots = [
        root,
        *(
            candidate
            for candidate in (Path.cwd(), spec_folder.absolute())
            if not is_installed and candidate != root
        ),
    ]
    hashes: dict[str, str] = {}
    waiting = list(_modules(name, roots))
    while waiting:
        module = waiting.pop()
        try:
            text = module.file.read_bytes()
        except OSError:
            continue
        hashes[module.relative_path] = hashlib.sha256(text).hexdigest()[:16]
        if not is_installed:
            waiting += [
                candidate
                for imported in _imports(text, module)
                for candidate in _modules(imported, roots)
                if candidate.relative_path not in hashes
            ]
    return dict(sorted(hashes.items()))


def changed_files(before: Code, now: Code) -> list[str]:
    """Return the files that have changed, disappeared, or are new.

    >>> changed_files({"a.py": "1", "b.py": "1", "c.py": "1"}, {"a.py": "1", "b.py": "2"})
    ['b.py', 'c.py']
    """
    return sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))


def _root(top: str, spec_folder: Path) -> Path | None:
    """Return the folder in which Python finds a top-level package or module."""
    try:
        path = [*sys.path, "", str(spec_folder)]
        # the second one finds editable installations
        spec = importlib.machinery.PathFinder.find_spec(top, path) or importlib.util.find_spec(top)
    except Exception:  # third-party finders may raise anything
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).absolute().parent
    if spec.origin is not None and spec.has_location:
        return Path(spec.origin).absolute().parent
    return None


def _is_installed(root: Path) -> bool:
    standard = Path(sysconfig.get_path("stdlib"))
    return bool(_INSTALLED & set(root.parts)) or root == standard or standard in root.parents


def _modules(name: str, roots: list[Path]) -> Iterator[_Module]:
    """Yield the files that run when a name is imported: of its packages and its own."""
    parts = name.split(".")
    if parts[0] in _OURS or not all(parts):
        return
    for root in roots:
        files = {length: _file(root, parts[:length]) for length in range(1, len(parts) + 1)}
        if any(files.values()):
            yield from (
                _Module(".".join(parts[:length]), file, root)
                for length, file in files.items()
                if file
            )
            return


def _file(root: Path, parts: list[str]) -> Path | None:
    """Return the file of a package or module, by the parts of its name."""
    spec = importlib.machinery.PathFinder.find_spec(
        ".".join(parts), [str(root.joinpath(*parts[:-1]))]
    )
    if spec is not None and spec.origin is not None:
        return Path(spec.origin)
    return None


def _imports(text: bytes, module: _Module) -> Iterator[str]:
    """Yield all names that a module may import; some name objects inside a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # compiled; or the run will report it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(filter(None, [_package(module, node.level), node.module]))
            yield from (f"{origin}.{alias.name}" if origin else alias.name for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and (_called(node.func) in ("import_module", "__import__"))
            and isinstance(node.args[0].value, str)
        ):
            yield node.args[0].value


def _package(module: _Module, level: int) -> str:
    """Return the package at which a relative import starts; empty if it is absolute."""
    if level == 0:
        return ""
    parts = module.package.split(".")
    return ".".join(parts[: len(parts) - level + 1])


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")
