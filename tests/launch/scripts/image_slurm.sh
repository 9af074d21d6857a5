#!/bin/bash
#SBATCH --job-name=photos
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --comment="fleet:signal=B:USR2,app_time=2"
#SBATCH --output=/home/me/runs/photos/jobs/%j.out
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
#SBATCH --gpus-per-node=2
cd '/home/me/my work' || exit 2
image='/home/me/my images/fleet.sif'
sbcast --force "$image" "${TMPDIR:-/tmp}/fleet-$SLURM_JOB_ID.sif" && image="${TMPDIR:-/tmp}/fleet-$SLURM_JOB_ID.sif"
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=slurm --jobs=1 --retries=0 -- \
    mpirun -n 8 --map-by ppr:4:node:oversubscribe --bind-to none \
    apptainer exec --nv --bind='/home/me/my work' --bind=/home/me/runs/photos "$image" python -m fleet.run photos.yaml
