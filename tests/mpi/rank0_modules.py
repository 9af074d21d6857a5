"""Run the main job; fail if rank 0, a preprocessor, has imported TensorFlow (for test_keras.py)."""

import sys

from fleet.run import main
from tests.places import rank

status = main()
if sys.argv[-1] == "--plain" and rank() == "0":
    assert not {"tensorflow", "keras", "horovod"} & set(sys.modules), (
        "rank 0 has imported TensorFlow"
    )
sys.exit(status)
