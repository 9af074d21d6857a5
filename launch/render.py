"""Render the script of a job for a batch system and a site."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.errors import InputError
from launch.sites import Site, places
from launch.systems import TEMPLATES, System

_WORD = re.compile(r"[A-Za-z0-9][\w.@:+-]*")
# Options that show GPUs inside of an image, by the variable that lists them. Those of Intel need
# none: their files are in /dev, which an image shows.
_IMAGE_OPTIONS = {"ROCR_VISIBLE_DEVICES": ["--rocm"], "ZE_AFFINITY_MASK": []}
_PLAIN_PATH = re.compile(r"/[\w./+-]*")  # batch systems quote differently in directives


@dataclass(frozen=True)
class Job:
    """A job: what it runs and what it requests.

    Args:
        name: the name of the job.
        spec: the path of the spec, as the user gave it.
        folder: the folder to which that path is relative; all nodes see it.
        python: the interpreter; an mpirun in the same folder starts the ranks.
        run: the folder of the run.
        outputs: the folder for the output of jobs.
        nodes: number of nodes.
        ranks: ranks per node; None for the site's number.
        trainers: trainers among them; None for one per GPU.
        walltime: in seconds; required by batch systems, which count whole minutes.
        warning: seconds before the end of the walltime at which the launch saves and stops.
        jobs: maximum number of jobs in the chain.
        retries: maximum number of jobs after failures of the machine.
        account: the account to charge, if the site requires one.
        queue: the queue, if the site requires one.
        once: options after the spec, until a launch has started with them.
        harvest: a file that describes the harvest the job belongs to; no other job follows it.
        words: options after the spec in every launch.
        image: the Apptainer image in which ranks run; None to use the interpreter.
        broadcast: whether to copy the image to a local disk of each node first.
        binds: further folders that the image must show to ranks.
        requests: walltimes in seconds of the jobs of a chain, in order; empty to request
            ``walltime`` each time.
    """

    name: str
    spec: str
    folder: Path
    python: Path
    run: Path
    outputs: Path
    nodes: int
    walltime: float | None
    warning: float
    ranks: int | None = None
    jobs: int = 1
    retries: int = 0
    account: str | None = None
    queue: str | None = None
    once: tuple[str, ...] = ()
    harvest: Path | None = None
    words: tuple[str, ...] = ()
    requests: tuple[float, ...] = ()
    trainers: int | None = None
    image: Path | None = None
    broadcast: bool = False
    binds: tuple[Path, ...] = ()


def render(job: Job, system: System, site: Site) -> str:
    """Render the script of a job.

    Raises:
        InputError: an option cannot be expressed in a script.
    """
    for option, word in (("--account", job.account), ("--queue", job.queue)):
        if word is not None and not _WORD.fullmatch(word):
            raise InputError(f"{option} is {word!r}; it should be one word")
    if system.directive and not _PLAIN_PATH.fullmatch(str(job.outputs)):
        raise InputError(
            f"{str(job.outputs)!r}: batch systems need a folder whose path has only letters, "
            "digits, '.', '_', '+' and '-'"
        )
    if job.broadcast and not system.broadcast:
        raise InputError(
            f"--broadcast: {system.name} has no command that copies a file to all nodes of a job; "
            "without the option, ranks read the image from its present path"
        )
    ranks = job.ranks or site.ranks
    counts = {
        "nodes": job.nodes,
        "ranks": job.nodes * ranks,
        "ranks_per_node": ranks,
        "gpus": site.gpus,
    }
    minutes = max(1, math.ceil((job.walltime or 0) / 60))
    values = {
        "name": job.name,
        "outputs": str(job.outputs),
        "folder": shlex.quote(str(job.folder)),
        "programs": shlex.quote(str(job.python.parent)),
        "hh_mm": f"{minutes // 60:02d}:{minutes % 60:02d}",
        "warning": str(math.ceil(job.warning)),
        "warning_minutes": str(max(1, math.ceil(job.warning / 60))),
        "directives": "\n".join(
            system.directive + line for line in _directives(job, system, site, counts)
        ),
        "setup": "\n".join([*_setup(site), *_image(job, system)]),
        "command": " \\\n    ".join(map(" ".join, _command(job, system, site, ranks, counts))),
    }
    body = (TEMPLATES / "body.sh").read_text(encoding="utf-8")
    script = _fill(system.script, {**values, "body": _fill(body, values)})
    return re.sub(r"\n{2,}", "\n", script)  # left by empty parts


def _fill(template: str, values: dict[str, str]) -> str:
    return re.sub(r"<<(\w+)>>", lambda match: values[match[1]], template)


def _directives(job: Job, system: System, site: Site, counts: dict[str, int]) -> Sequence[str]:
    if job.account is not None:
        options = [system.account.format(job.account)]
    else:
        options = []
    if system.rerun is not None:
        options.append(system.rerun[0 if job.jobs > 1 or job.harvest is not None else 1])
    queue = job.queue or site.queue
    if queue:
        options.append((site.queue_option or system.queue).format(queue))
    resources = site.resources or (system.gpu_resources if site.gpus else system.resources)
    return [*options, *(line.format(**counts) for line in resources), *site.directives]


def _setup(site: Site) -> Sequence[str]:
    if not site.visible:
        return site.setup
    gpus = ",".join(map(str, range(site.gpus)))
    return [
        *site.setup,
        f'export {site.visible}="${{{site.visible}:-{gpus}}}"   # a value that is set is kept',
    ]


def _image(job: Job, system: System) -> list[str]:
    """Return shell lines that copy the image to the node's disk, or else use it in place."""
    if job.image is None:
        return []
    lines = [f"image={shlex.quote(str(job.image))}"]
    if job.broadcast:
        target = f'"${{TMPDIR:-/tmp}}/fleet-${system.job_variable}.sif"'
        copied = " ".join(system.broadcast).format(source='"$image"', target=target)
        lines.append(f"{copied} && image={target}")
    return lines


