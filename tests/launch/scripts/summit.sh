#!/bin/bash
#BSUB -J photos
#BSUB -W 02:00
#BSUB -wa USR2
#BSUB -wt 2
#BSUB -o /home/me/runs/photos/jobs/%J.out
#BSUB -P m1234
#BSUB -r
#BSUB -nnodes 2
#BSUB -alloc_flags smt4
cd '/home/me/my work' || exit 2
export PATH=/home/me/env/bin:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec /home/me/env/bin/python3 -m fleet job /home/me/runs/photos --system=lsf --jobs=20 --retries=2 -- \
    jsrun -n 2 -r 1 -a 18 -c 42 -g 6 -b rs \
    /home/me/env/bin/python3 -m launch.place 24:52:80:112:140:168:20:48:76:108:136:164:0,4,8,12,16:28,32,36,40,44:56,60,64,68,72:88,92,96,100,104:116,120,124,128,132:144,148,152,156,160 \
    /home/me/env/bin/python3 -m fleet.run photos.yaml
