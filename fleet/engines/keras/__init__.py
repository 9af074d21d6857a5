"""Train networks with Keras 3 on TensorFlow; no other part of FLEET imports TensorFlow."""

import os

# Both are read when TensorFlow and Keras are imported, in the modules of this package; a user's
# own settings stand.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
