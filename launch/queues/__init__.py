"""What batch systems show to those who hand in one job after the other: their own jobs, and the nodes that are idle.

It imports the rest of ``launch``.
"""

from launch.queues import lsf, pbs, slurm
from launch.queues.queue import Queue, QueuedJob

QUEUES = {
    "squeue": slurm.QUEUE,
    "bjobs": lsf.QUEUE,
    "qstat": pbs.QUEUE,
}  # by the command that lists jobs

__all__ = ["QUEUES", "Queue", "QueuedJob"]
