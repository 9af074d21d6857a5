"""Data sets and sample transforms; imports neither TensorFlow, nor MPI, nor the other packages."""
