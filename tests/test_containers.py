"""The recipes of containers and of Spack, tested without Apptainer and Spack."""

import re
import runpy
import subprocess
import sys
from configparser import ConfigParser
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import fleet
from tests.places import ROOT

RECIPE = ROOT / "launch/containers/fleet.def"
SPACK = ROOT / "launch/containers/spack/spack_repo/fleet/packages/py_fleet_ensemble/package.py"
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
SECTIONS = dict(
    re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
)


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_container_scripts_are_valid_shell(section):
    done = subprocess.run(
        ["sh", "-n"], input=SECTIONS[section], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_container_copies_existing_files():
    sources = [line.split()[0] for line in SECTIONS["files"].splitlines() if line.strip()]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert {
        option.rstrip("*") for option in SETUP["options.packages.find"]["include"].split()
    } <= set(sources)


def test_container_has_the_tested_versions():
    [name] = re.findall(r"tools/(constraints-\S+)", SECTIONS["files"])
    pins = dict(
        line.partition(";")[0].strip().split("==")
        for line in (ROOT / "tools" / name).read_text().splitlines()
        if "==" in line
    )
    assert re.findall(r"tensorflow\[and-cuda\]==([\d.]+)", SECTIONS["post"]) == [
        pins["tensorflow_cpu"]
    ]
    assert SECTIONS["labels"].split() == ["Version", fleet.__version__]
    [extras] = re.findall(r"source\[([\w,]+)\]", SECTIONS["post"])
    assert set(extras.split(",")) <= set(SETUP["options.extras_require"])


@pytest.fixture
def stated(monkeypatch):
    """Run the recipe for Spack with a recorder instead of Spack, and return the recorded calls."""
    calls = {"depends_on": [], "version": [], "variant": [], "license": []}
    package = SimpleNamespace(
        default_args=lambda **_: nullcontext(),
        **{
            name: lambda *words, _calls=requirement, **options: _calls.append((*words, options))
            for name, requirement in calls.items()
        },
    )
    monkeypatch.setitem(sys.modules, "spack.package", package)
    monkeypatch.setitem(
        sys.modules,
        "spack_repo.builtin.build_systems.python",
        SimpleNamespace(PythonPackage=object),
    )
    recipe = runpy.run_path(str(SPACK))["PyFleetEnsemble"]
    return SimpleNamespace(git=recipe.git, **calls)


def ranges(requirements):
    """Return name -> range in Spack's syntax: `a>=1,<3` is `1:2`, as its ranges include both."""
    for line in filter(None, requirements.splitlines()):
        name, low, high = re.fullmatch(r"([\w-]*)>=([\d.]+)(?:,<([\d.]+))?", line).groups()
        high_ = re.sub(r"\d+$", lambda digits: str(int(digits[0]) - 1), high) if high else ""
        yield name.lower(), f"{low}:{high_}"


def test_spack_has_the_version_and_ranges_of_the_wheel(stated):
    requested = dict(call[0].removeprefix("py-").split("@") for call in stated.depends_on)
    needed = dict(ranges(SETUP["options"]["install_requires"]))
    extras = SETUP["options.extras_require"]
    optional = {
        name: listed for variant, *_ in stated.variant for name, listed in ranges(extras[variant])
    }
    optional.pop("simplejpeg")  # Spack has none
    python = dict(ranges("python" + SETUP["options"]["python_requires"]))
    assert requested == {**needed, **optional, **python, "setuptools": "68:"}
    assert [call[0] for call in stated.version] == [fleet.__version__]
    assert stated.git == ROOT.as_uri()


def test_spack_omits_only_what_an_extra_needs(stated):
    variants = {name for name, *_ in stated.variant}
    assert {
        options["when"].removeprefix("+") for *_, options in stated.depends_on if "when" in options
    } == variants
