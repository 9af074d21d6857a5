"""Any command line, spec or file causes a message and status 2, never a traceback.

Each command is called with valid arguments and files, of which parts are changed: an argument is
replaced or added; a file is truncated, overwritten, emptied, missing, a folder, or has absurd values.
"""

# ruff: noqa: E501 - tables of invalid input

import contextlib
import copy
import gzip
import io
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from fleet import run as fleet_run
from fleet.__main__ import COMMANDS, main, make_parser
from fleet.runtime import session
from fleet.runtime.interrupt import Interruption
from fleet.runtime.startup.request import StartupTimer
from tests.examples import examples
from tests.fakes import World
from tests.fleet.logs import LOG, as_lines, as_text

SPEC = {
    "name": "fuzz",
    "seed": 3,
    "data": {
        "source": "tests.sources:numbered",
        "path": "30",
        "transforms": [{"scale": {"mean": 0.5, "std": 0.5}}],
        "validation": 0.1,
        "shared_memory": "1MB",
        "max_unreadable": "1%",
        "options": {},
    },
    "models": [
        {
            "family": "softmax",
            "name": "one",
            "gpus": [1, 2],
            "count": 2,
            "space": {"train.optimizer.learning_rate": {"low": 0.01, "high": 0.1, "log": True}},
        },
        {"family": "softmax", "name": "two", "args": {}, "grid": {"train.batch.size": [4, 8]}},
    ],
    "train": {
        "batch": {"size": 8, "when_scaled": "fixed"},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
        "stopping": {"max_epochs": 3, "patience": 2, "monitor": "val_accuracy"},
    },
    "schedule": {"policy": "global", "pace_tolerance": "15%", "round_end_share": 0.8},
    "profile": {"batches": 4, "timed": 2},
    "resources": {"engine": "numpy", "preprocessors": "auto"},
    "checkpoint": {"every": "10min", "quota": "1GB"},
    "walltime": "2h",
    "retries": 1,
    "output": "run",
}
RATES = {
    "samples_per_epoch": 100,
    "gpus_per_node": 2,
    "models": [
        {"name": "a", "rates": [10.0, 19.0], "epochs": 3},
        {"name": "b", "rates": [20.0], "epochs": 2},
    ],
}
TRAINERS = {
    "curves": {"net": {"nodes": [0, 2], "samples_per_s": [0, 20]}},
    "jobs": [["net", 0, 5, 2, 1, 2, 1e4]],
}
JOBS = {"gpus": 2, "jobs": [{"arrival_min": 0, "length_min": 30, "scaling": [1, 1.5]}]}
SWF = "; MaxProcs: 8\n" + "".join(
    f"{k} {60 * k} 0 {60 * k} 4 -1 -1 4 1200 -1 1 1 1 1 -1 -1 -1 -1\n" for k in (1, 2, 3)
)

# Sweeps of which a spec says everything, so that `fleet import` has no remarks.
SWEEP = {
    "method": "grid",
    "parameters": {
        "width": {"values": [8, 16]},
        "depth": {"min": 1, "max": 3},
        "bias": {"value": 0},
    },
}
EXPERIMENT = {
    "name": "fuzz",
    "searcher": {"name": "asha", "max_trials": 4, "max_length": {"epochs": 8}, "divisor": 2},
    "hyperparameters": {
        "width": {"type": "int", "minval": 8, "maxval": 64},
        "decay": {"type": "double", "minval": 0.1, "maxval": 0.9},
        "block": {"kind": {"type": "categorical", "vals": ["a", "b"]}, "norm": "batch"},
    },
}

EVENTS = as_text(LOG)
RESULTS = (
    "name,status,reason,parameters,epochs,best_epoch,loss,accuracy,val_loss,val_accuracy,seconds,drawn\n"
    "a,finished,2 epochs,51,2,2,0.5,0.5,0.7,0.6,20.0,{}\n"
)

