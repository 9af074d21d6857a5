"""Compare the makespans of emulated networks with simulated ones, under every policy.

    python benchmarks/emulated.py [--ranks 17] [--networks 24] [--samples 2000]
        [--time-scale 0.1] [--policies ...]

The whole runtime runs (MPI, groups, stream, rounds, checkpoints); only steps sleep, for the time
that drawn rates predict, times the scale. `global` trains in lockstep with a window of a few
batches; `baseline` prepares its own samples; for the others every node caches decoded samples, so
that each network runs at its own pace. A policy takes about two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fleet.api import run, write_spec
from fleet.monitor.accounting import Account
from fleet.monitor.report import read_report
from fleet.storage.files import write_json
from fleet.storage.paths import RunPaths
from scheduler.ensemble.policies import POLICIES
from scheduler.ensemble.rates_file import write_rates
from scheduler.simulation.draw import generate

BATCH = 100


def spec(policy: str, rates: Path, output: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the spec of a run of the networks of a rates file."""
    data: dict[str, Any] = {
        "source": "builtin:noise",
        "options": {"samples": args.samples},
        "validation": None,
        "transforms": [],
    }
    if POLICIES[policy].stream.count:
        data |= {"shared_memory": "60KB", "cache": "none"}
    elif not POLICIES[policy].own_samples:
        data["cache"] = "memory"
    return {
        "name": "emulated",
        "output": str(output),
        "data": data,
        "models": [
            {"family": "softmax", "name": network.name}
            for network in generate(args.networks, 1).models
        ],
        "train": {"batch": {"size": BATCH}, "stopping": {"monitor": "loss"}},
        "schedule": {"policy": policy, "rates": str(rates)},
        "resources": {
            "engine": "emulated",
            "time_scale": args.time_scale,
            "preprocessors": "auto" if POLICIES[policy].own_samples else 1,
        },
    }


def measure(policy: str, folder: Path, args: argparse.Namespace) -> Account:
    """Run one policy; its output goes to standard error."""
    table = dataclasses.replace(generate(args.networks, 1), samples_per_epoch=args.samples)
    rates, output = folder / "rates.json", folder / policy
    write_json(rates, write_rates(table))
    write_spec(spec(policy, rates, output, args), folder / f"{policy}.yaml")
    run(folder / f"{policy}.yaml", args.ranks, "--plain", "--fresh", log=sys.stderr)
    return read_report(RunPaths(output)).account


def row(policy: str, account: Account) -> str:
    """Format a line of the table."""
    assert account.replay is not None  # the run has finished
    simulated = account.replay.simulated
    measured_s, simulated_s, bound_s = (
        seconds * account.time_scale
        for seconds in (account.replay.measured_s, simulated.makespan_s, simulated.lower_bound_s)
    )
    return (
        f"| `{policy}` | {measured_s:.1f} | {simulated_s:.1f} | {measured_s / simulated_s:.3f} | "
        f"{measured_s / bound_s:.3f} | {len(account.stints)} | "
        f"{1000 * account.costs.regroup_s:.0f} | {1000 * account.costs.epoch_s:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=17)
    parser.add_argument("--networks", type=int, default=24)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--time-scale", type=float, default=0.1)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--folder", type=Path, help="folder that keeps the runs (default: none)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        rows = [
            row(policy, measure(policy, folder.resolve(), args))
            for policy in args.policies.split(",")
        ]
    print(
        "| policy | measured, s | simulated, s | ratio | measured/bound | groups formed | "
        "forming a group, ms | between epochs, ms |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
