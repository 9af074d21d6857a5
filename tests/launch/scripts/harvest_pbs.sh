#!/bin/bash
#PBS -N photos
#PBS -l walltime=02:00:00
#PBS -j oe
#PBS -o /home/me/runs/photos/jobs/
#PBS -r y
#PBS -l select=1:mpiprocs=4
#PBS -l place=scatter:excl
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=pbs --harvest=/home/me/runs/photos/jobs/harvest.json --warn-after=7080 -- \
    mpirun -n 4 --map-by ppr:4:node:oversubscribe --bind-to none \
    /home/me/env/bin/python3 -m fleet.run photos.yaml --share-run --idle-timeout=300s
