"""Simulate how long an ensemble takes under each policy, and the lower bound.

python examples/simulate.py
"""

from fleet.scheduler.base import Cluster, Options
from fleet.scheduler.ensemble.policies import POLICIES
from fleet.scheduler.simulation.draw import generate
from fleet.scheduler.simulation.ensemble import simulate

ensemble = generate(networks=30, seed=1)  # rates and epochs like those of the paper's networks
cluster = Cluster.of(gpus=16, gpus_per_node=4)

for policy in POLICIES.values():
    run = simulate(ensemble, cluster, policy, Options())
    print(
        f"{policy.name:11s} {run.makespan_s / 3600:5.2f} h, "
        f"{run.makespan_s / run.lower_bound_s:.2f} of the least possible; a GPU waits "
        f"{run.waiting_s_per_gpu / run.makespan_s:3.0%} of the time"
    )
