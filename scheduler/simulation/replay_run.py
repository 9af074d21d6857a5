"""Replay a live run in the simulator: its time, and the time that it should have taken.

The record of a live run says which group had which devices when, and how many epochs every network
needed. The simulator then trains the same networks for as many epochs under the same policy: the
difference in makespan is the effect of rates, costs or runtime that differ from the assumptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from launch.errors import InputError
from scheduler.base import Cluster, Options, RateTable, Record
from scheduler.ensemble.costs import Costs
from scheduler.ensemble.pace import Stream
from scheduler.ensemble.policies import Policy
from scheduler.simulation.ensemble import Simulated, Stint, simulate


@dataclass(frozen=True)
class ReplayedRun:
    """A run beside its simulation.

    Args:
        measured_s: from the first group to the last event of the record.
        stints: which network trained when on which devices, from the first group on.
        simulated: the simulation of the same networks and epochs.
    """

    measured_s: float
    stints: tuple[Stint, ...]
    simulated: Simulated


def replay(
    records: Iterable[Record],
    rates: RateTable,
    cluster: Cluster,
    policy: Policy,
    options: Options,
    costs: Costs,
    stream: Stream,
) -> ReplayedRun:
    """Simulate a recorded live run.

    Args:
        records: the records of one launch, from its start to its end, in order of time.
        rates: the rates that the policy of the run used.
        cluster, policy, options: of the run.
        costs, stream: as the run's are assumed to be.

    Returns:
        Both makespans. Networks that ended no epoch (they failed immediately) are left out.

    Raises:
        InputError: the record is of other networks, is out of order, or holds no epoch.
    """
    records = list(records)
    stints = stints_of(records)
    epochs = Counter(record.network for record in records if record.event == "epoch")
    unknown = sorted(set(epochs) - {network.name for network in rates.models})
    if unknown:
        raise InputError(
            f"the record has epochs of {', '.join(unknown)}, for which there are no rates"
        )
    if not epochs:
        raise InputError("the record has no epochs, so there is nothing to replay")
    trained = replace(
        rates,
        models=tuple(
            replace(network, epochs=epochs[network.name])
            for network in rates.models
            if epochs[network.name]
        ),
    )
    simulated = simulate(trained, cluster, policy, options, costs, stream)
    return ReplayedRun(records[-1].t_s - stints[0].start_s, stints, simulated)


def stints_of(records: Iterable[Record]) -> tuple[Stint, ...]:
    """Return which network trained when on which devices.

    Raises:
        InputError: times go back, or a network ends an epoch without having devices.

    >>> records = [Record(2.0, "group", "a", (0,)), Record(5.0, "epoch", "a")]
    >>> records += [Record(5.0, "group", "a", (0, 1)), Record(6.5, "epoch", "a")]
    >>> stints_of([*records, Record(6.5, "stopped", "a")])  # doctest: +NORMALIZE_WHITESPACE
    (Stint(name='a', devices=(0,), start_s=2.0, end_s=5.0, epochs=1),
     Stint(name='a', devices=(0, 1), start_s=5.0, end_s=6.5, epochs=1))
    """
    stints: list[Stint] = []
    running: dict[str, Stint] = {}
    before = float("-inf")
    for record in records:
        if record.t_s < before:
            raise InputError(f"the record goes back from {before} s to {record.t_s} s")
        before = record.t_s
        current = running.pop(record.network, None)
        if current is None and record.event != "group":
            raise InputError(
                f"at {record.t_s} s: {record.event} of {record.network}, which has no devices"
            )
        if current is not None and record.event == "epoch":
            running[record.network] = replace(current, epochs=current.epochs + 1)
            continue
        if current is not None:
            stints.append(replace(current, end_s=record.t_s))
        if record.event == "group":
            running[record.network] = Stint(
                record.network, record.devices, record.t_s, record.t_s, 0
            )
    stints += [replace(stint, end_s=before) for stint in running.values()]
    return tuple(sorted(stints, key=lambda stint: (stint.start_s, stint.devices)))
