"""Record 200 random launches, and compare their logs, without times, after a change of the code.

Use it for changes that must not affect decisions. Rank 0 is the real coordinator, with its log,
results, pruners and command handler; all other ranks are the model of
:mod:`tests.fleet.control.trainers`, and the answers of searchers and leases are seeded::

    python -m tests.recorded write FOLDER             # in the tree before
    python -m tests.recorded compare FOLDER           # in the tree after it
    python -m tests.recorded compare FOLDER --seed 7  # one launch, with its lines side by side
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from difflib import unified_diff
from pathlib import Path

LAUNCHES = 200

# endings of fields whose values depend on the clock of this machine
_TIMES = ("_s", "seconds", "date")


def lines_of(seed):
    """Return the lines of a launch's log, without times."""
    from tests.fleet.runtime.random_runs import RandomRun

    with tempfile.TemporaryDirectory() as folder:
        run = RandomRun(seed, Path(folder))
        try:
            status = str(int(run.run()))
        except BaseException as error:
            status = f"{type(error).__name__}: {str(error)[:300]}"
        actual = [json.dumps(_plain(json.loads(line)), sort_keys=True) for line in run.log_lines()]
        return [f"seed {seed}: {run.title}", *actual, f"status {status}"]


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not key.endswith(_TIMES)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def write(folder, seeds):
    """Record launches."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        lines = lines_of(seed)
        (folder / f"{seed:03}.log").write_text("\n".join(lines) + "\n")
        print(seed, _digest(lines), lines[0], len(lines), lines[-1][:100])


def compare(folder, seeds, shows_all=False):
    """Compare launches with their records; return the seeds of launches that differ."""
    different = []
    for seed in seeds:
        before, after = (folder / f"{seed:03}.log").read_text().splitlines(), lines_of(seed)
        if before != after:
            different.append(seed)
            if shows_all or len(different) == 1:
                print(
                    "\n".join(
                        unified_diff(
                            before, after, f"recorded {seed}", f"now {seed}", lineterm="", n=4
                        )
                    )
                )
    print(
        f"{len(seeds) - len(different)} of {len(seeds)} launches are equal"
        + (f"; these differ: {different}" if different else "")
    )
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, nargs="*", default=None)
    parsed = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # fixes the order of sets of names
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.recorded", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    seeds = range(LAUNCHES) if parsed.seed is None else parsed.seed
    if parsed.do == "write":
        write(parsed.folder, seeds)
    else:
        sys.exit(bool(compare(parsed.folder, seeds, shows_all=parsed.seed is not None)))


if __name__ == "__main__":
    main()
