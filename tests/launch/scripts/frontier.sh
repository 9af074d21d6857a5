#!/bin/bash
#SBATCH --job-name=photos
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --comment="fleet:signal=B:USR2,app_time=2"
#SBATCH --output=/home/me/runs/photos/jobs/%j.out
#SBATCH --open-mode=append
#SBATCH --account=m1234
#SBATCH --requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=24
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
cd '/home/me/my work' || exit 2
export ROCR_VISIBLE_DEVICES="${ROCR_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7}"   # a value that is set is kept
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=slurm --jobs=20 --retries=2 -- \
    srun --nodes=2 --ntasks-per-node=24 --gpus-per-node=8 --gpu-bind=none --cpu-bind=none --kill-on-bad-exit=1 \
    /home/me/env/bin/python3 -m launch.place 55:63:23:31:7:15:39:47:54:62:22:30:6:14:38:46:49-53:57-61:17-21:25-29:1-5:9-13:33-37:41-45 \
    /home/me/env/bin/python3 -m fleet.run photos.yaml
