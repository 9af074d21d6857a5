"""Tests of ``fleet submit``."""

import json
import sys
from pathlib import Path

import pytest

from fleet.__main__ import main
from fleet.companions.batch_jobs.job_events import JobStarted
from fleet.companions.chains.chain import ChainHistory, JobStop, JobStopped, add_note
from fleet.storage.paths import RunPaths
from tests.fakes import put_programs
from tests.launch.made_up import printed_lines

SPEC = "models: {models}\nname: photos\noutput: {run}\n{more}"


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Return a function that submits a spec: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    put_programs(tmp_path, {"sbatch": f'cp "$2" {tmp_path}/handed_in && echo 4711'})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def call(*arguments, more="", models="[{family: softmax}]"):
        Path("spec.yaml").write_text(SPEC.format(run=tmp_path / "run", more=more, models=models))
        try:
            status = main(["submit", "spec.yaml", *arguments])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_submit_prints_the_job_id(submit, tmp_path):
    assert submit("--system", "slurm", "--nodes", "3", "--walltime", "2h")[:2] == (0, "4711\n")
    paths = RunPaths(tmp_path / "run")
    assert (tmp_path / "handed_in").read_text() == paths.job_script.read_text()
    assert paths.marker.exists()
    assert paths.foreign_files() == []
    text = paths.job_script.read_text()
    for line in (
        "#SBATCH --job-name=photos",
        "#SBATCH --nodes=3",
        "#SBATCH --time=02:00:00",
        f"#SBATCH --output={tmp_path}/run/jobs/%j.out",
        f"cd {tmp_path} || exit 2",
        f'export PATH={Path(sys.executable).parent}:"$PATH"',
    ):
        assert line in text.splitlines()


