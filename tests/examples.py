"""How much tests try: what `make test` leaves to `make test-all`.

``FLEET_TEST_EXAMPLES``, 1 by default, is a factor for the examples of all property tests.
"""

import os

import pytest

_FACTOR = float(os.environ.get("FLEET_TEST_EXAMPLES", "1"))


def examples(count):
    """The number of examples in place of ``count``, at least 3."""
    return max(3, round(_FACTOR * count))


def long_but_first(first, *others):
    """Parameters of a long test: `make test` runs it with the first alone."""
    return [
        first,
        *(
            pytest.param(
                *(example if isinstance(example, tuple) else (example,)), marks=pytest.mark.long
            )
            for example in others
        ),
    ]
