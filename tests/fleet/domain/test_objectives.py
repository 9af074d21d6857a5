"""Who is best where several things count."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.objectives import pareto_front

MODES = ("maximize", "minimize", "maximize")
VALUES = st.lists(
    st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, math.nan])] * len(MODES)), max_size=12
)


def surpasses(one, other):
    better = [
        a - b if mode == "maximize" else b - a for a, b, mode in zip(one, other, MODES, strict=True)
    ]
    return min(better) >= 0 and max(better) > 0


@given(VALUES)
def test_the_front_is_whom_nobody_surpasses(values):
    known = [place for place, one in enumerate(values) if not any(map(math.isnan, one))]
    found = pareto_front(values, MODES)
    assert sorted(found) == [
        place
        for place in known
        if not any(surpasses(values[other], values[place]) for other in known)
    ]
    assert [values[place][0] for place in found] == sorted(
        (values[place][0] for place in found), reverse=True
    )
