"""Simulate how long an ensemble trains under a policy.

  fleet simulate ensemble rates.json --gpus 80 --policy adaptive
  fleet simulate ensemble rates.json --gpus 80 --policy all --draw-epochs --seed 3
  fleet simulate ensemble rates.json --gpus 80 --policy global --literal --plot gantt.png
  fleet simulate ensemble rates.json --gpus 80 --policy adaptive --profile online --rate-error 5%
  fleet simulate ensemble r.json --gpus 8 --policy adaptive --networks-per-gpu 3 --sharing 1,1.6,2

The policies are the same as in a run. FILE is a rates file with the epochs of each network, which
the policies do not know. By default `global` trains in lockstep, and the others at free pace. The
cost of moves depends on the policy: `adaptive` pays 5 s for every group that starts or changes; the
policies of the paper pay 34 s for the checkpoint of every group that stops unfinished, and 0.46 s
for a decision (Table 4 of the paper); `baseline` and `homogeneous` pay nothing. With `--profile
online`, policies start with guesses, and learn rates while networks train. With
`--networks-per-gpu`, networks share GPUs while there are more networks than GPUs: K on each, or
with auto as many as pay off. No schedule can be shorter than the lower bound, even if moves cost
nothing and the epochs are known.
"""

from __future__ import annotations

import argparse
import colorsys
import dataclasses
import math
import sys
from pathlib import Path

from fleet.arguments import integer, number, positive, share, stream
from fleet.commands.options import FORMER_OPTIONS as FORMER_POLICY_OPTIONS
from fleet.commands.options import add_cluster, add_options, add_policy, cluster_of, options_of
from fleet.commands.output import add_plot, figure_file, print_policies, show
from fleet.errors import UserError
from fleet.plugins import find_policy
from fleet.terminal import bar, print_table
from fleet.units import renaming_notice
from launch.errors import pluralize
from scheduler.base import MAX_SLOTS, Cluster, RateTable
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.policies import POLICIES, Policy
from scheduler.ensemble.rates import extend_as_printed, smooth_rates
from scheduler.ensemble.rates_file import read_rates
from scheduler.simulation.draw import redraw_epochs, with_errors
from scheduler.simulation.ensemble import Simulated, simulate
from scheduler.simulation.learning import Learning

FORMER_OPTIONS = FORMER_POLICY_OPTIONS | {"--per-device": "--networks-per-gpu"}
ALL = "all"  # all policies of the table

_FACTOR = 2.0  # typical error of rates that are guessed from numbers of operations

# The fields of a simulation that --json prints.
PRINTED = (
    "policy",
    "makespan_s",
    "lower_bound_s",
    "first_signal_s",
    "waiting_s_per_gpu",
    "regroup_s_per_gpu",
    "scheduling_s",
    "checkpoint_s",
    "replans",
    "rounds",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="JSON file of training rates and epochs")
    add_cluster(parser)
    add_policy(parser, "(required)", ALL, required=True)
    add_options(parser)
    group = parser.add_argument_group("simulation")
    group.add_argument(
        "--stream",
        type=stream,
        metavar="S",
        help="how networks share samples: free, lockstep, a number of lockstep streams, ring, or "
        "ring:10%% with the size of its window (the policy's default)",
    )
    group.add_argument(
        "--stream-rate",
        type=positive,
        default=math.inf,
        metavar="R",
        help="samples/s of the preprocessing (no limit)",
    )
    for cost in dataclasses.fields(Costs):
        group.add_argument(
            "--" + cost.name.replace("_", "-"),
            type=number(0),
            metavar="X",
            help=_COST_HELP[cost.name],
        )
    group.add_argument(
        "--rate-error",
        type=share,
        default=0.0,
        metavar="E",
        help="standard deviation of the errors of the rates that the policy uses, or that training "
        "measures, like 5%% (0)",
    )
    group.add_argument(
        "--profile",
        type=_when_profiled,
        choices=("offline", "online"),
        default="offline",
        help="when rates become known: before the run, or during it, from training (offline)",
    )
    group.add_argument(
        "--prior-factor",
        type=number(1, 100),
        metavar="F",
        help="with --profile online: typical factor between guessed and actual rates before any "
        f"training ({_FACTOR:g})",
    )
    group.add_argument(
        "--networks-per-gpu",
        type=_slots,
        default=1,
        metavar="K",
        help="maximum number of networks that share a GPU, or auto: as many as pay off (1)",
    )
    group.add_argument(
        "--sharing",
        type=_sharing,
        metavar="S",
        help="throughput of 1, 2, ... networks on one GPU relative to one network, like 1,1.6,2.1 "
        "(as in FILE)",
    )
    group.add_argument(
        "--draw-epochs",
        action="store_true",
        help="draw the epochs of each network from those in the file, with --seed",
    )
    add_plot(parser, "the networks on each GPU over time")


