"""Plan which networks train together on which GPUs: the scheduler alone, without MPI.

python examples/plan.py
"""

from fleet.scheduler.base import Cluster, Delta, Network, Options, Progress, RateTable
from fleet.scheduler.ensemble.policies import POLICIES

# samples/s on 1, 2, 3 and 4 GPUs: two fast networks, one of half their pace, one that is slow
rates = RateTable(
    samples_per_epoch=30_000,
    gpus_per_node=4,
    models=(
        Network("fast", (100.0, 190.0, 270.0, 340.0)),
        Network("as-fast", (98.0, 185.0, 260.0, 330.0)),
        Network("half", (52.0, 99.0, 140.0, 175.0)),
        Network("slow", (20.0, 39.0, 57.0, 74.0)),
    ),
)
cluster = Cluster.of(gpus=8, gpus_per_node=4)

for policy in ("baseline", "global"):
    round_ = POLICIES[policy].decide(
        rates, Progress(), cluster, Options(delta=Delta(0.15, relative=True))
    )
    print(f"{policy}:")
    for member in round_.members:
        print(f"  {member.name:8} on devices {', '.join(map(str, member.devices))}")
