"""The made-up Slurm of ``made_up_slurm.py`` in a folder of programs."""

import json
import sys
from pathlib import Path

PROGRAMS = ("squeue", "scancel", "scontrol", "sacctmgr", "sacct", "sbatch")


class MadeUp:
    """Its jobs can be set and looked at; ``acts`` are the commands that changed something."""

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
        """Jobs by their id, and what else it knows."""
        (self.folder / "slurm.json").write_text(json.dumps({"jobs": dict(jobs), **more}))

    def change(self, job, **fields):
        """Change fields of one job; none: it is gone."""
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
    """What a squeue that is a script of the shell does to show a job, in the format that it is asked for."""
    changes = "; ".join(
        f"s/{field}/{value}/"
        for field, value in (("%i", number), ("%D", 1), ("%M", "0:10"), ("%T", state), ("%j", name))
    )
    return f"for word; do case $word in --format=*) echo \"${{word#--format=}}\" | sed '{changes}';; esac; done"
