#!/bin/bash
cd '/home/me/my work' || exit 2
image='/home/me/my images/fleet.sif'
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=local --jobs=1 --retries=0 --warn-after=7080 -- \
    mpirun -n 8 --map-by ppr:4:node:oversubscribe --bind-to none \
    apptainer exec --nv --bind='/home/me/my work' --bind=/home/me/runs/photos "$image" python -m fleet.run photos.yaml