FILES = {
    "entry.yaml": "family: softmax\n",
    "spec.yaml": yaml.safe_dump(SPEC, sort_keys=False),
    "rates.json": json.dumps(RATES),
    "trainers.json": json.dumps(TRAINERS),
    "jobs.json": json.dumps(JOBS),
    "trace.swf": SWF,
    "times.txt": "1.5\n2\n30\n4\n5\n6\n",
    "idle.csv": "t_s,node,delta\n0,0,1\n0,1,1\n100,1,-1\n",
    "law.csv": "1,0.5\n2,0.5\n",
    "table.json": json.dumps(
        {"images_per_epoch": 100, "dnns": [{"id": 7, "r": [10.0], "epochs": 2}]}
    ),
    "running.csv": "id,nodes,loss,app_time,sys_time\na,4,900,9,\nb,4,200,,3\n",
    "sweep.yaml": yaml.safe_dump(SWEEP, sort_keys=False),
    "experiment.json": json.dumps(EXPERIMENT),
    "site.json": json.dumps({"aggregate_gbps": 1, "node_gbps": 1}),
}

# valid arguments of each command; the last word of "job" is the command that it starts
WORKING = {
    "check": "spec.yaml",
    "schema": "",
    "plan": "--rates rates.json --gpus 4",
    "simulate draw": "--networks 3",
    "simulate ensemble": "rates.json --gpus 4 --policy global",
    "simulate idle-nodes": "--events idle.csv --trainers trainers.json",
    "simulate autoscale": "--jobs jobs.json",
    "simulate batch-queue": "trace.swf",
    "simulate eviction": "--nodes 1 --deadline 5 --running 3 --machine 4",
    "evict": "--jobs running.csv --nodes 4 --deadline 5",
    "reserve": "--log times.txt",
    "report": "done",
    "export": "done --csv tables",
    "import": "sweep.yaml",
    "convert": "photos out.h5",
    "submit": "spec.yaml --dry-run --system slurm",
    "job": "spec.yaml --system local -- /bin/true",
    "predict": "done photos",
    "harvest": "spec.yaml --dry-run --system slurm",
    "add": "done entry.yaml",
    "clone": "done a --set train.batch.size=8",
    "new": "images photos",
    "stop": "done a",
    "pause": "done a",
    "skip": "done a",
    "resume": "done a",
    "release-nodes": "done --nodes 1 --within 2s",
    "watch": "done",
}
OTHERS = {
    "plan": ["spec.yaml --rates rates.json --gpus 4", "spec.yaml --gpus 4"],
    "simulate draw": ["--convert table.json"],
    "simulate autoscale": ["--jobs generate --gpus 4 --minutes 20"],
    "simulate batch-queue": ["--distribution uniform --low 1 --high 2 --jobs 4 --runs 1"],
    "reserve": ["--distribution uniform --low 1 --high 2", "--table law.csv"],
    "evict": ["--jobs running.csv --spectrum --deadline 5"],
    "submit": [
        "spec.yaml --dry-run --system pbs --walltime 1h",
        "spec.yaml --dry-run --system lsf --chain --walltime 1h",
    ],
    "import": ["experiment.json --to imported.yaml --force --map width=units"],
    "new": ["digits demo", "table idle.csv --target delta", "torch photos"],
    "convert": ["photos out.h5 --decoded 4"],
    "export": ["done --parquet", "done --mlflow runs --wandb runs --optuna studies.log"],
}

