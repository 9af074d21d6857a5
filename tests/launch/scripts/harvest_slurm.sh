#!/bin/bash
#SBATCH --job-name=photos
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --comment="fleet:signal=B:USR2,app_time=2"
#SBATCH --output=/home/me/runs/photos/jobs/%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=slurm --harvest=/home/me/runs/photos/jobs/harvest.json -- \
    mpirun -n 4 --map-by ppr:4:node:oversubscribe --bind-to none \
    /home/me/env/bin/python3 -m fleet.run photos.yaml --share-run --idle-timeout=300s
