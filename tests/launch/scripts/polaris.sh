#!/bin/bash
#PBS -N photos
#PBS -l walltime=02:00:00
#PBS -j oe
#PBS -o /home/me/runs/photos/jobs/
#PBS -A m1234
#PBS -r y
#PBS -q prod
#PBS -l select=2:system=polaris
#PBS -l place=scatter
#PBS -l filesystems=home:eagle
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=pbs --jobs=20 --retries=2 --warn-after=7080 -- \
    mpiexec -n 24 --ppn 12 --cpu-bind none \
    /home/me/env/bin/python3 -m launch.place 31:23:15:7:30:22:14:6:24-29:16-21:8-13:0-5 \
    /home/me/env/bin/python3 -m fleet.run photos.yaml
