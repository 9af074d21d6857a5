"""The main job, which fails when rank 0, a preprocessor, has imported TensorFlow: run by test_keras.py."""

import sys

from fleet.run import main

status = main()
if sys.argv[-1] == "--plain" and __import__("os").environ["OMPI_COMM_WORLD_RANK"] == "0":
    assert not {"tensorflow", "keras", "horovod"} & set(sys.modules), (
        "rank 0 has imported TensorFlow"
    )
sys.exit(status)
