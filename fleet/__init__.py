"""FLEET: train an ensemble of different neural networks inside one MPI launch."""

__version__ = "0.2.0"
