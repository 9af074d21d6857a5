"""Build the wheel, in which all packages lie inside of ``fleet``.

In the source tree, ``launch``, ``preprocess`` and ``scheduler`` are packages beside ``fleet``. An
installed package of such a name would overwrite those of other distributions, or be overwritten. So
a wheel has them as ``fleet.launch``, ``fleet.preprocess`` and ``fleet.scheduler``, with FLEET's own
imports rewritten. ``fleet/package_names.py`` makes both names work in both places.

An editable installation uses the source tree as it is.
"""

import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.config.setupcfg import read_configuration

MOVED = ("launch", "preprocess", "scheduler")
_NAMES = "|".join(MOVED)
_IMPORTS = re.compile(rf"^(\s*from )(?=(?:{_NAMES})\b)", re.MULTILINE)
# Tables name modules by strings, such as "preprocess.sources.hdf5:open_hdf5".
_QUOTED = re.compile(rf"([\"'])(?=(?:{_NAMES})\.)")


def with_wheel_names(text: str) -> str:
    """Return the text of a module of FLEET with the names that modules have in a wheel."""
    return _QUOTED.sub(r"\1fleet.", _IMPORTS.sub(r"\1fleet.", text))


class BuildPy(build_py):
    """Copies modules into the wheel, with the names of the wheel."""

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy a module, and rewrite its imports."""
        built, copied = super().build_module(module, module_file, package)
        path = Path(built)
        path.write_text(with_wheel_names(path.read_text(encoding="utf-8")), encoding="utf-8")
        return built, copied


def wheel_options() -> dict:
    """Return the packages of setup.cfg with the names and folders that they have in a wheel."""
    options = read_configuration("setup.cfg")["options"]

    def moved(name: str) -> str:
        return f"fleet.{name}" if name.partition(".")[0] in MOVED else name

    return {
        "packages": [moved(name) for name in options["packages"]],
        "package_dir": {moved(name): name for name in MOVED},
        "package_data": {moved(name): files for name, files in options["package_data"].items()},
        "cmdclass": {"build_py": BuildPy},
    }


if __name__ == "__main__":
    setup(**({} if "editable_wheel" in sys.argv else wheel_options()))
