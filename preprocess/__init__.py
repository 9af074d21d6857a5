"""Data sets and sample transforms, without TensorFlow and without MPI."""