NASTY = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "0.5",
    "-0.0",
    "1e308",
    "1e-308",
    "nan",
    "inf",
    "-inf",
    "9" * 30,
    "1e999",
    "0x10",
    "1_000",
    "١٢",
    "½",
    "1e3",
    "3GB",
    "10min",
    "15%",
    "101%",
    "null",
    "true",
    "[]",
    "{}",
    "a",
    "global",
    "../../escaped",
    "/dev/null",
    "/proc/self/mem",
    "/",
    ".",
    "..",
    "nowhere/file.json",
    "photos",
    "spec.yaml",
    "rates.json",
    "empty",
    "binary",
    "idle.csv",
    "é",
    "名前",
    "\u202egnp.x",
    "\U0001f600",
    "a\nb",
    "a\tb",
    "x" * 900,
    "*",
    "$(touch escaped)",
    "; touch escaped",
    "%s%n",
    "'\"",
    "\x1b[31m",
    "1:2",
    ":",
    "a=b",
    "=",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**30,
    -(10**30),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {}}},
    [1, 2, 3],
    "../../escaped",
    "/etc/passwd",
    "x" * 4000,
    "\u202e",
    "\U0001f600",
    "名前",
    "1e400",
    "9" * 400,
    {"low": 1, "high": 0},
    [0] * 50,
    {"name": "x"},
    "tests.sources:broken",
    "os:system",
    "nan",
    "2GB",
    "-5min",
    "15%",
    ".",
    "..",
    "a/b",
    "CON",
    " ",
    "-",
]
CONTENTS = [
    b"",
    b"\0" * 100,
    b"\xff\xfe\xfd" * 9,
    b"{",
    b"[" * 5000,
    b'{"a":' * 5000,
    b"1" * 5000,
    b"\n" * 1000,
    b"null",
    b"[]",
    b"{}",
    b"3",
    b'"x"',
    b"\x1f\x8b\x08\x00broken",
    b"\x89HDF\r\n\x1a\n",
    b"&a [*a]",
    b"&a {b: *a}",
    b"a: &b [*b]",
    b"!!python/object/apply:os.system ['touch escaped']",
    b"? [a]\n: b",
    b"- \t- x",
    b"\xef\xbb\xbfa: 1",
    b"a: 1\na: 2",
    b"x: " + b"9" * 6000,
    b"nan\n",
    b"inf\n-1\n",
    b"1e400\n",
    b"\r\r\r",
    b"a,b\n" * 3,
    b"%YAML 9.9\n---\na: 1",
    "é: ü\n".encode("latin-1"),
    "\ud800".encode("utf-16", "surrogatepass"),
    b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(97, 106)
    ),
]

quick = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,  # shrinking takes minutes
)


class _TooLongError(BaseException):
    """Not an Exception, so that it is not caught by accident."""


@contextlib.contextmanager
def within(seconds=10, gigabytes=4):
    """Limit the time and memory of a call."""

    def stop(*_):
        raise _TooLongError(f"more than {seconds} s of computing")

    before = signal.signal(signal.SIGVTALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + gigabytes * 10**9, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module", autouse=True)
def sandbox(tmp_path_factory):
    """Work in a folder two levels below one that must not change, without a batch system or editor."""
    top = tmp_path_factory.mktemp("top")
    with pytest.MonkeyPatch.context() as patch:
        (top / "a/work").mkdir(parents=True)
        patch.chdir(top / "a/work")
        patch.setenv("PATH", str(top / "no-programs"))
        patch.setattr(session, "Session", _NoSession)
        yield top


class _NoSession:
    """Trains nothing, in case that a spec is valid."""

    def __init__(self, *_):
        pass

    def run(self):
        return 0


def fill():
    """Restore all files."""
    for path in [*Path().iterdir(), *Path("../..").glob("escaped*")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(256)) * 4)
    Path("done").mkdir()
    Path("done/results.csv").write_text(RESULTS)
    Path("done/events.jsonl").write_text(EVENTS)
    for label in "ab":
        Path(f"photos/{label}").mkdir(parents=True)
        Image.new("RGB", (5, 6)).save(f"photos/{label}/1.png")


