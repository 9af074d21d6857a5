"""Submit a run to a batch system, as one job or as a chain of jobs until all networks are done.

    fleet submit photos.yaml --system slurm --nodes 2 --gpus-per-node 4 --walltime 2h --chain
    fleet submit photos.yaml --site perlmutter --account m1234 --nodes 4 --walltime 6h --chain
    fleet submit photos.yaml --site my_site.yaml --nodes 1 --walltime 30min --dry-run
    fleet submit --end runs/photos

With --walltime auto it requests the walltime with the lowest expected cost, based on past runs, and
explains why.

The job saves everything shortly before its walltime ends. With --chain it is then requeued, or
followed by another job, until all networks are done. The folder of the run contains the script, the
output of the jobs, and jobs/stops.jsonl with every stop and its reason. --end RUN ends the chain of
a run: its next job is cancelled, the running job saves and ends, and no other job follows.
`--system local` runs on this machine immediately. --fresh-network, --accept-changes and --remeasure
apply to the first launch of the chain that starts successfully.
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
from fleet.commands.known_rates import recorded_sharing
from fleet.commands.options import add_spec
from fleet.commands.output import print_json, show
from fleet.companions.batch_jobs import options as opts
from fleet.companions.batch_jobs.job_events import JobSubmitted
from fleet.companions.chains.chain import add_note, end_chain
from fleet.companions.walltimes.requests import WalltimeRequests, automatic
from fleet.errors import ExitStatus, UserError
from fleet.monitor.view import describe_sharing
from fleet.runtime.known_rates import check_remeasuring
from fleet.runtime.startup.compatibility import check_fresh
from fleet.runtime.startup.folder import check_folder, writing_into
from fleet.spec import Spec, load
from fleet.storage.files import atomic_write
from fleet.storage.paths import RunPaths
from launch.render import Job, render
from launch.systems import System, submit
from scheduler.ensemble.sharing import useful_networks_per_gpu

RETRIES = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_spec(parser, optional=True)
    parser.add_argument(
        "--nodes", type=opts.size, default=1, metavar="N", help="number of nodes to request (1)"
    )
    parser.add_argument(
        "--walltime",
        type=duration_or_auto,
        metavar="2h",
        help="walltime to request (the spec's); auto: computed from past or simulated runs",
    )
    parser.add_argument(
        "--chain", action="store_true", help="continue in further jobs until all networks are done"
    )
    parser.add_argument(
        "--max-jobs",
        type=opts.size,
        metavar="N",
        help=f"with --chain: maximum number of jobs ({opts.MAX_JOBS})",
    )
    parser.add_argument(
        "--retries",
        type=integer(0, 100_000),
        metavar="N",
        help=f"with --chain: number of machine failures after which to continue ({RETRIES})",
    )
    opts.add(parser)
    parser.add_argument(
        "--image",
        type=Path,
        metavar="FILE.sif",
        help="run the ranks in this container image with apptainer, which makes imports faster",
    )
    parser.add_argument(
        "--broadcast",
        action="store_true",
        help="with --image: copy it to each node first, if the batch system can (slurm: sbcast)",
    )
    add_changes(parser)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--end",
        type=Path,
        metavar="RUN",
        help="end the chain of a run, given its folder or its spec: cancel its next job, and let "
        "the running job save and end",
    )
    modes.add_argument("--dry-run", action="store_true", help="only print the script")


def run(args: argparse.Namespace) -> int:
    """Write the script and submit it, or end a chain."""
    if args.end is not None:
        return _end(args)
    if args.spec is None:
        raise UserError("the spec is missing: fleet submit SPEC, or --end RUN")
    spec = load(args.spec)
    site = opts.with_gpus(args, spec, opts.find_site(args.site))
    system = opts.system_of(args, site)
    request = opts.JobRequest(args, args.spec, spec, system, site, args.nodes)
    requests = _automatic(request)
    script = render(_job(request, requests), system, site)
    numbers: dict[str, object] = {} if requests is None else {"walltime": requests.numbers()}
    if not site.gpus and spec.uses_gpus and system.has_queue:
        print(
            "fleet submit: the job requests no GPUs; set --gpus-per-node, resources.gpus_per_node "
            "or --site",
            file=sys.stderr,
        )
    advice = _sharing_advice(request)
    if advice:
        print(f"fleet submit: {advice}", file=sys.stderr)
    if args.dry_run:
        show(args, lambda: {"script": script, **numbers}, lambda: print(script, end=""))
        return ExitStatus.OK
    return _submit(request, script, numbers)


def _end(args: argparse.Namespace) -> int:
    """End a chain, and print what was done."""
    if args.spec is not None:
        raise UserError(f"--end {args.end} takes no spec; leave {args.spec} out")
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
    print(f"no other job follows; submit the spec again to resume from the checkpoints in {root}")
    return ExitStatus.OK


def _automatic(request: opts.JobRequest) -> WalltimeRequests | None:
    """Compute and print the requests of ``--walltime auto``; None for other walltimes."""
    if request.options.walltime != AUTO:
        return None
    requests = automatic(request)
    for line in requests.lines(request.nodes, request.options.chain):
        print(f"fleet submit: {line}", file=sys.stderr)
    return requests


def _submit(request: opts.JobRequest, script: str, numbers: dict[str, object]) -> int:
    """Write the script, and submit it; run it if there is no batch system."""
    args = request.options
    system = request.system
    paths = request.paths
    if args.json and not system.has_queue:
        raise UserError(
            f"--json: with --system {system.name} the run prints its own output; use --dry-run "
            "--json for the script"
        )
    check_folder(paths)
    with writing_into(paths), atomic_write(paths.job_script) as file:
        file.write(script)
    if not system.has_queue:
        # The job receives Ctrl-C, saves, and ends.
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


def _job(request: opts.JobRequest, automatic_requests: WalltimeRequests | None) -> Job:
    args = request.options
    if not request.system.has_queue and request.nodes != 1:
        raise UserError(
            f"--nodes is {request.nodes}, but --system {request.system.name} has only this machine"
        )
    once = _once(args, request.spec)
    image = _image(args)
    requests = () if automatic_requests is None else automatic_requests.chain.requests
    if requests:
        walltime: float | None = requests[0]
    else:
        walltime = args.walltime or request.spec.document.walltime
    jobs, retries = _limits(args, request.system)
    return replace(
        request.make_job(walltime),
        jobs=jobs,
        retries=retries,
        once=once,
        requests=requests if args.chain else (),
        image=image,
        broadcast=args.broadcast,
        binds=() if image is None else _folders_to_bind(request.path, request.spec),
    )


def _image(args: argparse.Namespace) -> Path | None:
    """Return the absolute path of the image in which ranks run."""
    if args.image is None:
        if args.broadcast:
            raise UserError(
                "--broadcast copies a container image to the nodes; add --image FILE.sif"
            )
        return None
    if not args.image.is_file():
        raise UserError(
            f"--image {args.image}: the file does not exist; create it with `apptainer build "
            f"{args.image} launch/containers/fleet.def`"
        )
    image: Path = args.image.absolute()
    return image


def _folders_to_bind(path: str, spec: Spec) -> tuple[Path, ...]:
    """Return the folders of spec and data outside the working folder and the run's folder."""
    data = spec.document.data
    named = [
        str(Path(path).parent),
        *(folder for folder in (data.path, data.validation, data.test) if isinstance(folder, str)),
    ]
    # Absolute paths without "..", which would seem to lie in the working folder.
    paths = map(Path, map(os.path.abspath, named))
    folders = [
        next(folder for folder in (path_, *path_.parents) if folder.is_dir()) for path_ in paths
    ]
    bound_folders = (Path.cwd(), spec.output.absolute())
    return tuple(
        dict.fromkeys(
            folder
            for folder in folders
            if folder.parent != folder and not any(map(folder.is_relative_to, bound_folders))
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
    """Return the maximum numbers of jobs, and of machine failures that the chain survives."""
    if args.chain and system.has_queue and not (system.after or system.requeue):
        raise UserError(
            f"--chain: {system.name} has neither `after` nor `requeue`, so no job can follow "
            "another"
        )
    if args.chain:
        return args.max_jobs or opts.MAX_JOBS, RETRIES if args.retries is None else args.retries
    if (args.max_jobs, args.retries) != (None, None):
        raise UserError("--max-jobs and --retries need --chain")
    return 1, 0


def _sharing_advice(request: opts.JobRequest) -> str:
    """Advise to let more networks share a GPU; empty if that is not faster, or unknown."""
    spec = request.spec
    gpus_per_node = request.site.gpus
    gpus = request.nodes * gpus_per_node
    networks = spec.max_networks
    if not spec.uses_gpus or not 0 < gpus < networks:
        return ""
    slots = request.roles.slots
    speedups = recorded_sharing(spec)
    requested = spec.resources.networks_per_gpu
    useful = useful_networks_per_gpu(speedups)
    # If all measured numbers pay off, one more may pay off, too.
    count = min(useful + (useful == len(speedups) == slots), math.ceil(networks / gpus))
    if len(speedups) < 2 or count <= slots:
        return ""
    more = "" if count <= useful else "; more may pay off"
    setting = "" if requested == "auto" else f"resources.networks_per_gpu: {count} and "
    return (
        f"{describe_sharing(speedups)}{more}. This job has {slots} per GPU; for {count}, use "
        f"{setting}--ranks-per-node {request.ranks + (count - slots) * gpus_per_node}"
    )
