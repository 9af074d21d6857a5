"""Every example runs, and prints what stands beside it."""

import doctest
import os
import subprocess
import sys

import pytest

from tests.places import ON_ONE_MACHINE, ROOT

EXAMPLES = ROOT / "examples"


def printed(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), "COLUMNS": "160",
                   **ON_ONE_MACHINE}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(expected, got):
    """Whether an output is as expected, where `...` stands for anything and white space for white space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, got, flags)


@pytest.mark.parametrize(("name", "arguments"), [
    ("plan.py", []),
    ("simulate.py", []),
    ("random_search.py", ["--engine", "numpy", "--ranks", "3", "--networks", "3"]),
])
def test_a_script_prints_what_stands_beside_it(tmp_path, name, arguments):
    got = printed(tmp_path, str(EXAMPLES / name), *arguments)
    assert same((EXAMPLES / name).with_suffix(".out").read_text(), got), got


def test_the_digits_are_listed_as_expected(tmp_path):
    got = printed(tmp_path, "-m", "fleet", "check", str(EXAMPLES / "digits.yaml"))
    assert same((EXAMPLES / "digits.out").read_text(), got), got
