"""The core without its companions: a copy of the tree in which their folder does not exist."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.places import ON_ONE_MACHINE, ROOT, sources

FOLDERS = ("fleet", "preprocess", "scheduler", "launch", "tests", "examples")
SPEC = """
data: {source: "tests.sources:numbered", path: "30", transforms: []}
models: [{family: softmax}]
train: {batch: {size: 8}, stopping: {max_epochs: 2}}
resources: {engine: numpy}
output: run
"""
# The finder of an editable installation would find the companions in the tree that was installed.
WITHOUT_EDITABLE_TREE = """
import sys
sys.meta_path[:] = [
    finder for finder in sys.meta_path if not finder.__module__.startswith("__editable__")
]
"""
# A representative part of the core's tests, which takes seconds: decisions, storage, and launches.
TESTS = (
    "tests/fleet/control/test_controller.py",
    "tests/fleet/domain",
    "tests/fleet/search/test_controller.py",
    "tests/fleet/storage/test_network_leases.py",
    "tests/fleet/runtime/test_command_handler.py",
    "tests/fleet/runtime/test_coordinator.py",
    "tests/fleet/runtime/test_run_state.py",
    "tests/fleet/commands/test_report.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Copy the tree without companions, and without their tests."""
    folder = tmp_path_factory.mktemp("core")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("companions"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "sitecustomize.py").write_text(WITHOUT_EDITABLE_TREE)
    return folder


def run(copy, *command, program=sys.executable, status=0):
    """Run a program in the copy; return its output and its messages."""
    environment = {
        **os.environ,
        **ON_ONE_MACHINE,
        "PYTHONPATH": str(copy),
        "XDG_CACHE_HOME": str(copy / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [program, *command],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def modules_without(*left_out):
    """Return the names of the core's modules, except of those in some subpackages."""
    modules = (
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("fleet", "launch", "preprocess", "scheduler")
        for path in sources(package)
    )
    return [name for name in modules if not name.startswith(("fleet.companions", *left_out))]


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # an optional package that is not installed here
        if error.name.partition(".")[0] in ("fleet", "launch", "preprocess", "scheduler"):
            raise
"""


def test_core_alone_has_no_companions(copy):
    assert not (copy / "fleet" / "companions").exists()
    output = run(copy, "-c", "import fleet, sys; print(fleet.__file__, *sys.meta_path)")
    assert str(copy) in output
    assert "Editable" not in output


def test_core_alone_can_import_all_its_modules(copy):
    libraries = ("fleet.engines.keras", "fleet.engines.torch")
    run(copy, "-c", IMPORT_ALL, *modules_without(*libraries))


@pytest.mark.tensorflow
@pytest.mark.long
def test_core_alone_can_import_all_its_engines(copy):
    run(copy, "-c", IMPORT_ALL, *modules_without("fleet.engines.torch"))


@pytest.mark.parametrize("command", ["submit", "harvest", "release-nodes", "evict", "reserve"])
def test_core_alone_refuses_commands_of_companions(copy, command):
    output = run(copy, "-m", "fleet", command, "--help", status=2)
    assert f"fleet {command}: this command is not installed" in output


@pytest.mark.long
def test_core_alone_trains_and_reports(copy):
    (copy / "spec.yaml").write_text(SPEC)
    assert "the best network first" in run(copy, "-m", "fleet.run", "spec.yaml")
    assert "leaderboard" in run(copy, "-m", "fleet", "report", "run")
    output = run(copy, "-m", "fleet.run", "spec.yaml", "--share-run", status=2)
    assert "--share-run is not installed" in output


@pytest.mark.tensorflow
@pytest.mark.long
def test_core_alone_runs_the_demo(copy):
    ranks = ("-n", "5", "--oversubscribe", "--bind-to", "none", sys.executable)
    output = run(copy, *ranks, "-m", "fleet.run", "examples/digits.yaml", program="mpirun")
    assert "the best network first" in output


@pytest.mark.long
def test_core_alone_passes_its_tests(copy):
    run(copy, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS)
