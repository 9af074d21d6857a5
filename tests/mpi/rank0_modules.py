"""Run the main job; fail if rank 0, a preprocessor, has imported TensorFlow (for test_keras.py)."""

import os
import sys

from fleet.run import main

status = main()
if sys.argv[-1] == "--plain" and os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    assert not {"tensorflow", "keras", "horovod"} & set(sys.modules), (
        "rank 0 has imported TensorFlow"
    )
sys.exit(status)
