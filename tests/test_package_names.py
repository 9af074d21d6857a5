"""The names under which the packages beside ``fleet`` are imported, in the tree and in a wheel."""

import ast
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from fleet.package_names import PACKAGES as MOVED
from tests.places import PACKAGES, ROOT, sources


def _setup():
    spec = spec_from_file_location("setup_of_fleet", ROOT / "setup.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETUP = _setup()
TEXTS = {
    path.relative_to(ROOT): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sources(package)
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Write the modules as they lie in an installed wheel."""
    folder = tmp_path_factory.mktemp("installed")
    for file, text in TEXTS.items():
        path = folder / ("" if file.parts[0] == "fleet" else "fleet") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SETUP.with_wheel_names(text), encoding="utf-8")
    for data in ("fleet/data", "launch/templates", "scheduler/data"):
        path = folder / ("" if data.startswith("fleet") else "fleet") / data
        path.symlink_to(ROOT / data)
    return folder


# The environment of the tests may have an editable FLEET.
WITHOUT_EDITABLE = """
import sys
sys.meta_path[:] = [
    finder for finder in sys.meta_path if not finder.__module__.startswith("__editable__")
]
"""


def run(folder, packages, program):
    """Run a program in a folder of a user, with the packages of FLEET in another folder."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EDITABLE + program],
        cwd=folder,
        env={"PYTHONPATH": str(packages)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_setup_moves_the_packages_that_have_two_names():
    assert SETUP.MOVED == MOVED
    assert set(PACKAGES) == {"fleet", *MOVED}


def test_with_wheel_names_leaves_no_import_of_short_names():
    assert [
        f"{path}:{node.lineno}"
        for path, text in TEXTS.items()
        for node in ast.walk(ast.parse(SETUP.with_wheel_names(text)))
        for name in _imported(node)
        if name.partition(".")[0] in MOVED
    ] == []


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []


def test_with_wheel_names_changes_only_strings_of_modules():
    names = {
        name
        for text in TEXTS.values()
        for name in re.findall(
            r"[\"']fleet\.((?:launch|preprocess|scheduler)\.[\w.]*)", SETUP.with_wheel_names(text)
        )
    }
    assert "preprocess.sources.hdf5" in names
    stems = {path.with_suffix("").as_posix().replace("/", ".") for path in TEXTS}
    assert [
        name
        for name in names
        if not any(f"{stem}.".startswith(f"{name.rstrip('.')}.") for stem in stems)
        and name.rpartition(".")[0] not in stems
    ] == []


def test_both_names_in_a_wheel_are_one_module(wheel, tmp_path):
    program = (
        "import fleet, preprocess.base, fleet.preprocess.base\n"
        "from preprocess.transforms import parse\n"
        "from fleet.preprocess.transforms import parse as same\n"
        "assert preprocess is fleet.preprocess and parse is same\n"
        "print(preprocess.base.__spec__.name, preprocess.base.__name__)"
    )
    name = "fleet.preprocess.base"
    assert run(tmp_path, wheel, program) == f"{name} {name}\n"


def test_both_names_in_the_tree_are_one_module(tmp_path):
    program = (
        "import fleet.preprocess.base, preprocess.base\n"
        "assert fleet.preprocess.base is preprocess.base\n"
        "print(fleet.preprocess.base.__spec__.name)"
    )
    assert run(tmp_path, ROOT, program) == "preprocess.base\n"


def test_unknown_module_of_a_second_name_is_missing(tmp_path):
    program = (
        "import fleet\n"
        "try: import fleet.preprocess.nothing\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert run(tmp_path, ROOT, program) == "No module named 'fleet.preprocess.nothing'\n"


@pytest.fixture
def own_modules(tmp_path):
    """Return a user's folder with modules of all the names."""
    (tmp_path / "preprocess.py").write_text("def halve(x):\n    return x / 2\n")
    (tmp_path / "scheduler.py").write_text("import preprocess\nNAME = preprocess.halve(8)\n")
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/__init__.py").write_text("")
    (tmp_path / "launch/errors.py").write_text("raise RuntimeError('not the one of FLEET')\n")
    return tmp_path


def test_fleet_in_a_wheel_leaves_short_names_to_others(wheel, own_modules):
    program = (
        "import fleet.api, fleet.run, scheduler\n"
        "from preprocess import halve\n"
        "print(scheduler.NAME, halve(2), fleet.preprocess.__name__)"
    )
    assert run(own_modules, wheel, program) == "4.0 1.0 fleet.preprocess\n"


def test_fleet_in_the_tree_ignores_modules_of_its_names(own_modules):
    program = "import fleet.api, fleet.run, launch; print(launch.__file__)"
    output = run(own_modules, ROOT, program)
    assert output == f"{ROOT / 'launch/__init__.py'}\n"


def test_fleet_in_the_tree_refuses_names_imported_before(own_modules):
    program = "import preprocess\ntry: import fleet\nexcept ImportError as error: print(error)"
    output = run(own_modules, ROOT, program)
    assert output.startswith(f"{own_modules / 'preprocess.py'} was imported before fleet")
    assert f"pip install {ROOT}" in output


@pytest.mark.parametrize("reserves", [True, False])
def test_hash_sources_hashes_own_modules_in_a_wheel(reserves, wheel, own_modules):
    program = (
        "from fleet.storage.code import hash_sources\nprint(*hash_sources('preprocess:halve'))"
    )
    output = run(own_modules, ROOT if reserves else wheel, program)
    assert output.split() == ([] if reserves else ["preprocess.py"])
