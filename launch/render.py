"""Job scripts: a job, a batch system and a site in, a text out."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.base import InputError
from launch.sites import Site, places
from launch.systems import TEMPLATES, System

_WORD = re.compile(r"[A-Za-z0-9][\w.@:+-]*")
_PLAIN_PATH = re.compile(r"/[\w./+-]*")  # directives have no quoting that all systems agree on


@dataclass(frozen=True)
class Job:
    """What to run, and what to ask for.

    Args:
        name: of the job.
        spec: the spec, as the user named it.
        folder: where it is named from; all nodes see it.
        python: the interpreter; where there is an mpirun beside it, that one is meant.
        run: the folder of the run.
        outputs: the folder for what jobs print.
        nodes: how many.
        ranks: of a node; None for the site's number.
        trainers: among them; None for one on each GPU.
        walltime: seconds; a batch system counts whole minutes, and wants to know it.
        warning: seconds before the end of the walltime at which everything is saved.
        jobs, retries: at most so many jobs after one another, and so many after a failure of the
            machine.
        account, queue: where the site wants them.
        once: words behind the spec, until a launch has started with them.
        harvest: a file that says how the job is one of several that share the run; then no other
            follows it.
        words: behind the spec, in any case.
        image: in which ranks run, by Apptainer; None for the interpreter.
        broadcast: copy it to a disk of each node first.
        binds: further folders that ranks read, which the image has to be shown.
        requests: seconds that the jobs of a chain ask for, one after the other; none: each the
            walltime.
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
        InputError: something cannot be said in a script.
    """
    for option, word in (("--account", job.account), ("--queue", job.queue)):
        if word is not None and not _WORD.fullmatch(word):
            raise InputError(f"{option} is {word!r}; it should be one word")
    if system.directive and not _PLAIN_PATH.fullmatch(str(job.outputs)):
        raise InputError(
            f"{str(job.outputs)!r}: batch systems need a folder whose path has only letters, digits, '.', "
            "'_', '+' and '-'"
        )
    if job.broadcast and not system.broadcast:
        raise InputError(
            f"--broadcast: {system.name} has no command that copies a file to all nodes of a job; leave "
            "it out, and ranks read the image from where it is"
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
    return re.sub(r"\n{2,}", "\n", script)  # of parts that a job has nothing for


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
    """Where ranks find the image: on their node's own disk, or, where that cannot be, where it is."""
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
    if site.gpus:
        gpus = ["--rocm" if site.visible.startswith("ROCR") else "--nv"]
    else:
        gpus = []
    binds = [f"--bind={shlex.quote(str(folder))}" for folder in (job.folder, job.run, *job.binds)]
    return ["apptainer", "exec", *gpus, *binds, '"$image"', "python"]


def _command(
    job: Job, system: System, site: Site, ranks: int, counts: dict[str, int]
) -> list[list[str]]:
    """Return the words of the launch, a list for each line."""
    python = shlex.quote(str(job.python))  # modules of the site bring others into PATH
    keeper = [
        python,
        "-m",
        "fleet",
        "job",
        shlex.quote(str(job.run)),
        f"--system={shlex.quote(system.name)}",
    ]
    keeper += (
        [f"--jobs={job.jobs}", f"--retries={job.retries}"]
        if job.harvest is None
        else [f"--harvest={shlex.quote(str(job.harvest))}"]
    )
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
