"""Hand an ensemble to a batch system, as one job or as a chain of jobs that ends when all networks are done.

    fleet submit photos.yaml --system slurm --nodes 2 --gpus-per-node 4 --walltime 2h --chain
    fleet submit photos.yaml --site perlmutter --account m1234 --nodes 4 --walltime 6h --chain
    fleet submit photos.yaml --site my_site.yaml --nodes 1 --walltime 30min --dry-run
    fleet submit --end runs/photos

With --walltime auto it asks for what is likely to cost least, by what past runs took, and says why.

The job saves everything shortly before its walltime ends. With --chain it is then put into the
queue again, or followed by another job, until all networks are done. The folder of the run has the
script, what the jobs print, and jobs/stops.jsonl with every stop and its reason. --end RUN ends the
chain of a run: its next job is taken back, the one that runs saves and ends, and no other follows.
`--system local` runs on this machine, now. --fresh-network, --accept-changes and --remeasure count
for the first launch of the chain that gets so far as to start.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from fleet.arguments import AUTO, add_changes, duration_or_auto, integer
from fleet.commands import job_options as opts
from fleet.commands.known_rates import recorded_sharing
from fleet.commands.options import add_spec
from fleet.commands.output import add_json, print_json, show
from fleet.commands.walltimes import WalltimeRequests, automatic
from fleet.errors import ExitStatus, UserError
from fleet.jobs.chain import add_note, end_chain
from fleet.jobs.job_events import JobSubmitted
from fleet.monitor.view import describe_sharing
from fleet.runtime.compatibility import check_fresh
from fleet.runtime.folder import check_folder, writing_into
from fleet.runtime.known_rates import check_remeasuring
from fleet.spec import Spec, load
from fleet.storage.files import atomic_write
from fleet.storage.paths import RunPaths
from launch.render import Job, render
from launch.sites import Site
from launch.systems import System, submit
from scheduler.ensemble.sharing import useful_networks_per_gpu

RETRIES = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser, optional=True)
    parser.add_argument(
        "--nodes", type=opts.size, default=1, metavar="N", help="number of nodes to ask for (1)"
    )
    parser.add_argument(
        "--walltime",
        type=duration_or_auto,
        metavar="2h",
        help="walltime to ask for (that of the spec); auto: what past runs, or simulated ones, say",
    )
    parser.add_argument(
        "--chain", action="store_true", help="continue in further jobs until all networks are done"
    )
    parser.add_argument(
        "--max-jobs",
        type=opts.size,
        metavar="N",
        help=f"with --chain: number of jobs at most ({opts.MOST_JOBS})",
    )
    parser.add_argument(
        "--retries",
        type=integer(0, 100_000),
        metavar="N",
        help=f"with --chain: number of failures of the machine after which to go on ({RETRIES})",
    )
    opts.add(parser)
    parser.add_argument(
        "--image",
        type=Path,
        metavar="FILE.sif",
        help="run the ranks in this image, by apptainer: they import from one file, not from thousands",
    )
    parser.add_argument(
        "--broadcast",
        action="store_true",
        help="with --image: copy it to each node first, where the batch system can (slurm: sbcast)",
    )
    add_changes(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--end",
        type=Path,
        metavar="RUN",
        help="end the chain of a run, by its folder or its spec: its next job is taken back, and the "
        "one that runs saves and ends",
    )
    instead.add_argument("--dry-run", action="store_true", help="only print the script")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the script and hand it in; or end a chain."""
    if args.end is not None:
        return _end(args)
    if args.spec is None:
        raise UserError("the spec is missing: fleet submit SPEC, or --end RUN")
    spec = load(args.spec)
    site = opts.with_gpus(args, spec, opts.find_site(args.site))
    system = opts.system_of(args.system, site, args.site)
    paths = RunPaths(spec.output.absolute())
    requests = _automatic(args, spec, system, site)
    script = render(_job(args, spec, system, site, requests), system, site)
    numbers: dict[str, object] = {} if requests is None else {"walltime": requests.numbers()}
    if not site.gpus and spec.engine.uses_gpus and system.has_queue:
        print(
            "fleet submit: the job asks for no GPUs; --gpus-per-node, resources.gpus_per_node or --site would",
            file=sys.stderr,
        )
    pay = _slots_that_pay(args, spec, site)
    if pay:
        print(f"fleet submit: {pay}", file=sys.stderr)
    if args.dry_run:
        show(args, lambda: {"script": script, **numbers}, lambda: print(script, end=""))
        return ExitStatus.OK
    return _hand_in(args, script, paths, system, numbers)


def _end(args: argparse.Namespace) -> int:
    """End a chain, and say what was done."""
    if args.spec is not None:
        raise UserError(f"--end {args.end} goes without a spec; {args.spec} is one")
    if args.end.suffix in (".yaml", ".yml"):
        root = load(str(args.end)).output
    else:
        root = args.end
    cancelled, signaled = end_chain(RunPaths(root.absolute()))
    if args.json:
        print_json({"cancelled": cancelled, "told": signaled})
        return ExitStatus.OK
    if cancelled:
        print(f"{', '.join(cancelled)} cancelled")
    if signaled:
        print(f"{', '.join(signaled)} signaled to save and end (SIGUSR2)")
    print(
        f"no further job follows; submit the same spec again to resume from the checkpoints in {root}"
    )
    return ExitStatus.OK


def _automatic(
    args: argparse.Namespace, spec: Spec, system: System, site: Site
) -> WalltimeRequests | None:
    """Compute and print the requests of ``--walltime auto``; None for other walltimes."""
    if args.walltime != AUTO:
        return None
    requests = automatic(args, spec, system, site)
    for line in requests.lines(args.nodes, args.chain):
        print(f"fleet submit: {line}", file=sys.stderr)
    return requests


