"""Audited simulators: each checks, from the record alone, that a simulation kept the rules."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np

from scheduler.idle.allocate import BUSY
from scheduler.simulation import autoscale, batch_queue, eviction, idle_nodes
from scheduler.simulation.autoscale import SAME_MOMENT

SAME_MIN = 1e-6  # closer times are equal


class BrokenRuleError(AssertionError):
    """A simulation broke a rule: the simulator is wrong."""


def must(holds, otherwise):
    if not holds:
        raise BrokenRuleError(otherwise)


# ---- elastic jobs ------------------------------------------------------------------------------


def autoscaled(jobs, settings, minutes=math.inf):
    outcome = autoscale.simulate(jobs, settings, minutes)
    audit_autoscaled(outcome, jobs, settings)
    return outcome


def audit_autoscaled(outcome, jobs, settings):
    _audit_capacity(outcome, settings)
    in_use = {}
    for holding in outcome.holdings:
        in_use.setdefault(holding.job, []).append(holding)
    must(not in_use.keys() & set(outcome.dropped), "a dropped job held GPUs")
    early = Counter()  # resizes before their hold ended; jobs that start then may excuse them
    for number, job in enumerate(jobs):
        holdings_ = in_use.get(number, [])
        _audit_start(number, job, holdings_)
        early += _audit_changes(number, holdings_, settings)
        _audit_counts(number, job, holdings_, settings)
        _audit_work(number, job, holdings_, outcome.completion_min[number])
    for number, holdings_ in in_use.items():
        early[holdings_[0].start_min] -= jobs[number].curve.min_gpus
    must(not +early, f"more jobs than needed are resized too soon, at {[*+early]} min")


def _audit_capacity(outcome, settings):
    changes = sorted(
        [(h.start_min, h.gpus) for h in outcome.holdings]
        + [(h.end_min, -h.gpus) for h in outcome.holdings]
    )
    in_use = 0
    for moment, change in changes:
        in_use += change
        must(in_use <= settings.gpus, f"{in_use} of {settings.gpus} GPUs are held at {moment} min")


def _audit_start(number, job, holdings_):
    for h in holdings_[:1]:
        must(
            h.start_min >= job.arrival_min,
            f"job {number} starts at {h.start_min} min, before it arrives",
        )
        must(h.steady_min == h.start_min, f"job {number} pays for its start")


def _audit_changes(number, holdings_, settings):
    """Return the resizes of a job before its hold ended, by time."""
    early = Counter()
    for before, h in pairwise(holdings_):
        at = f"job {number} at {h.start_min} min"
        must(h.start_min == before.end_min, f"{at} resumes with a gap")
        must(
            h.steady_min == h.start_min + settings.rescale_cost_min, f"{at} does not pay its resize"
        )
        if h.start_min - before.steady_min < settings.effective_hold_min:
            must(h.gpus < before.gpus, f"{at} grows too soon")
            early[h.start_min] += 1
    return early


def _audit_counts(number, job, holdings_, settings):
    for h in holdings_:
        at = f"job {number} at {h.start_min} min"
        must(job.curve.factors[h.gpus - 1] > 0, f"{at} gets {h.gpus} GPUs, on which it cannot run")
        if settings.interval_min:
            early = math.remainder(h.start_min, settings.interval_min)
            must(abs(early) <= SAME_MOMENT, f"{at} changes between two decisions")


def _audit_work(number, job, holdings_, took):
    done = math.fsum(
        job.curve.factors[h.gpus - 1] * max(0.0, h.end_min - h.steady_min) for h in holdings_
    )
    if took is None:
        must(
            done < job.length_min, f"job {number} did all its work but does not count as completed"
        )
    else:
        rounding = SAME_MOMENT + 1e-12 * holdings_[-1].end_min
        slack = 1e-9 * job.length_min + rounding * max(job.curve.factors)
        must(
            abs(done - job.length_min) <= slack,
            f"job {number} did {done} of its {job.length_min} min",
        )
        must(
            abs(holdings_[-1].end_min - job.arrival_min - took) <= SAME_MOMENT,
            f"job {number} completed at another moment than it let go of its GPUs",
        )


# ---- evictions ---------------------------------------------------------------------------------


def evicted(jobs, actions, nodes, length_min, storage):
    outcome = eviction.simulate(jobs, actions, nodes, length_min, storage)
    audit_evicted(outcome, jobs, actions, nodes)
    return outcome


def audit_evicted(outcome, jobs, actions, nodes):
    """Check that no node was used twice and no job was lost."""
    busy_until = {}
    for use in sorted(outcome.uses, key=lambda use: use.start_min):
        for node in use.nodes:
            must(
                use.start_min >= busy_until.get(node, 0.0) - SAME_MIN,
                f"{use.job} starts on node {node} at {use.start_min} min, before it is free",
            )
            busy_until[node] = use.end_min
    for job in jobs:
        holdings_ = [use for use in outcome.uses if use.job == job.checkpointing.id]
        must(
            all(len(use.nodes) == job.checkpointing.nodes for use in holdings_),
            f"{job.checkpointing.id} ran on another number of nodes than it has",
        )
        killed = actions.get(job.checkpointing.id) == "kill"
        work = job.left_min + (job.checkpointing.since_checkpoint_min if killed else 0)
        must(
            abs(sum(use.done_min for use in holdings_) - work) <= SAME_MIN,
            f"{job.checkpointing.id} did not do its {work} min of work",
        )
    requested = [use for use in outcome.uses if use.job == eviction.ON_DEMAND]
    must(
        [len(use.nodes) for use in requested] == [nodes],
        "the on-demand job did not run once, on its nodes",
    )


# ---- a batch queue -----------------------------------------------------------------------------


def queued(jobs, processors, *args, **kwargs):
    schedule = batch_queue.simulate(jobs, processors, *args, **kwargs)
    audit_queued(schedule)
    return schedule


def audit_queued(schedule):
    """Check that no processor was used twice and no job was lost or favored."""
    completed = [0] * len(schedule.jobs)
    ended = [job.submit for job in schedule.jobs]
    for run in schedule.runs:  # in the order of their ends
        done = run.start + schedule.jobs[run.job].run_time
        must(
            run.start >= ended[run.job],
            f"job {run.job} started before it arrived, or while it ran: {run}",
        )
        must(
            run.end == (done if run.completed else run.limit)
            and run.completed == (done <= run.limit),
            f"job {run.job} ended neither when it was done nor at its limit: {run}",
        )
        completed[run.job] += run.completed
        ended[run.job] = run.end
    for index, times in enumerate(completed):
        must(times == 1, f"job {index} completed {times} times")
    sizes = np.array([schedule.jobs[run.job].processors for run in schedule.runs])
    moments = np.array([run.start for run in schedule.runs] + [run.end for run in schedule.runs])
    changes = np.concatenate((sizes, -sizes))
    used = np.cumsum(changes[np.lexsort((changes, moments))])  # ends before starts at equal times
    must(
        used.max() <= schedule.processors,
        f"{used.max()} processors were used, but the machine has {schedule.processors}",
    )


# ---- idle nodes --------------------------------------------------------------------------------


def replayed(trace, jobs, settings):
    """A replay that audits every decision."""

    def decide(trainers, current, nodes, horizon_s):
        counts = settings.policy(trainers, current, nodes, horizon_s)
        must(sum(counts) <= nodes, "more nodes are given than there are")
        must(
            all(
                count == 0 or trainer.n_min <= count <= trainer.n_max
                for trainer, count in zip(trainers, counts, strict=True)
            ),
            "a trainer is out of bounds",
        )
        return counts

    def record_placement(owner, sizes):
        after = settings.placement(owner, sizes)
        _audit_placement(owner, after, sizes)
        return after

    done = idle_nodes.replay(
        trace, jobs, replace(settings, policy=decide, placement=record_placement)
    )
    _audit_sums(done, trace, jobs)
    return done


def _audit_placement(before, after, sizes):
    moved = np.flatnonzero(before != after)
    dropped_, got = before[moved].tolist(), after[moved].tolist()
    in_use = Counter(after[after >= 0].tolist())
    must(BUSY not in dropped_ and BUSY not in got, "a node that is not idle was given or taken")
    must(not {owner for owner in dropped_ if owner >= 0}.intersection(got), "a trainer migrated")
    must(in_use == Counter(sizes), "nodes are not as many as decided")


def _audit_sums(done, trace, jobs):
    must(bool((done.used <= done.idle).all()), "more nodes are used than idle")
    node_seconds = float(np.append(0.0, done.idle)[:-1] @ np.diff(done.times_s, prepend=0.0))
    must(
        math.isclose(node_seconds, trace.node_seconds(), rel_tol=1e-9, abs_tol=1e-9),
        f"{node_seconds} node-seconds were idle, but the trace has {trace.node_seconds()}",
    )
    if all(job.trainer.objective == job.samples for job in jobs):
        samples = sum(record.samples for record in done.trainers)
        must(
            math.isclose(
                samples, done.outcome[-1], rel_tol=1e-9, abs_tol=1e-6 * (1 + abs(samples))
            ),
            f"trainers did {samples} samples, but earned {done.outcome[-1]}",
        )
