"""GPUs for elastic jobs by a general solver: the oracle beside :mod:`scheduler.elastic.allocate`.

[ELASTIC] section III-C mentions this program and replaces it by a dynamic
programme. It stays here to test and to time that against: HiGHS (through
scipy) takes it as it stands, with one binary variable x_jk for each job j and
number of GPUs k on which the job runs:

    maximise sum_jk T_j(k) x_jk   subject to   sum_k x_jk = 1 for each j,   sum_jk k x_jk <= K
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.elastic.allocate import Allocation, Curve


def integer_programme(curves: Sequence[Curve], gpus: int) -> Allocation | None:
    """As :func:`scheduler.elastic.allocate.allocate`, solved by HiGHS to a gap of 0.

    >>> integer_programme([Curve((1.0, 1.1, 3.0)), Curve((1.0, 1.5))], gpus=3)
    Allocation(gpus=(1, 2), throughput=2.5, method='integer programme')
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to load, and only needed here
    from scipy.sparse import csr_array

    if not curves:
        return Allocation((), 0.0, "integer programme")
    choices = [(job, k, factor) for job, curve in enumerate(curves)
               for k, factor in enumerate(curve.factors, start=1) if factor > 0]
    jobs = np.array([job for job, _, _ in choices])
    counts = np.array([k for _, k, _ in choices])
    factors = np.array([factor for _, _, factor in choices])
    one_each = csr_array((np.ones(len(jobs)), (jobs, np.arange(len(jobs)))))
    found = milp(-factors, integrality=np.ones(len(jobs)), bounds=Bounds(0, 1),
                 constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(counts[None], -np.inf, gpus)],
                 options={"mip_rel_gap": 0.0})
    if found.x is None:
        return None
    taken = found.x > 0.5
    return Allocation(tuple(counts[taken].tolist()), float(factors[taken].sum()), "integer programme")
