#!/bin/bash
#BSUB -J photos
#BSUB -W 02:00
#BSUB -wa USR2
#BSUB -wt 2
#BSUB -o /home/me/runs/photos/jobs/%J.out
#BSUB -r
#BSUB -n 4
#BSUB -R "span[ptile=4]"
#BSUB -x
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=lsf --harvest=/home/me/runs/photos/jobs/harvest.json -- \
    mpirun -n 4 --map-by ppr:4:node:oversubscribe --bind-to none \
    /home/me/env/bin/python3 -m fleet.run photos.yaml --share-run --idle-timeout=300s
