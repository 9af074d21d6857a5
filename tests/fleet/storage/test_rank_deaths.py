"""Deaths of ranks, and the networks that they are attributed to."""

import pytest

from fleet.domain.network import death_failure_reason
from fleet.storage.paths import RunPaths
from fleet.storage.rank_deaths import RankDeaths, RankMarker, claim_death, find_marked


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def mark(paths, rank, network):
    marker = RankMarker(paths, rank, "node")
    marker.set(network)
    return marker


def collect_deaths(paths, *names, epochs=0):
    deaths = RankDeaths(paths, 2)
    deaths.collect()
    assert not list(paths.training.iterdir())
    return {name: [death.how for death in deaths.deaths_of(name, epochs)] for name in names}


def test_claimed_death_blames_one_network(paths):
    mark(paths, 1, "a")
    mark(paths, 2, "b")
    assert (claim_death(paths, 2), claim_death(paths, 2), claim_death(paths, 3)) == ("b", "", "")
    assert collect_deaths(paths, "a", "b") == {"a": [], "b": ["rank 2 on node died"]}


def test_deaths_of_one_group_count_once(paths):
    for rank in (1, 2):
        mark(paths, rank, "a")
        claim_death(paths, rank)
    assert collect_deaths(paths, "a") == {"a": ["rank 1 on node and rank 2 on node died"]}


@pytest.mark.parametrize(("networks", "deaths"), [(["a"], 1), (["a", "a"], 1), (["a", "b"], 0)])
def test_unclaimed_deaths_count_for_single_network(paths, networks, deaths):
    for rank, network in enumerate(networks):
        mark(paths, rank, network)
    assert len(collect_deaths(paths, "a")["a"]) == deaths


def test_launch_killed_with_rank_zero_blames_no_network(paths):
    RankMarker(paths, 0, "node").set()
    mark(paths, 1, "a")
    assert collect_deaths(paths, "a") == {"a": []}


def test_closed_marker_leaves_no_file(paths):
    marker = mark(paths, 1, "a")
    marker.close()
    marker.set("b")
    paths.training.mkdir(exist_ok=True)
    assert collect_deaths(paths, "a", "b") == {"a": [], "b": []}


def test_death_counts_until_next_finished_epoch(paths):
    for _ in range(2):
        mark(paths, 1, "a")
        result = collect_deaths(paths, "a", epochs=3)
    assert len(result["a"]) == 2
    deaths = RankDeaths(paths, 2)
    assert "max_deaths: 2" in death_failure_reason(deaths.deaths_of("a", 3), 2)
    assert deaths.deaths_of("a", 4) == []


def test_collect_attributes_only_the_taken_network(paths):
    dead = RunPaths(paths.root, "job-1")
    mark(dead, 0, "a")
    mark(RunPaths(paths.root, "job-2"), 0, "b")
    deaths = RankDeaths(RunPaths(paths.root, "job-3"), 2)
    deaths.collect("a")
    assert [len(deaths.deaths_of(name, 0)) for name in "ab"] == [1, 0]
    assert [path.name for path in paths.training.iterdir()] == ["job-2.rank-000.json"]


def test_marked_networks_are_those_of_other_launches(paths):
    for launch, network in (("node0-1", "a"), ("node1-2", "b")):
        mark(RunPaths(paths.root, launch), 1, network)
    assert find_marked(RunPaths(paths.root, "node1-2")) == {"a"}
