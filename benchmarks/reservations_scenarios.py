"""Simulate Scenarios 1 to 4 of the reservations' paper under every convention.

[SPEC] Gainaru et al., Speculative Scheduling for Stochastic HPC Applications, ICPP 2019, section 5.
Times are in hours. Every rule sees the same jobs of a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.reservation.distributions import Law, make_law
from scheduler.simulation.batch_queue import Convention, QueueJob, Schedule, Stream, simulate
from scheduler.simulation.workload import Rule, Sizes, draw_jobs, small_stream

PROCESSORS = 100
LAWS = {
    "truncated normal": make_law("truncnorm", mu=8, sigma=2, low=6, high=16),
    "beta": make_law("beta", alpha=2, beta=2, low=0.001, high=1),
    "exponential": make_law("exponential", rate=1, low=0.001, high=16),
    "bounded Pareto": make_law("pareto", alpha=2.1, low=1, high=20),
}
MIX_LARGE = make_law("truncnorm", mu=4, sigma=2, low=1, high=8)
MIX_SMALL = make_law("truncnorm", mu=1, sigma=1, low=0.001, high=4)
STREAMED = make_law("truncnorm", mu=8, sigma=2, low=1, high=20)
WORK_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
STREAM_PROCESSORS = 20

INTREPID_NODES = 40_960
INTREPID_RATE = 0.21
ORGANS = make_law("truncnorm", mu=20, sigma=8, low=11, high=31)
CRUISE = make_law("truncnorm", mu=1.7, sigma=0.5, low=1.5, high=3)
FSL = make_law("truncnorm", mu=20 / 60, sigma=8 / 60, low=10 / 60, high=35 / 60)

Draw = Callable[[Rule, np.random.Generator], list[QueueJob]]


@dataclass(frozen=True)
class Mean:
    """Means over the seeds; ``response`` is of the large jobs, ``all_response`` of all jobs."""

    utilization: float
    response: float
    all_response: float
    makespan: float


def simulate_seeds(
    draw: Draw,
    rule: Rule,
    seeds: int,
    convention: Convention,
    *,
    processors: int = PROCESSORS,
    speculative: bool = False,
    stream: Stream | None = None,
) -> Mean:
    """Simulate a rule on the jobs of each seed."""

    def simulate_seed(seed: int) -> Schedule:
        return simulate(
            draw(rule, np.random.default_rng(seed)),
            processors,
            convention,
            speculative=speculative,
            stream=stream,
            seed=seed,
        )

    return _mean(
        [
            (results.utilization, results.response(small=False), results.response(), results.end)
            for results in map(simulate_seed, range(seeds))
        ]
    )


def _mean(rows: Iterable[Sequence[float]]) -> Mean:
    return Mean(*np.mean(list(rows), axis=0).tolist())


def scenario_1(convention: Convention, sizes: Sizes, law: Law, seeds: int) -> dict[Rule, Mean]:
    """Simulate 100 jobs of one law that arrive together: classical, the last ten runs, TOptimal."""

    def draw(rule: Rule, rng: np.random.Generator) -> list[QueueJob]:
        return draw_jobs(law, 100, PROCESSORS, sizes, rule, rng)

    return {
        rule: simulate_seeds(draw, rule, seeds, convention)
        for rule in (Rule.CLASSICAL, Rule.RECENT, Rule.TOPTIMAL)
    }


def past_runs(convention: Convention, law: Law, past: int, seeds: int) -> Mean:
    """Simulate 100 jobs of the whole machine that request the longest of ``past`` runs (Fig. 4)."""

    def draw(rule: Rule, rng: np.random.Generator) -> list[QueueJob]:
        return draw_jobs(law, 100, PROCESSORS, Sizes.FULL, rule, rng, past=past)

    return simulate_seeds(draw, Rule.RECENT, seeds, convention)


def scenario_2(convention: Convention, share: float, seeds: int) -> dict[tuple[Rule, bool], Mean]:
    """Simulate 200 jobs, some of them shorter, with and without speculative backfilling."""

    def draw(rule: Rule, rng: np.random.Generator) -> list[QueueJob]:
        short = round(200 * share)
        return [
            job
            for law, count in ((MIX_SMALL, short), (MIX_LARGE, 200 - short))
            if count
            for job in draw_jobs(law, count, PROCESSORS, Sizes.BETA, rule, rng)
        ]

    return {
        (rule, speculative): simulate_seeds(draw, rule, seeds, convention, speculative=speculative)
        for rule in (Rule.CLASSICAL, Rule.TOPTIMAL)
        for speculative in (False, True)
    }


def scenario_3(
    convention: Convention,
    work_rate: float,
    seeds: int,
    jobs: int = 30,
    processors: int = STREAM_PROCESSORS,
) -> dict[Rule, Mean]:
    """Simulate jobs of the whole machine, and a stream of jobs a hundred times shorter."""

    def draw(rule: Rule, rng: np.random.Generator) -> list[QueueJob]:
        return draw_jobs(STREAMED, jobs, processors, Sizes.FULL, rule, rng, backfill_rate=work_rate)

    stream = small_stream(STREAMED, work_rate, processors)
    return {
        rule: simulate_seeds(draw, rule, seeds, convention, processors=processors, stream=stream)
        for rule in (Rule.CLASSICAL, Rule.TOPTIMAL, Rule.ATOPTIMAL)
    }


def scenario_4(
    convention: Convention, seeds: int, *, gaps_only: bool
) -> dict[tuple[Rule, bool], Mean]:
    """Simulate three neuroscience applications on Intrepid.

    Jobs of the shortest one arrive over time and fill gaps, or (not ``gaps_only``) arrive together
    with the others.
    """

    def draw(rule: Rule, rng: np.random.Generator) -> list[QueueJob]:
        def draw_law(law: Law, count: int) -> list[QueueJob]:
            return draw_jobs(
                law, count, INTREPID_NODES, Sizes.BETA, rule, rng, backfill_rate=INTREPID_RATE
            )

        large, small = draw_law(ORGANS, 10) + draw_law(CRUISE, 90), draw_law(FSL, 300)
        if not gaps_only:
            return large + small
        work = sum(job.processors * job.run_time for job in small)
        arrivals = rng.uniform(0, work / (INTREPID_RATE * INTREPID_NODES), len(small))
        return large + [
            replace(job, submit=float(time), small=True)
            for job, time in zip(small, arrivals, strict=True)
        ]

    return {
        (rule, speculative): simulate_seeds(
            draw, rule, seeds, convention, processors=INTREPID_NODES, speculative=speculative
        )
        for rule in (Rule.CLASSICAL, Rule.RECENT, Rule.TOPTIMAL, Rule.ATOPTIMAL)
        for speculative in (False, True)
    }
