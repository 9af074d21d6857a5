"""How many examples property tests try: one setting for all, ``FLEET_TEST_EXAMPLES``, a factor that is 1 by default."""

import os

_FACTOR = float(os.environ.get("FLEET_TEST_EXAMPLES", "1"))


def examples(count):
    """The number of examples in place of ``count``, at least 5."""
    return max(5, round(_FACTOR * count))
