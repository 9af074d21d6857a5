"""Import TensorFlow before all other modules of this package, without its messages."""

from launch.library_messages import logged_messages

with logged_messages():
    import tensorflow  # noqa: F401
