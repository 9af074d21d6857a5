"""A custom batch system: Grid Engine, where a parallel environment `mpi` allocates whole nodes."""

from fleet.launch.systems import System

GRID_ENGINE = System(
    "grid engine",
    directive="#$ ",  # what lines of options begin with
    account="-A {}",
    queue="-q {}",
    resources=("-pe mpi {ranks}", "-l exclusive=true"),
    gpu_resources=("-pe mpi {ranks}", "-l exclusive=true", "-l gpu={gpus}"),
    rerun=("-r y", "-r n"),  # a job whose node has died is started again, or not
    job_variable="JOB_ID",  # in the environment of a job
    submit=("qsub", "-terse"),
    id_pattern=r"^(\d+)",
    after=("-hold_jid", "{job}"),
    state=("qstat", "-j", "{job}"),
    over="do not exist",  # of a job that has ended; others keep their run's folder
    restarts="RESTARTED",
    template="""#!/bin/bash
#$ -S /bin/bash
#$ -N <<name>>
#$ -l h_rt=<<hh_mm>>:00
#$ -j y
#$ -o <<outputs>>
<<directives>>
<<body>>
""",
)
