"""The wheel, installed without the source tree."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml

import fleet
from tests.places import PACKAGES, ROOT

SPEC = {
    "name": "bare",
    "data": {"source": "builtin:digits", "transforms": [{"decode": {"mode": "L"}}, {"scale": {}}]},
    "models": [{"family": "softmax"}],
    "train": {"batch": {"size": 64}, "stopping": {"max_epochs": 1}},
    "resources": {"engine": "numpy"},
    "output": "run",
}

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel")]


def pip(*words):
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *words], check=True, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel from a copy, since setuptools leaves a build folder beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    pip("wheel", str(folder), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """Make an environment with the wheel and this one's libraries, but not its editable FLEET."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    pip(
        "--python", str(folder / "env/bin/python"), "install", "--no-deps", "--no-index", str(wheel)
    )
    [packages] = folder.glob("env/lib/python*/site-packages")
    (packages / "libraries.pth").write_text(str(Path(yaml.__file__).parents[1]))
    return folder


def test_wheel_has_exactly_the_files_of_the_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == {
        ("" if package == "fleet" else "fleet/") + path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not {"__pycache__", "containers"} & set(path.parts)
    }


def test_wheel_has_version_and_extras(wheel):
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    with zipfile.ZipFile(wheel) as archive:
        [path] = [
            path for path in zipfile.Path(archive).iterdir() if path.name.endswith(".dist-info")
        ]
        about = PathDistribution(path).metadata
    assert about["Version"] == setup["metadata"]["version"] == fleet.__version__ == "0.2.0"
    assert set(about.get_all("Provides-Extra")) == set(setup["options.extras_require"])


PARTS = """
from fleet.preprocess.base import RandomAccess as Long
from preprocess import double  # of the user
from scheduler import NAME  # of another distribution
from launch.systems import System  # of FLEET
assert NAME == "another"


class Samples(Long):
    pass


def twice(array, rng, training):
    return double(array, rng, training)
"""


def test_wheel_leaves_short_names_to_other_packages(bare, launch, tmp_path):
    [packages] = bare.glob("env/lib/python*/site-packages")
    (packages / "scheduler").mkdir()
    (packages / "scheduler/__init__.py").write_text("NAME = 'another'\n")
    (tmp_path / "preprocess.py").write_text(
        "def double(array, rng, training):\n    return array * 2\n"
    )
    (tmp_path / "parts.py").write_text(PARTS)
    transforms = [*SPEC["data"]["transforms"], "parts:twice", "preprocess:double"]
    spec = {**SPEC, "data": {**SPEC["data"], "transforms": transforms}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    launched = subprocess.run(
        [bare / "env/bin/fleet", "run", "spec.yaml", "-n", "3", "--plain"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        env=launch.environment({"PYTHONPATH": ""}),
    )
    shutil.rmtree(packages / "scheduler")
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert len((tmp_path / "run/results.csv").read_text().splitlines()) == 2


def test_wheel_checks_simulates_submits_and_trains(bare, launch):
    def output_of(*command):
        done = subprocess.run(
            command,
            cwd=bare,
            text=True,
            capture_output=True,
            check=False,
            env=launch.environment({"PYTHONPATH": ""}),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (bare / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    python, command = str(bare / "env/bin/python"), str(bare / "env/bin/fleet")
    assert (
        output_of(
            python, "-c", "import fleet, launch; print(fleet.__file__, launch.__file__)"
        ).count(str(bare))
        == 2
    )
    assert output_of(command, "--version") == f"fleet {fleet.__version__}\n"
    assert json.loads(output_of(command, "schema"))["$schema"]
    assert "softmax" in output_of(command, "check", "spec.yaml")
    output_of(command, "simulate", "draw", "--networks", "4", "--out", "rates.json")
    assert "adaptive" in output_of(
        command, "simulate", "ensemble", "rates.json", "--gpus", "4", "--policy", "all"
    )
    assert "efficiency" in output_of(
        command, "simulate", "autoscale", "--jobs", "generate", "--minutes", "30"
    )
    assert "#SBATCH" in output_of(
        command, "submit", "spec.yaml", "--system", "slurm", "--walltime", "10min", "--dry-run"
    )
    assert "digits/digits.yaml" in output_of(command, "new", "digits")
    output_of(command, "run", "spec.yaml", "-n", "2", "--plain")
    assert len((bare / "run/results.csv").read_text().splitlines()) == 2
    assert "softmax" in output_of(command, "report", "run")


# ---- in an environment that has nothing else -----------------------------------------------------


def install(folder, requirement, *options):
    """Make an environment with a wheel and what it requires, and without a compiler in PATH."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = {**os.environ, "PATH": str(folder / "bin")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "--quiet", *options, requirement],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return environment


def train_demo(folder, environment):
    """Train the demo as a new user does; return the output."""
    output = ""
    for working_folder, *words in (
        (folder, "new", "digits"),
        (folder / "digits", "check", "digits.yaml"),
        (folder / "digits", "run", "digits.yaml", "-n", "5"),
    ):
        done = subprocess.run(
            [Path(environment["PATH"]) / "fleet", *words],
            cwd=working_folder,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
        output += done.stdout + done.stderr
        assert done.returncode == 0, output
    return output


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["keras", "torch"])
def test_wheel_alone_trains_the_demo(engine, wheel, tmp_path):
    options = ["--only-binary", ":all:"]
    if engine == "torch":  # PyPI's build for Linux includes CUDA: several GB
        version = next(
            line.split("==")[1]
            for line in (ROOT / constraints()).read_text().splitlines()
            if line.startswith("torch==")
        )
        options += ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        (tmp_path / "cpu.txt").write_text(f"torch=={version}+cpu\n")
        options += ["-c", str(tmp_path / "cpu.txt")]
        if not has_wheel("torch", *options):
            pytest.skip(f"pip finds no PyTorch {version} for CPUs")
    environment = install(tmp_path / "env", f"{wheel}[{engine}]", *options)
    assert not any(
        shutil.which(program, path=environment["PATH"]) for program in ("cc", "gcc", "c++", "g++")
    )
    output = train_demo(tmp_path, environment)
    assert "mpirun -n 5 --oversubscribe --bind-to none" in output
    assert "cnn-0 has finished: 10 epochs" in output
    assert (tmp_path / "digits/runs/digits/report.html").is_file()


def constraints():
    return "tools/constraints-{}.{}.txt".format(*sys.version_info)


def has_wheel(name, *options):
    """Return True if pip can install a package."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    words += ["--ignore-installed", *options, name]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
