#!/bin/bash
#PBS -N photos
#PBS -l walltime=02:00:00
#PBS -j oe
#PBS -o /home/me/runs/photos/jobs/
#PBS -A m1234
#PBS -r y
#PBS -q prod
#PBS -l select=2
#PBS -l place=scatter
#PBS -l filesystems=home:flare
cd '/home/me/my work' || exit 2
export ZE_FLAT_DEVICE_HIERARCHY=FLAT   # a tile is a device
export ZE_AFFINITY_MASK="${ZE_AFFINITY_MASK:-0,1,2,3,4,5,6,7,8,9,10,11}"   # a value that is set is kept
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=pbs --jobs=20 --retries=2 --warn-after=7080 -- \
    mpiexec -n 72 --ppn 36 --cpu-bind none \
    /home/me/env/bin/python3 -m launch.place 8:16:24:32:40:48:60:68:76:84:92:100:7:15:23:31:39:47:59:67:75:83:91:99:1-6:9-14:17-22:25-30:33-38:41-46:53-58:61-66:69-74:77-82:85-90:93-98 \
    /home/me/env/bin/python3 -m fleet.run photos.yaml
