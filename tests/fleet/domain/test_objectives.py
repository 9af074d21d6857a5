"""The Pareto front of several objectives."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.objectives import pareto_front

MODES = ("maximize", "minimize", "maximize")
VALUES = st.lists(
    st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, math.nan])] * len(MODES)), max_size=12
)


def dominates(subject, second):
    better = [
        a - b if mode == "maximize" else b - a
        for a, b, mode in zip(subject, second, MODES, strict=True)
    ]
    return min(better) >= 0 and max(better) > 0


@given(VALUES)
def test_pareto_front_is_undominated(values):
    rates = [index for index, subject in enumerate(values) if not any(map(math.isnan, subject))]
    actual = pareto_front(values, MODES)
    assert sorted(actual) == [
        index
        for index in rates
        if not any(dominates(values[second], values[index]) for second in rates)
    ]
    assert [values[index][0] for index in actual] == sorted(
        (values[index][0] for index in actual), reverse=True
    )
