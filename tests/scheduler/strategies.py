"""Random ensembles and clusters for property tests of scheduling."""

from hypothesis import strategies as st

from scheduler.base import Cluster, Network, RateTable

RATES = st.floats(0.5, 200.0, allow_nan=False).map(lambda rate: round(rate, 3))


@st.composite
def networks(draw, index, gpus, bounded=True):
    low = draw(st.integers(1, min(2, gpus))) if bounded else 1
    high = draw(st.none() | st.integers(low, gpus)) if bounded else None
    return Network(
        f"n{index}",
        tuple(draw(st.lists(RATES, min_size=1, max_size=6))),
        epochs=draw(st.integers(1, 4)),
        min_gpus=low,
        max_gpus=high,
    )


@st.composite
def ensembles(draw, most_networks=6, most_gpus=10, bounded=True):
    """Draw a rate table and a cluster that fits every network; rates may fall, jump and repeat."""
    gpus = draw(st.integers(1, most_gpus))
    per_node = draw(st.integers(1, min(gpus, 4)))
    count = draw(st.integers(1, most_networks))
    table = RateTable(100, per_node, tuple(draw(networks(i, gpus, bounded)) for i in range(count)))
    return table, Cluster.of(gpus, per_node)
