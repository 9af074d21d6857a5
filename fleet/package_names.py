"""Make the packages ``launch``, ``preprocess`` and ``scheduler`` importable under two names.

A wheel has them inside of ``fleet``, because installed packages of such names would collide with
other distributions; the source tree has them beside it. In both, ``fleet.preprocess`` and
``preprocess`` are the same module once ``fleet`` is imported. But a short name means a module of
the user, or of another distribution, if there is one:

- In a wheel, FLEET's own imports have the long names (``setup.py`` rewrites them), and the short
  names are looked for last.
- In the source tree, FLEET's own imports have the short names. So they mean FLEET's packages there,
  whatever lies in the working folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

PACKAGES = ("launch", "preprocess", "scheduler")
_FLEET = Path(__file__).parent
IS_WHEEL = (_FLEET / PACKAGES[0]).is_dir()
# The short names that mean FLEET's packages whatever else is installed.
RESERVED_NAMES = frozenset() if IS_WHEEL else frozenset(PACKAGES)


class _Alias(Loader):
    """Loads a module under a second name: it is the same object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set that of the second name


class _Aliases(MetaPathFinder):
    """Finds packages under their second names.

    Attributes:
        names: second name -> name of the package.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to load a package under its second name; None for other names."""
        return _spec(fullname, self.names[fullname]) if fullname in self.names else None


class _AliasedModules(_Aliases):
    """Finds modules of packages that were imported under their second names.

    It comes before Python's finder, which would load such a module twice.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to load such a module; None for other names."""
        for alias, name in self.names.items():
            package = sys.modules.get(alias)
            if (
                fullname.startswith(f"{alias}.")
                and package is not None
                and package is sys.modules.get(name)
            ):
                return _spec(fullname, name + fullname.removeprefix(alias))
        return None


class _ReservedNames(MetaPathFinder):
    """Finds the packages beside ``fleet``, before those in other folders."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to load a package of the source tree; None for other names."""
        if fullname not in RESERVED_NAMES:
            return None
        return PathFinder.find_spec(fullname, [str(_FLEET.parent)])


def _spec(alias: str, name: str) -> ModuleSpec | None:
    spec = find_spec(name)
    if spec is None:
        return None
    is_package = spec.submodule_search_locations is not None
    return spec_from_loader(alias, _Alias(name), origin=spec.origin, is_package=is_package)


def install() -> None:
    """Add the finders of both names to the import system.

    Raises:
        ImportError: a module of a reserved name was imported before.
    """
    for name in sorted(RESERVED_NAMES & sys.modules.keys()):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not Path(file).is_relative_to(_FLEET.parent):
            raise ImportError(
                f"{file} was imported before fleet, whose source tree has a package {name!r}, too: "
                f"rename that file, or install FLEET as a wheel (pip install {_FLEET.parent})"
            )
    names = {name: f"fleet.{name}" for name in PACKAGES}
    if not IS_WHEEL:
        names = {long: short for short, long in names.items()}
        sys.meta_path.insert(0, _ReservedNames())
    sys.meta_path.insert(0, _AliasedModules(names))
    sys.meta_path.append(_Aliases(names))
