"""FLEET: train an ensemble of different neural networks inside one MPI launch."""

__version__ = "0.1.0"