def call(function, *arguments):
    """Return the status, standard output and standard error of a call that may exit."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), within():
        try:
            status = function(*arguments)
        except SystemExit as end:
            status = end.code
    return int(status), out.getvalue(), err.getvalue()


def train(path):
    """Run ``fleet.run`` up to training."""
    request = fleet_run.parse_arguments([path])
    with fleet_run._lease(World(), request) as lease:
        return fleet_run._run(World(), request, None, Interruption(None), lease, StartupTimer())


def check_message(status, out, err, max_lines=30):
    # a job prints how its command ended
    assert status in (0, 2) or err.startswith("fleet job: "), (status, err)
    assert "Traceback" not in out + err
    if status == 2:
        assert err.strip()
        assert len(err.splitlines()) <= max_lines, err
        assert all(len(line) <= 3000 for line in err.splitlines())


def check_no_escape(top):
    assert (
        sorted(
            path.name
            for path in top.rglob("*")
            if path.name == "escaped" or path.name.startswith("escaped")
        )
        == []
    )
    assert os.listdir(top) == ["a"]
    assert os.listdir(top / "a") == ["work"]


# ---- command lines -----------------------------------------------------------------------------


def options(name):
    return [
        (action.option_strings[-1], action.nargs == 0)
        for action in make_parser(name)._actions
        if action.option_strings
        if action.option_strings[-1] not in ("--help", "--slurm")
    ]


@st.composite
def lines(draw, name):
    """Draw a command line: a valid one with up to three words replaced, removed or added."""
    words = draw(st.sampled_from([WORKING[name], *OTHERS.get(name, [])])).split()
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["replace", "add", "drop"]))
        fixed = words.index("--") if "--" in words else len(words)
        if kind == "add" and options(name):
            option, is_flag = draw(st.sampled_from(options(name)))
            words[:0] = [option] if is_flag else [option, draw(st.sampled_from(NASTY))]
        elif kind != "add" and fixed:
            path = draw(st.integers(0, fixed - 1))
            words[path : path + 1] = [draw(st.sampled_from(NASTY))] if kind == "replace" else []
    if name == "submit" and "--dry-run" not in words:
        words.append("--dry-run")
    return words


@pytest.mark.parametrize("name", [name for name in COMMANDS if name in WORKING])
def test_command_lines_cause_no_traceback(sandbox, name):
    @quick
    @given(lines(name))
    def check(words):
        fill()
        check_message(*call(main, [*name.split(), *words]))

    check()


DIGITS = "9" * 400
HUGE_ROW = "; MaxProcs: 8\n" + "".join(
    f"{k} 0 0 1e308 4 -1 -1 4 1e308 -1 1 1 1 1 -1 -1 -1 -1\n" for k in range(1, 6)
)


def trainers(nodes, rates, job):
    return json.dumps(
        {
            "curves": {"net": {"nodes": nodes, "samples_per_s": rates}},
            "jobs": [["net", 0, 5, 2, *job]],
        }
    )


# (command line, one of its files, other content of that file): numbers that are not floats, or would take too long.
HUGE = [
    ("simulate batch-queue --distribution uniform --low 1 --high 2 --seed -1", None, None),
    *[
        (f"{name} --distribution uniform --low 1 --high {options_text}", None, None)
        for name in ("reserve", "simulate batch-queue")
        for options_text in ("1e308", "2 --points 100000000000")
    ],
    *[
        (
            f"simulate batch-queue --distribution uniform --low 1 --high 2 --{options_text}",
            None,
            None,
        )
        for options_text in ("jobs 100000000000", "runs 100000000000", f"processors {DIGITS}")
    ],
    (
        "simulate batch-queue torn.swf.gz",
        "torn.swf.gz",
        gzip.compress(SWF.encode())[:10] + b"\xff" * 40,
    ),
    ("simulate batch-queue trace.swf", "trace.swf", HUGE_ROW),
    ("simulate batch-queue trace.swf", "trace.swf", SWF.replace(": 8", ": " + "9" * 5000)),
    ("reserve --log times.txt", "times.txt", "1e308\n" * 6),
    ("reserve --table law.csv", "law.csv", "1e308,0.5\n1.1e308,0.5\n"),
    (
        "simulate ensemble rates.json --gpus 4 --policy global",
        "rates.json",
        json.dumps(RATES).replace("20.0", DIGITS),
    ),
    ("simulate ensemble rates.json --gpus 4 --policy global --stream-rate 1e-305", None, None),
    ("simulate ensemble rates.json --gpus 100000000000 --policy global", None, None),
    ("plan --rates rates.json --gpus 100000000000", None, None),
    *[
        ("simulate idle-nodes --events idle.csv --trainers trainers.json", "trainers.json", text)
        for text in (
            trainers([0, int(DIGITS)], [0, 20], [1, 2, 1e4]),
            trainers([0, 2], [0, int(DIGITS)], [1, 2, 1e4]),
            trainers([0, 2], [0, 20], [1, 2, int(DIGITS)]),
            trainers([0, 10**12], [0, 20], [1, 10**12, 1e4]),
        )
    ],
    (
        "simulate idle-nodes --events idle.csv --trainers trainers.json",
        "idle.csv",
        "t_s,node,delta\n0,0,1\n1e308,0,-1\n",
    ),
    *[
        (f"evict --jobs running.csv --nodes 4 --{option} {DIGITS} --deadline 5", None, None)
        for option in ("step", "resolution")
    ],
    (f"evict --jobs running.csv --nodes 4 --deadline {DIGITS}", None, None),
    *[
        (
            "evict --jobs big.json --spectrum --deadline 5",
            "big.json",
            json.dumps([{"id": "a", "nodes": nodes, "loss": loss}]),
        )
        for nodes, loss in ((10**400, 3), (10**9, 3), (1, 1e308), (1, 10**400))
    ],
    *[
        (
            "evict --jobs running.csv --nodes 4 --deadline 5 --aggregate-bandwidth 1 --node-bandwidth 1",
            "running.csv",
            f"id,nodes,memory_gb,critical_gb,since_checkpoint_min,interval_min\na,4,1,1,{since},5\n",
        )
        for since in ("1e308", DIGITS)
    ],
    *[
        (f"simulate autoscale --jobs jobs.json --{option} 1e308", None, None)
        for option in ("rescale-cost-min", "hold-min", "interval")
    ],
    *[
        (f"simulate eviction --nodes 1 --deadline 5 --{option}", None, None)
        for option in ("length 1e308", "draws 100000000000")
    ],
]


@pytest.mark.parametrize(("words", "file", "content"), HUGE, ids=range(len(HUGE)))
def test_huge_numbers_are_refused(words, file, content):
    fill()
    if file:
        Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = call(main, words.split())
    check_message(status, out, err)
    assert status == 2


def test_evict_sums_losses_of_very_different_sizes():
    fill()
    Path("running.csv").write_text("id,nodes,loss,app_time,sys_time\na,4,1e-300,1,\nb,4,1e15,,3\n")
    status, out, _ = call(main, "evict --jobs running.csv --spectrum --deadline 0 --json".split())
    assert (status, json.loads(out)["spectrum"][-1]["losses"]) == (0, [1e15])


@pytest.mark.parametrize("path", ["", ".", "/", "photos"])
def test_report_refuses_a_folder_as_page(path):
    fill()
    status, out, err = call(main, ["report", "done", "--html", path])
    check_message(status, out, err)
    assert (status, "is a folder; name a file" in err) == (2, True)


def test_fuzzing_covers_all_commands_without_ranks():
    assert set(WORKING) == set(COMMANDS) - {"dry-run", "doctor", "run"}


@pytest.mark.parametrize("name", sorted(WORKING))
def test_fuzzing_starts_from_valid_command_lines(name):
    for words in (WORKING[name], *OTHERS.get(name, [])):
        fill()
        status, _, err = call(main, [*name.split(), *words.split()])
        # Some inputs are missing: rates of networks, a job's launch, exports of a run.
        assert (
            (status, err) == (0, "")
            or (name, status) == ("job", 1)
            or any(
                words in err
                for words in (
                    "has no rates of",
                    "are known yet",
                    "it is no run",
                    "is not the folder of a run",
                )
            )
        ), (words, err)


@pytest.mark.parametrize(
    "name", sorted(set(WORKING) - {"job", "schema", "stop", "pause", "resume"})
)
def test_json_output_is_one_value(name):
    for words in (WORKING[name], *OTHERS.get(name, [])):
        fill()
        status, out, err = call(main, [*name.split(), *words.split(), "--json"])
        assert (isinstance(json.loads(out), dict | list), err) == (True, "") if not status else err


# ---- files -------------------------------------------------------------------------------------


@st.composite
def damaged(draw, content):
    """Draw a damaged file, as bytes; None for a missing one, "folder" for a folder."""
    kind = draw(st.sampled_from(["other", "none", "folder", "cut", "flip", "insert", "repeat"]))
    if kind == "other":
        return draw(st.sampled_from(CONTENTS))
    if kind in ("none", "folder"):
        return None if kind == "none" else "folder"
    path = draw(st.integers(0, len(content) - 1))
    if kind == "cut":
        return content[:path]
    if kind == "flip":
        return content[:path] + draw(st.binary(min_size=1, max_size=3)) + content[path + 1 :]
    if kind == "insert":
        return (
            content[:path]
            + draw(st.sampled_from([b"\0", b"\xff", b"*a", b"\t", b"-", b"9" * 40, b"e", b"nan"]))
            + content[path:]
        )
    return content[:path] * 3


def put(name, content):
    Path(name).unlink()
    if content == "folder":
        Path(name).mkdir()
    elif content is not None:
        Path(name).write_bytes(content)


READERS = [
    (name, words)
    for name in WORKING
    for words in (WORKING[name], *OTHERS.get(name, []))
    if any(word in FILES for word in words.split())
]


@pytest.mark.parametrize(("name", "words"), READERS)
def test_damaged_files_cause_no_traceback(sandbox, name, words):
    file = next(word for word in words.split() if word in FILES)

    @quick
    @given(damaged(FILES[file].encode()))
    def check(content):
        fill()
        put(file, content)
        check_message(*call(main, [*name.split(), *words.split()]))

    check()


@st.composite
def changed(draw, content):
    """Draw the content with up to three values replaced, removed, renamed or put into lists."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        index = content
        while isinstance(index, dict | list) and index:
            key = draw(
                st.sampled_from(sorted(index) if isinstance(index, dict) else range(len(index)))
            )
            inner = index[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 2)) == 0:
                kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap"]))
                if kind == "remove":
                    del index[key]
                elif kind == "rename" and isinstance(index, dict):
                    index[draw(st.sampled_from(["", "x", "../x", "é", "a b", key.upper()]))] = (
                        index.pop(key)
                    )
                elif kind == "wrap":
                    index[key] = [inner] * 2
                else:
                    index[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
                break
            index = inner
    return content


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name, words in READERS if ".json" in words and "spec.yaml" not in words],
)
def test_invalid_json_causes_no_traceback(sandbox, name, words):
    file = next(word for word in words.split() if word.endswith(".json"))

    @quick
    @given(changed(json.loads(FILES[file])))
    def check(content):
        fill()
        Path(file).write_text(json.dumps(content))
        check_message(*call(main, [*name.split(), *words.split()]))

    check()


