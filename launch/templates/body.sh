cd <<folder>> || exit 2
<<setup>>
export PATH=<<programs>>:"$PATH"
# It passes the signals of the batch system on to the ranks, and decides what comes after this job; one that comes
# before it listens is lost, rather than the job.
trap '' USR2 TERM
exec <<command>>
