#!/bin/bash
#SBATCH --job-name=photos
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --comment="fleet:signal=B:USR2,app_time=2"
#SBATCH --output=/home/me/runs/photos/jobs/%j.out
#SBATCH --open-mode=append
#SBATCH --account=m1234
#SBATCH --requeue
#SBATCH --qos=regular
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=12
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --constraint=gpu
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=slurm --jobs=20 --retries=2 -- \
    srun --nodes=2 --ntasks-per-node=12 --gpus-per-node=4 --gpu-bind=none --cpu-bind=none --kill-on-bad-exit=1 \
    /home/me/env/bin/python3 -m launch.place 63:47:31:15:62:46:30:14:48-61:32-45:16-29:0-13 \
    /home/me/env/bin/python3 -m fleet.run photos.yaml