@quick
@given(
    st.sampled_from(["events.jsonl", "results.csv"]).flatmap(
        lambda file: st.tuples(
            st.just(file), damaged((EVENTS if file == "events.jsonl" else RESULTS).encode())
        )
    )
)
def test_damaged_runs_cause_no_traceback(sandbox, change):
    fill()
    put(f"done/{change[0]}", change[1])
    check_message(*call(main, ["report", "done"]))


@quick
@given(changed(as_lines(LOG)))
def test_invalid_logs_cause_no_traceback(sandbox, events):
    fill()
    Path("done/events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    check_message(*call(main, ["report", "done"]))


# ---- specs -------------------------------------------------------------------------------------


def check_readers_of_specs(top):
    output = [
        call(main, ["check", "spec.yaml"]),
        call(main, ["plan", "spec.yaml", "--rates", "rates.json", "--gpus", "2"]),
        call(main, ["submit", "spec.yaml", "--dry-run", "--system", "slurm"]),
        call(train, "spec.yaml"),
    ]
    for entry in output:
        check_message(*entry)
    check_no_escape(top)


@settings(quick, max_examples=examples(60))
@given(changed(SPEC))
def test_specs_cause_no_traceback_or_files_elsewhere(sandbox, content):
    fill()
    Path("spec.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    content["output"] = "run" if not isinstance(content.get("output"), str) else content["output"]
    check_readers_of_specs(sandbox)


@quick
@given(damaged(FILES["spec.yaml"].encode()))
def test_damaged_specs_cause_no_traceback(sandbox, content):
    fill()
    put("spec.yaml", content)
    check_readers_of_specs(sandbox)
