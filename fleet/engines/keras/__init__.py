"""Train networks with Keras 3 on TensorFlow; no other part of FLEET imports TensorFlow."""

import os

# TensorFlow and Keras read these when the modules of this package import them. Values that the
# user has set take precedence.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import fleet.engines.keras.load_tensorflow  # noqa: F401 - after the variables
