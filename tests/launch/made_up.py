"""The fake Slurm of ``made_up_slurm.py`` in a folder of programs."""

import json
import sys
from pathlib import Path

PROGRAMS = ("squeue", "scancel", "scontrol", "sacctmgr", "sacct", "sbatch")


class MadeUp:
    """A fake Slurm with jobs set by tests; ``acts`` are the commands that changed jobs."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        text = Path(__file__).with_name("made_up_slurm.py").read_text().splitlines(keepends=True)
        text[0] = f"#!{sys.executable} -IS\n"
        for program in PROGRAMS:
            (folder / program).write_text("".join(text))
            (folder / program).chmod(0o755)
        self.set()

    def set(self, jobs=(), **more):
        """Return the jobs by their ids, and the other state."""
        (self.folder / "slurm.json").write_text(json.dumps({"jobs": dict(jobs), **more}))

    def change(self, job, **fields):
        """Change fields of one job; without fields, remove it."""
        slurm = self.state()
        if fields:
            slurm["jobs"].setdefault(job, {}).update(fields)
        else:
            slurm["jobs"].pop(job, None)
        (self.folder / "slurm.json").write_text(json.dumps(slurm))

    def state(self):
        return json.loads((self.folder / "slurm.json").read_text())

    @property
    def acts(self):
        file = self.folder / "acts"
        return file.read_text().splitlines() if file.exists() else []


def printed_lines(number, state, name):
    """Return shell lines by which a fake squeue prints a job in the requested format."""
    changes = "; ".join(
        f"s/{field}/{value}/"
        for field, value in (("%i", number), ("%D", 1), ("%M", "0:10"), ("%T", state), ("%j", name))
    )
    return (
        f'for word; do case $word in --format=*) echo "${{word#--format=}}" | sed '
        f"'{changes}';; esac; done"
    )
