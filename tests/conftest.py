"""What all tests share."""

import os

from hypothesis import settings

# The same examples in every run, so that a red run is red for what changed. `HYPOTHESIS_PROFILE=search` looks for new
# ones, which is how a bug is found that nobody thought of; each that it finds becomes a test of its own.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