_COST_HELP = {
    "checkpoint_s": "seconds that a group that stops unfinished still holds its GPUs",
    "regroup_s": "seconds until a group that starts, grows or shrinks begins to train",
    "scheduling_s": "seconds until a decision takes effect",
    "profile_s": "seconds until the first decision",
    "epoch_s": "seconds of an epoch in addition to its samples",
}


def run(args: argparse.Namespace) -> None:
    """Simulate, and print the numbers."""
    rates = read_rates(args.file)
    if args.policy == ALL:
        policies = list(POLICIES.values())
    else:
        policies = [find_policy(args.policy)]
    if args.plot and len(policies) > 1:
        raise UserError("--plot draws one policy: choose it with --policy")
    is_online = args.profile == "online"
    if args.prior_factor is not None and not is_online:
        raise UserError("--prior-factor: only --profile online guesses rates; leave it out")
    draws = args.draw_epochs or args.rate_error > 0 or is_online
    options = options_of(args, policies, None, *(["seed"] if draws else []))
    if args.sharing is not None:
        rates = dataclasses.replace(rates, sharing=args.sharing)
    cluster = _cluster(args, rates)
    if args.draw_epochs:
        rates = redraw_epochs(rates, options.seed)
    if not options.peak_limited:  # also for the actual rates of the networks
        rates = extend_as_printed(rates, cluster.whole_gpus)
    estimates = rates
    learning = None
    if is_online:
        learning = Learning(
            math.log(args.prior_factor or _FACTOR), args.rate_error, seed=options.seed
        )
    elif args.rate_error:
        estimates = smooth_rates(
            with_errors(rates, args.rate_error, options.seed), cluster.whole_gpus
        )
    outcomes = [
        simulate(
            rates,
            cluster,
            policy,
            options,
            _costs(args, policy),
            _stream(args, policy),
            estimates,
            learning,
        )
        for policy in policies
    ]
    if args.plot:
        plot(args.plot, outcomes[0], cluster)
    records = [{name: getattr(outcome, name) for name in PRINTED} for outcome in outcomes]
    if args.policy == ALL:
        show(args, lambda: {"policies": records}, lambda: print_policies(outcomes))
    else:
        show(args, lambda: records[0], lambda: _print(outcomes[0], cluster))


def _when_profiled(text: str) -> str:
    """Replace the old value ``before`` by ``offline``."""
    if text != "before":
        return text
    print(renaming_notice("--profile before", "--profile offline"), file=sys.stderr)
    return "offline"


def _slots(text: str) -> int | None:
    """Return how many networks may share a GPU; None for auto."""
    if text == "auto":
        return None
    return integer(1, MAX_SLOTS)(text)


def _sharing(text: str) -> tuple[float, ...]:
    """Read the speed-ups of 1, 2, ... networks on one GPU over one network."""
    speedups = tuple(map(positive, text.split(",")))
    if speedups[0] != 1 or len(speedups) > MAX_SLOTS:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} should begin with 1, the throughput of one network, and have at most "
            f"{MAX_SLOTS} numbers"
        )
    return speedups


