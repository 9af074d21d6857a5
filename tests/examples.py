"""The number of examples of tests, and the choice of long ones.

``FLEET_TEST_EXAMPLES``, 1 by default, is a factor for the examples of all property tests.
"""

import os

import pytest

_FACTOR = float(os.environ.get("FLEET_TEST_EXAMPLES", "1"))


def examples(count):
    """Scale the number of examples; at least 3."""
    return max(3, round(_FACTOR * count))


def long_but_first(first, *more):
    """Mark all parameters of a test but the first as long; `make test` runs only the first."""
    return [
        first,
        *(
            pytest.param(
                *(example if isinstance(example, tuple) else (example,)), marks=pytest.mark.long
            )
            for example in more
        ),
    ]
