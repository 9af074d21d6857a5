#!/bin/bash
# What ssh would do, on virtual nodes that are all this machine: agent.sh NODE COMMAND... Each has a host name of its own.
node=$1
shift
export PATH="$PATH" COMMAND="$*" NODE="$node"
for name in ${!SLURM@}; do
    unset "$name"
done
export SLURMD_NODENAME="$node"
exec unshare --uts /bin/bash -c 'hostname "$NODE"; eval "$COMMAND"'
