"""The scripts that create the environment and find a browser."""

import os
import re
import subprocess
import sys

import pytest

from tests.places import ROOT

ENV = ROOT / "tools/env.sh"
SHIM = "#!/bin/sh\nexit 127\n"  # a version manager's shim without a chosen version


def interpreter(version):
    """Make a fake Python that prints its version and creates no environment."""
    return (
        f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit\necho "made by {version}" '
        ">&2\nexit 3\n"
    )


def without_ensurepip(version):
    """Make a fake Python of Debian, without the package that creates environments."""
    return f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\necho {version}\n'


def make_env(folder, pythons, **variables):
    """Return the script's output and status if only these interpreters are on PATH."""
    tools = folder / "bin"
    tools.mkdir()
    for name, text in pythons.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for tool in ("bash", "sh", "dirname", "cat", "cksum", "cut", "ls"):
        (tools / tool).symlink_to(
            f"/bin/{tool}" if os.path.exists(f"/bin/{tool}") else f"/usr/bin/{tool}"
        )
    done = subprocess.run(
        ["bash", ENV],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools), "HOME": str(folder), "VENV": str(folder / "env"), **variables},
    )
    return done.returncode, done.stderr


def test_env_does_not_empty_another_folder(tmp_path):
    (tmp_path / "mine").touch()
    done = subprocess.run(
        ["bash", ENV],
        env={**os.environ, "VENV": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "holds something else than a virtual environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("pythons", "version_"),
    [
        (
            {"python3": interpreter("3.13"), "python3.12": interpreter("3.12"), "python3.11": SHIM},
            "3.12",
        ),
        ({"python3": interpreter("3.14"), "python3.13": interpreter("3.13")}, "3.13"),
        ({"python3": interpreter("3.11"), "python3.13": interpreter("3.13")}, "3.11"),
        ({"python3": interpreter("3.13"), "python3.11": without_ensurepip("3.11")}, "3.13"),
    ],
)
def test_env_uses_the_first_version_that_starts(tmp_path, pythons, version_):
    assert make_env(tmp_path, pythons) == (3, f"made by {version_}\n")


@pytest.mark.parametrize("requested", ["3.13", "python3.13"])
def test_env_finds_a_requested_version_of_a_version_manager(tmp_path, requested):
    managed = tmp_path / ".pyenv/versions/3.13.0/bin/python3"
    managed.parent.mkdir(parents=True)
    managed.write_text(interpreter("3.13"))
    managed.chmod(0o755)
    assert make_env(tmp_path, {"python3.11": interpreter("3.11")}, PYTHON=requested) == (
        3,
        "made by 3.13\n",
    )


@pytest.mark.parametrize(
    ("pythons", "variables", "reason"),
    [
        (
            {"python3": interpreter("3.10")},
            {},
            "no Python 3.11, 3.12, 3.13 that starts was found. Python 3.10 is too old",
        ),
        (
            {"python3": interpreter("3.14")},
            {},
            "found. Python 3.14 has no wheels of TensorFlow yet",
        ),
        (
            {"python3": without_ensurepip("3.13")},
            {},
            "found. Python 3.13 lacks venv or ensurepip (on Debian: apt install",
        ),
        ({}, {}, "no Python 3.11, 3.12, 3.13 that starts was found. To get one"),
        (
            {"python3": interpreter("3.13")},
            {"PYTHON": "3.12"},
            "no Python 3.12 that starts was found",
        ),
        ({"python3": interpreter("2.7")}, {}, "found. Python 2.7 is too old"),
        ({}, {"PYTHON": "3.14"}, "Python 3.14 has no wheels of TensorFlow yet"),
        (
            {"python3": interpreter("3.10")},
            {"PYTHON": "python3"},
            "PYTHON=python3: Python 3.10 is too old",
        ),
        (
            {"python3": without_ensurepip("3.13")},
            {"PYTHON": "python3"},
            "PYTHON=python3: Python 3.13 lacks venv",
        ),
        ({}, {"PYTHON": "/no/python"}, "PYTHON=/no/python does not start"),
    ],
)
def test_env_explains_how_to_get_a_python(tmp_path, pythons, variables, reason):
    status, output = make_env(tmp_path, {"python3.11": SHIM, **pythons}, **variables)
    assert (status, output.count("\n")) == (1, 1)
    assert reason in output
    assert "uv python install" in output
    assert "conda create" in output


def test_env_rebuilds_an_interrupted_environment(
    tmp_path,
):
    torn = tmp_path / "env/bin/python"
    torn.parent.mkdir(parents=True)
    torn.write_text(interpreter("3.12"))
    torn.chmod(0o755)
    (tmp_path / "env/pyvenv.cfg").touch()
    makes = (
        '#!/bin/sh\ncase "$*" in *version_info*) echo 3.11;; *venv*--clear*) echo "#!/bin/sh" > '
        '"$4/bin/python"; '
        'echo \'echo "$*" >&2; exit 3\' >> "$4/bin/python";; esac\n'
    )
    status, output = make_env(tmp_path, {"python3.11": makes, "python3.12": SHIM})
    assert (status, output.split()[-1]) == (3, "tools/constraints-3.11.txt")


def test_env_keeps_an_environment_of_another_python(tmp_path):
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(interpreter("3.11"))
    python.chmod(0o755)
    status, output = make_env(tmp_path, {"python3.13": interpreter("3.13")}, PYTHON="3.13")
    assert (status, "is of Python 3.11" in output) == (1, True)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_env_pins_all_packages(version):
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / f"tools/constraints-{version}.txt").read_text().split()
        if "==" in line
    }
    pinned = {
        word
        for file in ("requirements", "requirements-torch", "requirements-horovod")
        for word in re.findall(
            r"^[\w-]+", (ROOT / f"tools/{file}.txt").read_text().lower(), re.MULTILINE
        )
    }
    lacking = pinned - pins
    # Horovod's.
    assert lacking <= ({"cffi", "cloudpickle", "cmake", "psutil"} if version == "3.13" else set())


def test_env_without_a_torch_wheel_installs_the_rest(tmp_path):
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\ncase "$*" in *version_info*) echo 3.13;; *requirements-torch*) exit 1;; esac\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", ENV, "torch"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VENV": str(tmp_path / "env"), "PYTHON": "", "HOROVOD": ""},
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip finds no torch==2.13.0 for Python 3.13 and this machine" in done.stderr
    assert (tmp_path / "env/.stage-packages").exists()


def find_chromium(folder, **programs):
    """Run tools/chromium.sh if only these programs, and no apt-get, are on PATH."""
    for name, text in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    return subprocess.run(
        ["/bin/bash", ROOT / "tools/chromium.sh"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(folder)},
    )


def test_chromium_that_does_not_start_is_passed_over(tmp_path):
    stub = "#!/bin/bash\nexit 10\n"  # as on Ubuntu, where it asks for a snap
    done = find_chromium(tmp_path, chromium=stub, google_chrome="#!/bin/bash\necho 140\n")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/google-chrome\n")


def test_missing_chromium_is_told(tmp_path):
    done = find_chromium(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "chromium: no Chromium on PATH, and no apt-get to install it\n"
