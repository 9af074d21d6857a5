"""The cluster that the tests of this folder share."""

from tests.cluster.slurm import slurm

__all__ = ["slurm"]