def test_image_binds_the_folders_of_spec_and_data(submit, tmp_path, monkeypatch, capsys):
    for name in ("here", "specs", "photos/train", "more"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fleet.sif").touch()
    (tmp_path / "specs/spec.yaml").write_text(
        SPEC.format(
            run=tmp_path / "run",
            models="[{family: softmax}]",
            more=f"data: "
            f"{{source: image_folder, path: {tmp_path}/photos/train, validation: ../more/*.tar}}",
        )
    )
    monkeypatch.chdir(tmp_path / "here")
    requests = ("--system", "local", "--dry-run", "--image", "../fleet.sif")
    assert main(["submit", "../specs/spec.yaml", *requests]) == 0
    bound = [
        word.partition("=")[2]
        for word in capsys.readouterr().out.split()
        if word.startswith("--bind=")
    ]
    assert bound == [
        str(tmp_path / name) for name in ("here", "run", "specs", "photos/train", "more")
    ]


def test_image_is_broadcast_by_slurm(submit, tmp_path):
    (tmp_path / "fleet.sif").touch()
    requests = ("--walltime", "2h", "--dry-run", "--image", "fleet.sif", "--broadcast", "--system")
    _, script, _ = submit(*requests, "slurm")
    assert f"image={tmp_path}/fleet.sif\nsbcast --force" in script
    assert f'--bind={tmp_path}/run "$image" python -m fleet.run spec.yaml' in script
    for arguments, message in (
        ((*requests, "lsf"), "lsf has no command that copies a file to all nodes"),
        (("--broadcast", "--system", "slurm", "--walltime", "2h"), "add --image FILE.sif"),
        (("--image", "no.sif", "--system", "local"), "--image no.sif: the file does not exist"),
    ):
        status, _, err = submit(*arguments)
        assert (status, message in err) == (2, True)


def test_submit_json_has_paths(submit, tmp_path):
    status, out, _ = submit("--system", "slurm", "--walltime", "2h", "--json")
    assert status == 0
    assert json.loads(out) == {
        "job": "4711",
        "system": "slurm",
        "script": f"{tmp_path}/run/jobs/job.sh",
        "stops": f"{tmp_path}/run/jobs/stops.jsonl",
    }


def test_submit_json_prints_the_script_of_a_dry_run(submit):
    _, script, _ = submit("--system", "slurm", "--walltime", "2h", "--dry-run")
    _, out, _ = submit("--system", "slurm", "--walltime", "2h", "--dry-run", "--json")
    assert json.loads(out) == {"script": script}
    status, out, err = submit("--system", "local", "--json")
    assert (status, out) == (2, "")
    assert "--system local" in err


def test_once_options_go_to_the_first_launch(submit):
    status, out, _ = submit(
        "--system",
        "slurm",
        "--walltime",
        "2h",
        "--chain",
        "--fresh-network",
        "softmax",
        "--accept-changes",
        "--remeasure",
        "--dry-run",
    )
    assert status == 0
    assert (
        "--retries=2 --once=--fresh-network=softmax --once=--accept-changes --once=--remeasure --"
        in out
    )


def test_dry_run_prints_the_script_and_writes_nothing(submit, tmp_path):
    status, out, _ = submit("--system", "slurm", "--walltime", "2h", "--chain", "--dry-run")
    assert status == 0
    assert out.startswith("#!/bin/bash\n#SBATCH")
    assert "--jobs=20 --retries=2 --" in out
    assert not (tmp_path / "run").exists()


SLURM = ("--system", "slurm", "--walltime")


@pytest.mark.parametrize(
    ("requests", "spec", "lines"),
    [
        ((*SLURM, "2h"), "", ["#SBATCH --signal=B:USR2@120"]),  # two minutes before the end
        ((*SLURM, "5min"), "", ["#SBATCH --signal=B:USR2@30"]),
        ((*SLURM, "2h", "--warn", "10min"), "", ["#SBATCH --signal=B:USR2@600"]),
        (("--system", "pbs"), "walltime: 90min", ["#PBS -l walltime=01:30:00"]),
        (
            ("--site", "own.yaml", "--walltime", "1h"),
            "",
            ["#SBATCH --constraint=gpu", "module load tensorflow"],
        ),
        (
            (*SLURM, "1h", "--nodes", "2"),
            "resources: {gpus_per_node: 8, preprocessors: 5}",
            ["#SBATCH --gpus-per-node=8", "#SBATCH --ntasks-per-node=11"],
        ),
    ],
    ids=[
        "a warning",
        "of a short job",
        "as the user says",
        "the spec's walltime",
        "a site of ones own",
        "GPUs",
    ],
)
def test_script_contains_the_requests(submit, tmp_path, requests, spec, lines):
    (tmp_path / "own.yaml").write_text("base: perlmutter\nsetup: [module load tensorflow]\n")
    status, out, _ = submit(*requests, "--dry-run", more=spec)
    assert status == 0
    assert set(lines) <= set(out.splitlines())


def test_generic_site_gets_two_preprocessors_per_gpu(submit, tmp_path):
    slurm = ("--system", "slurm", "--walltime", "1h", "--dry-run")
    _, out, error = submit(*slurm, "--gpus-per-node", "4", more="resources: {gpus_per_node: 8}")
    assert {"#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=12"} <= set(out.splitlines())
    assert error == ""
    (tmp_path / "own.yaml").write_text("ranks: 5\n")
    for gpus, ranks in (("2", 5), ("8", 9)):
        assert (
            f"#SBATCH --ntasks-per-node={ranks}"
            in submit(*slurm, "--site", "own.yaml", "--gpus-per-node", gpus)[1]
        )


def test_submit_warns_about_jobs_without_gpus(submit):
    job = ("--system", "slurm", "--walltime", "1h", "--dry-run")
    assert submit(*job)[2].splitlines() == [
        "fleet submit: the job requests no GPUs; set --gpus-per-node, resources.gpus_per_node or "
        "--site"
    ]
    assert submit(*job, more="resources: {engine: numpy}")[2] == ""
    assert submit("--site", "perlmutter", *job[2:])[2] == ""


@pytest.fixture
def share(submit):
    """Return a function that submits nine networks with slots to a node of 4 GPUs and 12 ranks."""

    def call(slots, sharing=None, models=9, searches=()):
        models = [
            *({"family": "softmax", "name": f"n{number}"} for number in range(models)),
            *searches,
        ]
        table = {
            "samples_per_epoch": 10,
            "gpus_per_node": 4,
            "models": [{"name": "n0", "rates": [5.0]}],
            **({} if sharing is None else {"sharing": sharing}),
        }
        Path("rates.json").write_text(json.dumps(table))
        return submit(
            "--site",
            "polaris",
            "--walltime",
            "1h",
            "--dry-run",
            models=json.dumps(models),
            more=f"resources: {{networks_per_gpu: {slots}}}\nschedule: {{rates: rates.json}}\n",
        )

    return call


@pytest.mark.parametrize(("slots", "ranks"), [(1, 12), (2, 16), ("auto", 12)])
def test_each_slot_gets_a_rank_besides_the_preprocessors(share, slots, ranks):
    status, script, _ = share(slots)
    assert status == 0
    assert f"mpiexec -n {ranks} " in script


def test_trainers_of_a_gpu_share_its_cores(share):
    words = next(word for word in share(2)[1].split() if word.count(":") == 15).split(":")
    assert words[-8:-4] == words[-4:] == ["24-29", "16-21", "8-13", "0-5"]


@pytest.mark.parametrize(
    ("slots", "sharing"), [(3, [1, 1.6, 1.9, 2.1]), (2, [1, 1.6, 1.61]), (1, [1, 1]), (1, None)]
)
def test_submit_is_silent_if_sharing_does_not_pay_off(share, slots, sharing):
    assert share(slots, sharing)[2] == ""


def test_submit_suggests_networks_per_gpu(share):
    assert share(1, [1, 1.6, 1.9, 2.1])[2] == (
        "fleet submit: 2 networks on one GPU train 1.6 times as fast as one, 3 networks 1.9 times, "
        "4 networks 2.1 times: 4 pay off. This job has 1 per GPU; for 3, use "
        "resources.networks_per_gpu: 3 and --ranks-per-node 20\n"
    )


def test_submit_counts_concurrent_trials_of_searches(share):
    entry = {
        "family": "softmax",
        "name": "s",
        "space": {"train.optimizer.learning_rate": {"low": 0.1, "high": 0.5}},
    }
    for maximum, output in ((3, False), (8, True)):
        searches = [{**entry, "search": {"sampler": "random", "max_trials": maximum}}]
        assert ("for 3, use" in share(1, [1, 1.6, 1.9, 2.1], 1, searches)[2]) == output


@pytest.mark.parametrize(
    ("slots", "would"),
    [
        (2, "resources.networks_per_gpu: 3 and --ranks-per-node 20"),
        ("auto", "--ranks-per-node 16"),
    ],
)
def test_submit_suggests_one_more_than_measured(share, slots, would):
    sharing = [1, 1.6, 1.9, 2.1][: 2 if slots == 2 else 4]
    models = 9 if slots == 2 else 16
    pays = len(sharing)
    message = share(slots, sharing, models=models)[2]
    assert f": {pays} pay" in message
    assert ("; more may pay" in message) == (slots == 2)
    assert message.endswith(f"per GPU; for {3 if slots == 2 else 4}, use {would}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--site", "polaris", "--walltime", "1h", "--gpus-per-node", "2"),
            "--gpus-per-node is for sites that do not set it; polaris has 4",
        ),
        (
            ("--system", "slurm", "--walltime", "1h", "--gpus-per-node", "0"),
            "--gpus-per-node: '0' should be a whole",
        ),
        (("--system", "slurm"), "set the walltime of the job with --walltime"),
        (
            ("--system", "local", "--fresh-network", "no"),
            "--fresh-network no: the spec has no network of this name; it has soft",
        ),
        (("--walltime", "1h"), "choose the batch system with --system: slurm, lsf, pbs, local"),
        (
            ("--system", "sge", "--walltime", "1h"),
            "no batch system is named 'sge'; use one of slurm, lsf, pbs, local, or an",
        ),
        (
            ("--system", "no_module:X", "--walltime", "1h"),
            "system 'no_module:X': cannot import 'no_module'",
        ),
        (
            ("--site", "frontier", "--system", "pbs", "--walltime", "1h"),
            "--system pbs: the site frontier has the batch system slurm",
        ),
        (
            ("--site", "titan", "--walltime", "1h"),
            "--site titan is unknown; use one of generic, summit",
        ),
        (("--site", "none.yaml", "--walltime", "1h"), "none.yaml: does not exist"),
        (("--system", "slurm", "--walltime", "soon"), "--walltime: 'soon' should be written like"),
        (("--system", "slurm", "--walltime", "0"), "above 0"),
        (
            ("--system", "slurm", "--walltime", "1h", "--nodes", "0"),
            "--nodes: '0' should be a whole number from 1 to",
        ),
        (("--system", "slurm", "--walltime", "1h", "--retries", "3"), "need --chain"),
        (
            ("--system", "slurm", "--walltime", "1h", "--warn", "2h"),
            "should be less than the walltime",
        ),
        (("--system", "local", "--nodes", "2"), "has only this machine"),
        (
            ("--system", "slurm", "--walltime", "1h", "--account", "a b"),
            "--account is 'a b'; it should be one word",
        ),
        (
            ("--site", "polaris", "--walltime", "1h", "--ranks-per-node", "4"),
            "leave none to prepare",
        ),
        (
            ("--site", "polaris", "--walltime", "1h", "--ranks-per-node", "33"),
            "more than the 32 cores",
        ),
    ],
)
def test_submit_refuses_invalid_arguments(submit, tmp_path, arguments, message):
    status, out, error = submit(*arguments)
    assert (status, out) == (2, "")
    assert message in error
    assert not (tmp_path / "run").exists()


