"""``fleet submit --walltime auto``: from the past, or from simulation, to requests, and what it says of them."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.__main__ import main
from fleet.commands import walltimes
from fleet.commands.walltimes import _simulated, epochs_of
from fleet.jobs.chain import ChainTimes, chain_times
from fleet.spec import load
from fleet.spec.train import Stopping
from fleet.storage.paths import RunPaths
from launch.sites import SITES
from tests.launch.conftest import made_up

__all__ = ["made_up"]
SPEC = """\
name: photos
output: run
data: {{source: "builtin:noise", options: {{samples: 1000, classes: 3, size: 8}}, transforms: []}}
models: {models}
train: {{stopping: {{max_epochs: 60, patience: 5}}}}
resources: {{engine: numpy{resources}}}
{more}"""
MODELS = "[{family: softmax, name: one}, {family: softmax, name: two}]"
RATES = {
    "samples_per_epoch": 1000,
    "gpus_per_node": 1,
    "models": [{"name": "one", "rates": [2.0]}, {"name": "two", "rates": [3.0]}],
}
OFF = {"sacct": "Slurm accounting storage is disabled"}


def launch(start, seconds, status):
    """The two lines of a launch; minutes and seconds of a day."""
    at = [
        f"2026-11-22T{moment // 3600:02d}:{moment // 60 % 60:02d}:{moment % 60:02d}+00:00"
        for moment in (start, start + seconds)
    ]
    stopped = {
        "event": "stopped",
        "job": "17",
        "status": status,
        "warned": False,
        "why": "",
        "next": None,
    }
    return [{"time": at[0], "event": "begun", "job": "17"}, {"time": at[1], **stopped}]


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys, made_up):
    """Submit; what came of it is (status, standard output, standard error without the command's name)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made_up.set(says=OFF)

    def call(*words, more="", models=MODELS, resources="", launches=(), system="slurm"):
        Path("spec.yaml").write_text(SPEC.format(more=more, models=models, resources=resources))
        if launches:
            Path("run/jobs").mkdir(parents=True)
            RunPaths(Path("run")).marker.touch()
            Path("run/jobs/stops.jsonl").write_text(
                "".join(f"{json.dumps(line)}\n" for line in launches)
            )
        status = main(["submit", "spec.yaml", "--system", system, "--walltime", "auto", *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.replace("fleet submit: ", "")

    return call


FIVE = [
    line
    for number, seconds in enumerate((600, 620, 640, 660, 7200))
    for line in launch(8000 * number, seconds, 0)
]


def test_the_finished_chains_of_the_folder_say_what_to_ask_for(submit):
    status, script, message = submit("--chain", "--dry-run", launches=FIVE)
    assert status == 0
    assert message == (
        "asks for 14 min 0 s, then 1 h 52 min if that is not enough\n"
        "by 5 finished chains in run (10 min 0 s to 2 h 0 min)\n"
        "expected: 0.607 node-hours asked for, 0.567 used, 1.20 jobs; with one request of 2 h 3 min: 2.05 and 0.557\n"
        "in a queue that starts any job that fits when nodes are idle (work-conserving) only what is used counts, and "
        "shorter requests can lose: there ask for --walltime 123min\n"
    )
    assert "#SBATCH --time=00:14:00" in script
    assert "--request=840 --request=6720" in script


@pytest.mark.parametrize(
    ("system", "directive"), [("lsf", "#BSUB -W 00:14"), ("pbs", "#PBS -l walltime=00:14:00")]
)
def test_other_systems_are_asked_in_their_own_words(submit, system, directive):
    status, script, message = submit("--dry-run", launches=FIVE, system=system)
    assert status == 0
    assert message.startswith(
        "asks for 14 min 0 s, then 1 h 52 min if that is not enough (the same command asks"
    )
    assert directive in script.splitlines()


def test_without_a_chain_the_same_command_asks_for_the_next(submit, made_up):
    status, out, message = submit(launches=FIVE + launch(50_000, 720, 75))
    assert (status, out) == (0, "4711\n")
    assert "12 min 0 s of it are done" in message
    assert message.startswith(
        "asks for 1 h 51 min\n"
    )  # two hours, less what is done, and what a job costs
    assert made_up.acts == ["sbatch --parsable " + str(Path("run/jobs/job.sh").absolute())]


@pytest.mark.parametrize(("warn", "minutes"), [("1s", 13), ("1min", 13), ("3min", 15)])
def test_requests_reserve_a_minute_for_saving(submit, warn, minutes):
    five = [line for number in range(5) for line in launch(8000 * number, 605, 0)]
    _, _, message = submit("--dry-run", f"--warn={warn}", launches=five)
    assert message.startswith(
        f"asks for {minutes} min 0 s\n"
    )  # a minute to start, 605 s, and what is kept


def test_accounting_says_it_where_the_folder_knows_nothing(submit, made_up):
    made_up.set(past=[f"{job}|COMPLETED|{600 + job}" for job in range(5)])
    status, out, message = submit("--dry-run", "--json")
    assert status == 0
    assert "by 5 completed jobs named photos that sacct knows (10 min 0 s to 10 min 4 s)" in message
    assert json.loads(out)["walltime"]["requests_s"] == [840.0]


def test_first_run_is_simulated_with_known_rates(submit, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    status, _, message = submit(
        "--chain", "--dry-run", "--ranks-per-node", "2", more="schedule: {rates: rates.json}"
    )
    assert status == 0
    assert "by simulating it 60 times on 1 device with the rates of " in message
    assert "networks improving for 1 epoch to all that they may train" in message


@pytest.mark.parametrize(
    ("resources", "site", "devices"),
    [
        ("", "perlmutter", "4 devices"),
        (", gpus_per_node: 2", "perlmutter", "2 devices"),
        (", preprocessors: 3", "generic", "1 device"),
        (
            ", gpus_per_node: 1, networks_per_gpu: 2",
            "generic",
            "1 device, up to 2 networks on each,",
        ),
    ],
)
def test_it_is_simulated_on_what_the_job_will_train_on(submit, tmp_path, resources, site, devices):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    status, _, message = submit(
        "--dry-run", "--site", site, more="schedule: {rates: rates.json}", resources=resources
    )
    assert status == 0
    assert f"by simulating it 60 times on {devices} with the rates of " in message


def test_with_nothing_to_go_by_it_says_what_was_asked(submit):
    status, out, message = submit("--dry-run")
    assert (status, out) == (2, "")
    assert message == (
        "--walltime auto: nothing tells how long photos takes: no chain in run has finished, sacct failed: Slurm "
        "accounting storage is disabled, and no rates are known (schedule.rates, or those of an earlier run on this "
        "machine); name a walltime for the first job, such as 2h\n"
    )


def test_a_search_is_not_simulated_as_if_it_had_no_networks(submit, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    searching = "[{family: softmax, name: one, space: {train.batch.size: [8, 16]}, search: {sampler: random, max_trials: 4}}]"
    status, _, message = submit("--dry-run", more="schedule: {rates: rates.json}", models=searching)
    assert status == 2
    assert (
        "and what it trains is asked for while it runs, so that it cannot be simulated; name a walltime"
        in message
    )


def test_few_past_runs_are_doubled(submit):
    status, _, message = submit("--dry-run", launches=launch(0, 600, 3))
    assert status == 0
    assert "by 1 past run, too few to learn from: twice the longest (10 min 0 s)\n" in message
    assert message.startswith("asks for 23 min 0 s\n")


def test_run_beyond_all_known_times_asks_for_as_long_again(submit):
    _, _, message = submit("--dry-run", launches=FIVE + launch(50_000, 8000, 75))
    assert "2 h 13 min of it are done, which is longer than all of these: as long again" in message


@pytest.mark.parametrize(
    ("words", "system", "message"),
    [
        (["--chain"], "pbs", "--walltime auto does not go with --chain on pbs"),
        ([], "local", "--walltime auto: on local there is no queue to ask"),
    ],
)
def test_where_it_cannot_be_asked_for_it_is_refused(submit, words, system, message):
    status, _, refusal = submit(*words, "--dry-run", system=system)
    assert status == 2
    assert message in refusal


# ---- what is known ----


def test_chain_times_add_up_without_launches_of_unknown_end(tmp_path):
    launches = ((0, 100, 75), (200, 50, 0), (500, 70, 1), (600, 999, None), (700, 5, 75))
    lines = [line for finished in launches for line in launch(*finished)]
    path = tmp_path / "stops.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "half a li")
    assert chain_times(path) == ChainTimes((150.0,), 75.0)
    assert chain_times(tmp_path / "no") == ChainTimes((), 0.0)


@pytest.mark.parametrize(
    ("rule", "minimum", "maximum"),
    [
        (Stopping(max_epochs=30), 30, 30),
        (Stopping(max_epochs=30, patience=4), 5, 30),
        (Stopping(max_epochs=30, stop_at=0.9), 1, 30),
        (Stopping(max_epochs=1, patience=4), 1, 1),
    ],
)
def test_epochs_are_drawn_within_what_the_rule_allows(rule, minimum, maximum):
    rng = np.random.default_rng(0)
    drawn = [epochs_of(rule, rng) for _ in range(300)]
    assert (min(drawn), max(drawn)) == (minimum, maximum)


# ---- the input ---------------------------------------------------------------------------------

JUDGED = 20
EPOCHS = 10


@pytest.fixture
def simulated(submit, tmp_path, monkeypatch):
    """How many seconds a first run takes, as it is simulated, whose samples take so long to decode and to turn."""

    def call(fixed_s, varying_s, data, ranks=2, policy="homogeneous"):
        rates = {
            "samples_per_epoch": 100,
            "gpus_per_node": 1,
            "models": [{"name": "one", "rates": [1000.0]}],
        }
        (tmp_path / "rates.json").write_text(json.dumps(rates))
        looked = walltimes.open_inputs

        def look(spec):
            opened = looked(spec)
            return replace(
                opened,
                probes={
                    part: replace(entry, fixed_s=fixed_s, varying_s=varying_s)
                    for part, entry in opened.probes.items()
                },
            )

        monkeypatch.setattr(walltimes, "open_inputs", look)
        Path("spec.yaml").write_text(
            "name: photos\noutput: run\n"
            f"data: {{source: 'builtin:noise', options: {{samples: 100, validation: {JUDGED}, size: 8}}, {data}}}\n"
            f"models: [{{family: softmax, name: one}}]\ntrain: {{stopping: {{max_epochs: {EPOCHS}}}}}\n"
            f"schedule: {{policy: {policy}, rates: rates.json}}\nresources: {{engine: numpy}}\n"
        )
        arguments = Namespace(nodes=1, ranks_per_node=ranks, spec="spec.yaml")
        expected = _simulated(arguments, load("spec.yaml"), SITES["generic"])
        return expected.law.longest

    return call


TRAINING_S = EPOCHS * (100 + JUDGED / 3) / 1000  # nothing holds it back


@pytest.mark.parametrize(
    ("data", "policy", "ranks", "seconds"),
    [
        # A preprocessor decodes and turns all samples of each epoch, and those to judge by once.
        ("cache: none", "homogeneous", 2, EPOCHS * (100 * 0.05 + JUDGED / 3000) + JUDGED * 0.04),
        # Every trainer does for itself what its network needs.
        ("cache: none", "baseline", 3, EPOCHS * (100 * 0.05 + JUDGED / 3000) + JUDGED * 0.04 / 2),
        # Decoding is done once, while the first epoch is trained on; turning again and again.
        (
            "cache: memory",
            "homogeneous",
            2,
            EPOCHS * (100 * 0.01 + JUDGED / 3000) + 120 * 0.04 - 100 / 1000,
        ),
        ("cache: file", "homogeneous", 2, EPOCHS * (100 * 0.01 + JUDGED / 3000) + 120 * 0.04),
    ],
)
def test_first_run_is_limited_by_a_slow_input(simulated, data, policy, ranks, seconds):
    assert simulated(0.04, 0.01, data, ranks, policy) == pytest.approx(seconds, rel=0.02)


def test_first_run_with_a_fast_input_is_limited_by_training(simulated):
    assert simulated(1e-6, 1e-6, "cache: none") == pytest.approx(TRAINING_S, rel=0.02)