def _rank(job: Job, site: Site) -> list[str]:
    """Return the words that start the interpreter of a rank."""
    if job.image is None:
        return [shlex.quote(str(job.python))]
    gpus = _IMAGE_OPTIONS.get(site.visible, ["--nv"]) if site.gpus else []
    binds = [f"--bind={shlex.quote(str(folder))}" for folder in (job.folder, job.run, *job.binds)]
    return ["apptainer", "exec", *gpus, *binds, '"$image"', "python"]


def _command(
    job: Job, system: System, site: Site, ranks: int, counts: dict[str, int]
) -> list[list[str]]:
    """Return the command of the launch, a list of words per line."""
    python = shlex.quote(str(job.python))  # the site's modules may put another one into PATH
    keeper = [
        python,
        "-m",
        "fleet",
        "job",
        shlex.quote(str(job.run)),
        f"--system={shlex.quote(system.name)}",
    ]
    if job.harvest is None:
        keeper += [f"--jobs={job.jobs}", f"--retries={job.retries}"]
    else:
        keeper.append(f"--harvest={shlex.quote(str(job.harvest))}")
    if not system.warns and job.walltime is not None:
        keeper.append(f"--warn-after={math.floor(max(1.0, job.walltime - job.warning))}")
    keeper += [f"--request={math.ceil(request)}" for request in job.requests]
    cpus = places(site, ranks, "the site", job.trainers)
    keeper += [f"--once={shlex.quote(word)}" for word in job.once]
    placed = [[python, "-m", "launch.place", ":".join(cpus)]] if cpus else []
    return [
        [*keeper, "--"],
        [site.launcher.format(**counts)],
        *placed,
        [*_rank(job, site), "-m", "fleet.run", shlex.quote(job.spec), *map(shlex.quote, job.words)],
    ]
