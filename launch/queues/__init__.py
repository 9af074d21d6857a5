"""What batch systems show to those who hand in one job after the other: their own jobs, and the nodes that are idle.

It imports the rest of ``launch``.
"""

from launch.queues import lsf, pbs, slurm
from launch.queues.base import Queue, QueuedJob

QUEUES = {"slurm": slurm.QUEUE, "lsf": lsf.QUEUE, "pbs": pbs.QUEUE}

__all__ = ["QUEUES", "Queue", "QueuedJob"]