OWN = """
from launch.systems import System
OWN = System("own", directive="#OWN ", resources=("-n {ranks}",), job_variable="OWN_ID",
             submit=("sbatch", "--as-script"),
             id_pattern="([0-9]+)",
             template="#!/bin/bash\\n#OWN <<name>>\\n<<directives>>\\n<<body>>")
"""


@pytest.mark.parametrize("by_site", [False, True])
def test_custom_batch_system_by_import_path(submit, tmp_path, by_site):
    (tmp_path / "submitted_system.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text("system: submitted_system:OWN\n")
    named = ("--site", "own.yaml") if by_site else ("--system", "submitted_system:OWN")
    assert submit(*named, "--walltime", "1h", "--nodes", "2")[:2] == (0, "4711\n")
    text = RunPaths(tmp_path / "run").job_script.read_text()
    assert text.startswith("#!/bin/bash\n#OWN photos\n#OWN -n 8\n")
    assert "--system=submitted_system:OWN" in text
    status, _, error = submit(*named, "--walltime", "1h", "--chain")
    assert status == 2
    assert (
        "--chain: submitted_system:OWN has neither `after` nor `requeue`, so no job can follow "
        "another" in error
    )


def test_submit_refuses_folders_of_other_programs(submit, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    status, _, error = submit("--system", "slurm", "--walltime", "1h")
    assert status == 2
    assert "holds files that FLEET did not write" in error
    assert not (tmp_path / "handed_in").exists()


# ---- the end of a chain ----

RUNNING, NEXT, OTHER = (
    "4711",
    "4712",
    "99",
)  # jobs; the last one has the same name, but belongs to another run
QUEUES = {
    "slurm": {
        "sbatch": "echo 4711",
        "scancel": ":",
        "squeue": "; ".join(
            printed_lines(job, state, "photos")
            for job, state in ((RUNNING, "RUNNING"), (NEXT, "PENDING"), (OTHER, "PENDING"))
        ),
    },
    "lsf": {
        "bsub": "cat > /dev/null; echo 'Job <4711> is submitted to queue <spare>.'",
        "bkill": ":",
        "bjobs": "echo '4711|RUN|photos'; echo '4712|PEND|photos'; echo '99|PEND|photos'",
    },
    "pbs": {
        "qsub": "echo 4711",
        "qsig": ":",
        "qdel": ":",
        "qselect": "echo 4711; echo 4712; echo 99",
        "qstat": """echo '{"Jobs": {"4711": {"Job_Name": "photos", "job_state": "R"},
            "4712": {"Job_Name": "photos", "job_state": "H"},
            "99": {"Job_Name": "photos", "job_state": "Q"}}}'""",
    },
}
ENDS = {
    "slurm": ["scancel --batch --signal=USR2 4711", "scancel --state=PENDING 4712"],
    "lsf": ["bkill -s USR2 4711", "bkill 4712"],
    "pbs": ["qsig -s SIGUSR2 4711", "qdel 4712"],
}


def end(capsys, *words):
    status = main(["submit", "--end", "run", *words])
    return status, *capsys.readouterr()


def put(folder, programs):
    """Install programs that record how they were called."""
    put_programs(
        folder,
        {name: f'echo "{name} $*" >> {folder}/asked\n{does}' for name, does in programs.items()},
    )


@pytest.mark.parametrize("system", QUEUES)
def test_end_cancels_the_next_job_and_saves_the_running_one(submit, tmp_path, capsys, system):
    put(tmp_path, QUEUES[system])
    assert submit("--system", system, "--walltime", "2h", "--chain")[0] == 0
    paths = RunPaths(tmp_path / "run")
    add_note(paths, JobStarted(RUNNING))
    add_note(paths, JobStopped(RUNNING, JobStop(75), "", next=NEXT))
    add_note(paths, JobStarted(RUNNING))
    status, out, err = end(capsys)
    assert (status, err) == (0, "")
    assert out == (
        "4712 cancelled\n4711 signaled to save and end (SIGUSR2)\n"
        "no other job follows; submit the spec again to resume from the checkpoints in run\n"
    )
    requests = (tmp_path / "asked").read_text().splitlines()
    assert sorted(
        line for line in requests if line.split()[0] in ("scancel", "bkill", "qsig", "qdel")
    ) == sorted(ENDS[system])
    assert ChainHistory.read(paths).is_cancelled(RUNNING)
    assert ChainHistory.read(paths).is_cancelled(NEXT)
    assert not ChainHistory.read(paths).is_cancelled(OTHER)


def test_end_cancels_a_waiting_job_and_submit_starts_again(submit, tmp_path, capsys):
    put(tmp_path, {**QUEUES["slurm"], "squeue": printed_lines(RUNNING, "PENDING", "photos")})
    submit("--system", "slurm", "--walltime", "2h", "--chain")
    assert json.loads(end(capsys, "--json")[1]) == {"cancelled": [RUNNING], "told": []}
    put(tmp_path, {"sbatch": "echo 4720"})
    submit("--system", "slurm", "--walltime", "2h", "--chain")
    history = ChainHistory.read(RunPaths(tmp_path / "run"))
    assert (history.is_cancelled(RUNNING), history.is_cancelled("4720")) == (False, False)


def test_end_without_a_chain_is_refused(submit, tmp_path, capsys):
    run = tmp_path / "run"
    assert end(capsys)[::2] == (
        2,
        f"fleet submit: --end {run}: there is no chain: {run}/jobs/job.sh, which fleet submit "
        "writes, is missing\n",
    )
    put(tmp_path, {**QUEUES["slurm"], "squeue": ":"})
    submit("--system", "slurm", "--walltime", "2h", "--chain")
    add_note(RunPaths(run), JobStarted(RUNNING))
    add_note(
        RunPaths(run), JobStopped(RUNNING, JobStop(0), "it ended", None, "all networks finished")
    )
    status, _, err = end(capsys)
    assert status == 2
    assert err == (
        f"fleet submit: --end {run}: the chain has no waiting or running job (4711); the last "
        "decision was: all networks finished\n"
    )
    assert not ChainHistory.read(RunPaths(run)).is_cancelled(RUNNING)


def test_end_takes_no_spec_and_submit_needs_one(submit, capsys):
    assert (
        submit("--end", "run")[2] == "fleet submit: --end run takes no spec; leave spec.yaml out\n"
    )
    assert main(["submit", "--system", "slurm"]) == 2
    assert (
        capsys.readouterr().err
        == "fleet submit: the spec is missing: fleet submit SPEC, or --end RUN\n"
    )