def _hand_in(
    args: argparse.Namespace,
    script: str,
    paths: RunPaths,
    system: System,
    numbers: dict[str, object],
) -> int:
    """Write the script, and submit it; run it where there is no batch system."""
    if args.json and not system.has_queue:
        raise UserError(
            f"--json: with --system {system.name} the run itself prints; --dry-run --json gives the script"
        )
    check_folder(paths)
    with writing_into(paths), atomic_write(paths.job_script) as file:
        file.write(script)
    if not system.has_queue:
        # The job takes Ctrl-C, saves, and ends.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        return subprocess.run(["bash", str(paths.job_script)], check=False).returncode
    id_ = submit(system, paths.job_script)
    add_note(paths, JobSubmitted(id_))
    show(
        args,
        lambda: {
            "job": id_,
            "system": system.name,
            "script": str(paths.job_script),
            "stops": str(paths.stops),
            **numbers,
        },
        lambda: print(id_),
    )
    return ExitStatus.OK


def _job(
    args: argparse.Namespace,
    spec: Spec,
    system: System,
    site: Site,
    automatic_requests: WalltimeRequests | None,
) -> Job:
    if not system.has_queue and args.nodes != 1:
        raise UserError(
            f"--nodes is {args.nodes}; with --system {system.name} there is only this machine"
        )
    once = _once(args, spec)
    image = _image(args)
    requests = () if automatic_requests is None else automatic_requests.chain.requests
    if requests:
        walltime: float | None = requests[0]
    else:
        walltime = args.walltime or spec.document.walltime
    jobs, retries = _limits(args, system)
    return replace(
        opts.job_of(args, args.spec, spec, system, site, walltime),
        jobs=jobs,
        retries=retries,
        once=once,
        requests=requests if args.chain else (),
        image=image,
        broadcast=args.broadcast,
        binds=() if image is None else _folders_to_bind(args.spec, spec),
    )


def _image(args: argparse.Namespace) -> Path | None:
    """Return the absolute path of the image in which ranks run."""
    if args.image is None:
        if args.broadcast:
            raise UserError(
                "--broadcast copies the image of --image to the nodes, and there is none: add --image "
                "FILE.sif"
            )
        return None
    if not args.image.is_file():
        raise UserError(
            f"--image {args.image}: there is no such file; `apptainer build {args.image} "
            "launch/containers/fleet.def` makes one"
        )
    image: Path = args.image.absolute()
    return image


def _folders_to_bind(path: str, spec: Spec) -> tuple[Path, ...]:
    """Return the folders of spec and data outside of the working folder and the run's folder."""
    data = spec.document.data
    named = [
        str(Path(path).parent),
        *(folder for folder in (data.path, data.validation, data.test) if isinstance(folder, str)),
    ]
    paths = map(
        Path, map(os.path.abspath, named)
    )  # without "..", which would seem to lie in the working folder
    folders = [
        next(folder for folder in (path_, *path_.parents) if folder.is_dir()) for path_ in paths
    ]
    bound = (Path.cwd(), spec.output.absolute())
    return tuple(
        dict.fromkeys(
            folder
            for folder in folders
            if folder.parent != folder and not any(map(folder.is_relative_to, bound))
        )
    )


def _once(args: argparse.Namespace, spec: Spec) -> tuple[str, ...]:
    """Return the options of ``python -m fleet.run`` for the first launch only."""
    check_fresh(spec, args.fresh_network)
    if args.remeasure:
        check_remeasuring(spec)
    return (
        *(f"--fresh-network={name}" for name in args.fresh_network),
        *(["--accept-changes"] if args.accept_changes else []),
        *(["--remeasure"] if args.remeasure else []),
    )


def _limits(args: argparse.Namespace, system: System) -> tuple[int, int]:
    """Return how many jobs there may be, and after how many failures of the machine another one follows."""
    if args.chain and system.has_queue and not (system.after or system.requeue):
        raise UserError(
            f"--chain: {system.name} has neither after nor requeue, so no job can follow another"
        )
    if args.chain:
        return args.max_jobs or opts.MOST_JOBS, RETRIES if args.retries is None else args.retries
    if (args.max_jobs, args.retries) != (None, None):
        raise UserError("--max-jobs and --retries go with --chain")
    return 1, 0


def _slots_that_pay(args: argparse.Namespace, spec: Spec, site: Site) -> str:
    """Return how many networks should share a GPU where the job lets fewer; nothing where that is not so, or not known."""
    gpus = args.nodes * site.gpus
    networks = spec.max_networks
    if not spec.engine.uses_gpus or not 0 < gpus < networks:
        return ""
    ranks = opts.ranks_of(args, spec, site) or site.ranks
    slots = opts.roles_of_job(args, spec, site).slots
    speedups = recorded_sharing(spec)
    requested = spec.resources.networks_per_gpu
    pays = useful_networks_per_gpu(speedups)
    # What is known may all pay; then one more may, too.
    count = min(pays + (pays == len(speedups) == slots), math.ceil(networks / gpus))
    if len(speedups) < 2 or count <= slots:
        return ""
    more = "" if count <= pays else "; more may pay"
    raised = "" if requested == "auto" else f"resources.networks_per_gpu: {count} with "
    return (
        f"{describe_sharing(speedups)}{more}. This job lets {slots} share one; {raised}--ranks-per-node "
        f"{ranks + (count - slots) * site.gpus} would let {count}"
    )
