"""Job scripts, compared line by line with recorded ones (`python -m tests.launch.test_render`)."""

import difflib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launch.errors import InputError
from launch.render import Job, render
from launch.sites import SITES, Site
from launch.systems import SYSTEMS, WORDS

SCRIPTS = Path(__file__).with_name("scripts")
JOB = Job(
    name="photos",
    spec="photos.yaml",
    folder=Path("/home/me/my work"),
    python=Path("/home/me/env/bin/python3"),
    run=Path("/home/me/runs/photos"),
    outputs=Path("/home/me/runs/photos/jobs"),
    nodes=2,
    walltime=7200,
    warning=120,
)
CHAIN = replace(JOB, jobs=20, retries=2, account="m1234")
HARVEST = replace(
    JOB,
    nodes=1,
    harvest=Path("/home/me/runs/photos/jobs/harvest.json"),
    words=("--share-run", "--idle-timeout=300s"),
)
PLACES = {
    **{f"generic_{name}": (SYSTEMS[name], SITES["generic"]) for name in SYSTEMS},
    **{
        f"harvest_{name}": (system, SITES["generic"])
        for name, system in SYSTEMS.items()
        if system.queue_commands
    },
    **{
        f"image_{name}": (system, replace(SITES["generic"], gpus=2))
        for name, system in SYSTEMS.items()
    },
    **{name: (SYSTEMS[site.system], site) for name, site in SITES.items() if site.system},
}


def scripts():
    """Return name -> script: a job, image and harvest per system; a chain per known machine."""
    kinds = {
        "harvest": HARVEST,
        "generic": JOB,
        "image": replace(JOB, image=Path("/home/me/my images/fleet.sif")),
    }
    return {
        name: render(
            replace(kinds.get(name.partition("_")[0], CHAIN), broadcast=name == "image_slurm"),
            system,
            site,
        )
        for name, (system, site) in PLACES.items()
    }


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if not system.broadcast])
def test_render_refuses_broadcast_without_a_command(name):
    with pytest.raises(InputError, match=f"--broadcast: {name} has no command that copies"):
        render(replace(JOB, image=Path("/fleet.sif"), broadcast=True), SYSTEMS[name], Site())


@pytest.mark.parametrize("name", PLACES)
def test_render_gives_the_recorded_script(name):
    recorded, now = (SCRIPTS / f"{name}.sh").read_text(), scripts()[name]
    if now != recorded:
        difference = "".join(
            difflib.unified_diff(recorded.splitlines(True), now.splitlines(True), "recorded", "now")
        )
        pytest.fail(f"{difference}\nIf that is meant: python -m tests.launch.test_render")


def test_render_makes_every_recorded_script():
    assert {file.stem for file in SCRIPTS.iterdir()} == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_render_gives_scripts_with_valid_syntax(name):
    assert subprocess.run(["bash", "-n", SCRIPTS / f"{name}.sh"], check=False).returncode == 0


def lines(job, system="slurm", site=None):
    return render(job, SYSTEMS[system], site or Site()).splitlines()


GPUS = Site(gpus=4, ranks=6)


@pytest.mark.parametrize(
    ("changes", "system", "site", "line"),
    [
        ({"ranks": 7}, "slurm", None, "#SBATCH --ntasks-per-node=7"),
        ({"queue": "debug"}, "pbs", SITES["polaris"], "#PBS -q debug"),
        (
            {"queue": "debug"},
            "slurm",
            SITES["perlmutter"],
            "#SBATCH --qos=debug",
        ),  # the user's option precedes the site's
        ({}, "slurm", GPUS, "#SBATCH --gpus-per-node=4"),
        ({}, "pbs", GPUS, "#PBS -l select=2:mpiprocs=6:ngpus=4"),
        ({}, "lsf", GPUS, '#BSUB -gpu "num=4"'),
        ({"folder": Path("/x/$HOME")}, "slurm", None, "cd '/x/$HOME' || exit 2"),
        (
            {"spec": "a; rm b.yaml"},
            "slurm",
            None,
            "    /home/me/env/bin/python3 -m fleet.run 'a; rm b.yaml'",
        ),
    ],
)
def test_render_writes_a_line_per_request(changes, system, site, line):
    assert line in lines(replace(JOB, **changes), system, site)


def test_render_starts_the_requested_ranks():
    assert any(
        line.strip().startswith("mpirun -n 14 --map-by ppr:7:node")
        for line in lines(replace(JOB, ranks=7))
    )


def test_render_fills_in_every_field():
    system = replace(SYSTEMS["slurm"], template="\n".join(f"<<{word}>>" for word in WORDS))
    assert "<<" not in render(JOB, system, Site())


def test_render_quotes_the_name_of_a_custom_system():
    system = replace(SYSTEMS["pbs"], name="my systems:OWN", template=SYSTEMS["pbs"].script)
    assert "--system='my systems:OWN'" in render(JOB, system, Site())


def test_render_keeps_an_existing_choice_of_gpus(tmp_path):
    script = next(
        line for line in lines(JOB, "slurm", SITES["frontier"]) if "ROCR_VISIBLE_DEVICES" in line
    )
    for before, after in (({}, "0,1,2,3,4,5,6,7"), ({"ROCR_VISIBLE_DEVICES": "2,3"}, "2,3")):
        visible = subprocess.run(
            ["bash", "-c", f"{script}\necho $ROCR_VISIBLE_DEVICES"],
            env=before,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert visible.strip() == after


def test_render_names_the_users_interpreter_by_its_path():
    script = lines(JOB, "slurm", replace(SITES["generic"], setup=("module load tensorflow",)))
    assert script.index("module load tensorflow") < script.index(
        'export PATH=/home/me/env/bin:"$PATH"'
    )
    text = "\n".join(script)
    assert text.count("-m fleet") == text.count("/home/me/env/bin/python3 -m fleet") == 2


def test_render_keeps_the_time_if_the_system_does_not_warn():
    assert any("--warn-after=7080 " in line for line in lines(JOB, "pbs"))
    assert not any("--warn-after" in line for line in lines(JOB, "slurm"))
    assert not any("--warn-after" in line for line in lines(replace(JOB, walltime=None), "local"))


@pytest.mark.parametrize(
    "wrong", [{"account": "a b"}, {"queue": "x\n#SBATCH --wrap=rm"}, {"account": "-q"}]
)
def test_render_refuses_options_of_several_words(wrong):
    with pytest.raises(InputError, match="should be one word"):
        render(replace(JOB, **wrong), SYSTEMS["slurm"], Site())


def test_render_refuses_folders_that_directives_cannot_name():
    job = replace(JOB, outputs=Path("/home/me/my runs"))
    with pytest.raises(InputError, match="need a folder whose path"):
        render(job, SYSTEMS["pbs"], Site())
    assert lines(job, "local")


if __name__ == "__main__":
    for old in SCRIPTS.iterdir():
        old.unlink()
    for stem, text in scripts().items():
        (SCRIPTS / f"{stem}.sh").write_text(text)