def _cluster(args: argparse.Namespace, rates: RateTable) -> Cluster:
    """Return the cluster that the options describe, with its slots.

    Raises:
        UserError: the speed-ups of networks that share a GPU are unknown, or given but not used.
    """
    is_shared = args.networks_per_gpu != 1
    if is_shared and len(rates.sharing) < 2:
        raise UserError(
            f"--networks-per-gpu: {args.file} has no throughputs of networks that share a GPU; set "
            "--sharing, like 1,1.6,2.1"
        )
    if args.sharing is not None and not is_shared:
        raise UserError(
            "--sharing: with --networks-per-gpu 1 no GPU is shared; leave it out, or use "
            "--networks-per-gpu auto"
        )
    return cluster_of(
        args,
        rates.gpus_per_node,
        args.networks_per_gpu or len(rates.sharing),
        args.networks_per_gpu is not None,
    )


def _costs(args: argparse.Namespace, policy: Policy) -> Costs:
    settings = {cost.name: getattr(args, cost.name) for cost in dataclasses.fields(Costs)}
    return dataclasses.replace(
        policy.costs, **{name: value for name, value in settings.items() if value is not None}
    )


def _stream(args: argparse.Namespace, policy: Policy) -> Stream:
    return dataclasses.replace(args.stream or policy.stream, rate=args.stream_rate)


def _print(outcome: Simulated, cluster: Cluster) -> None:
    print_table(
        [outcome.policy, ""],
        [
            [text, f"{value:,.1f}"]
            for text, value in [
                ("makespan, s", outcome.makespan_s),
                ("lower bound, s", outcome.lower_bound_s),
                ("first epoch of all networks, s", outcome.first_signal_s),
                ("waiting per GPU, s", outcome.waiting_s_per_gpu),
                ("regrouping per GPU, s", outcome.regroup_s_per_gpu),
                ("scheduling, s", outcome.scheduling_s),
                ("checkpointing, s", outcome.checkpoint_s),
                ("plans after new rates", outcome.replans),
            ]
        ],
        title=f"{outcome.makespan_s / outcome.lower_bound_s:.3f} of the lower bound on "
        f"{pluralize(cluster.whole_gpus, 'GPU')}, {cluster.gpus_per_node // cluster.slots} per "
        f"node, in {pluralize(len(outcome.rounds), 'round')}",
    )
    shown_rounds = outcome.rounds if len(outcome.rounds) <= 30 else outcome.rounds[:30]
    print_table(
        ["round", "start, s", "seconds", "networks", "GPUs" if cluster.slots == 1 else "slots", ""],
        [
            [
                number,
                round(round_.start_s, 1),
                round(round_.end_s - round_.start_s, 1),
                len(round_.members),
                sum(member.gpus for member in round_.members),
                bar(sum(m.gpus for m in round_.members), cluster.gpus),
            ]
            for number, round_ in enumerate(shown_rounds, start=1)
        ],
    )
    if len(shown_rounds) < len(outcome.rounds):
        print(f"... and {pluralize(len(outcome.rounds) - len(shown_rounds), 'more round')}")


def plot(path: Path, outcome: Simulated, cluster: Cluster) -> None:
    """Draw a bar for every network on each of its devices, in one color per network."""
    names = sorted({stint.name for stint in outcome.stints})
    # Golden-ratio steps around the color wheel keep neighbors in the list apart.
    colors = {
        name: colorsys.hsv_to_rgb(index * 0.618 % 1, 1, 1) for index, name in enumerate(names)
    }
    with figure_file(path, 12, 2 + 0.06 * cluster.gpus) as figure:
        axes = figure.subplots()
        for device in cluster.devices:
            stints = [stint for stint in outcome.stints if device in stint.devices]
            axes.broken_barh(
                [(stint.start_s, stint.end_s - stint.start_s) for stint in stints],
                (device, 0.9),
                facecolors=[colors[stint.name] for stint in stints],
            )
        for stint in outcome.stints:
            if stint.end_s - stint.start_s > outcome.makespan_s / 40:  # room for its name
                axes.text(
                    (stint.start_s + stint.end_s) / 2,
                    stint.devices[0] + 0.45,
                    stint.name,
                    fontsize=4,
                    ha="center",
                    va="center",
                )
        axes.set(
            xlim=(0, outcome.makespan_s),
            ylim=(0, 1 + max(cluster.devices)),
            xlabel="seconds",
            ylabel="GPU",
            title=f"{outcome.policy}: {outcome.makespan_s:.0f} s, "
            f"{outcome.makespan_s / outcome.lower_bound_s:.3f} of the lower bound",
        )
