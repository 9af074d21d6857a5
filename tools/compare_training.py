"""Train three small specs with two source trees and compare all weights bit for bit.

    python tools/compare_training.py ../before .

Each tree is a checkout of FLEET with specs in its folder ``tools/training``. Both trees use the
Python that runs this script, with its libraries. A spec whose engine is not installed is skipped
with a message. The exit status is 0 if all checkpoints are equal, and 1 otherwise.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

LIBRARIES = {"keras": "tensorflow", "numpy": "numpy", "torch": "torch"}  # spec -> its library
RANKS = 3  # one preprocessor, two trainers


def train(tree: Path, spec: Path, folder: Path) -> Path:
    """Train a spec with the code of a tree.

    Returns:
        The folder of the run.

    Raises:
        SystemExit: the launch failed.
    """
    folder.mkdir()
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = [
        shutil.which("mpirun", path=paths) or "mpirun",
        "-n",
        str(RANKS),
        "--oversubscribe",
        "--bind-to",
        "none",
    ]
    launch = subprocess.run(
        [*launcher, sys.executable, "-m", "fleet.run", str(spec)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if launch.returncode:
        raise SystemExit(f"{spec}: status {launch.returncode}\n{launch.stdout}{launch.stderr}")
    return folder / "runs" / spec.stem


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an HDF5 file, by their paths within it."""
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item[()])

    with h5py.File(path) as file:
        file.visititems(add)
    return arrays


def differences(before: Path, after: Path) -> list[str]:
    """List the unequal arrays of two runs' checkpoints, with the largest difference of numbers."""
    lines = []
    checkpoints = {
        run: {path.relative_to(run) for path in run.glob("models/*/*.h5")}
        for run in (before, after)
    }
    for name in sorted(checkpoints[before] ^ checkpoints[after]):
        lines.append(f"{name}: only one tree has written it")
    for name in sorted(checkpoints[before] & checkpoints[after]):
        old = read_arrays(before / name)
        new = read_arrays(after / name)
        for array in sorted(old.keys() | new.keys()):
            if array not in old or array not in new:
                lines.append(f"{name}: {array}: only one tree has written it")
            elif old[array].tobytes() != new[array].tobytes():
                lines.append(f"{name}: {array}: {_difference(old[array], new[array])}")
    return lines


def _difference(old: np.ndarray, new: np.ndarray) -> str:
    if old.shape != new.shape:
        return f"shapes {old.shape} and {new.shape}"
    if not np.issubdtype(old.dtype, np.floating):
        return "different"
    return f"largest difference {np.max(np.abs(old - new)):.3g}"


def main() -> int:
    """Compare two trees."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="checkout before the change")
    parser.add_argument("after", type=Path, help="checkout after the change")
    arguments = parser.parse_args()
    before = arguments.before.resolve()
    after = arguments.after.resolve()
    are_equal = True
    with tempfile.TemporaryDirectory() as folder:
        for name, library in LIBRARIES.items():
            if importlib.util.find_spec(library) is None:
                print(f"{name}: skipped, {library} is not installed", flush=True)
                continue
            runs = [
                train(
                    tree, tree / "tools/training" / f"{name}.yaml", Path(folder, f"{name}-{label}")
                )
                for label, tree in (("before", before), ("after", after))
            ]
            lines = differences(*runs)
            count = len(list(runs[0].glob("models/*/*.h5")))
            print(
                "\n".join([f"{name}: {count} checkpoints, {len(lines)} differences", *lines]),
                flush=True,
            )
            are_equal = are_equal and not lines
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
