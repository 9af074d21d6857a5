"""Import TensorFlow before all other modules of this package, without its messages.

Where it is missing, exported networks are loaded with another backend of Keras.
"""

from contextlib import suppress

from launch.library_messages import logged_messages

with logged_messages(), suppress(ModuleNotFoundError):
    import tensorflow  # noqa: F401
