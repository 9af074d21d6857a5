"""List a user's jobs and the idle nodes of batch systems.

It imports the rest of ``launch``.
"""

from launch.queues import lsf, pbs, slurm
from launch.queues.queue import Queue, QueuedJob

# The command that lists jobs -> the queue.
QUEUES = {
    "squeue": slurm.QUEUE,
    "bjobs": lsf.QUEUE,
    "qstat": pbs.QUEUE,
}

__all__ = ["QUEUES", "Queue", "QueuedJob"]
