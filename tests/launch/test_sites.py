"""Known machines, and machines that users describe."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from launch.place import parse_cpus
from launch.sites import SITES, Site, parse_site, places
from tests.refusals import refused

CORES = {"summit": 42, "frontier": 56, "perlmutter": 64, "polaris": 32, "aurora": 96}


@pytest.mark.parametrize("name", CORES)
def test_places_give_each_core_to_one_rank(name):
    site = SITES[name]
    values = [cpu for text in places(site, site.ranks, name) for cpu in parse_cpus(text)]
    assert len(values) == len(set(values)) == CORES[name]


@given(gpus=st.integers(1, 8), cores=st.integers(2, 9), data=st.data())
def test_places_give_preprocessors_one_core_each(gpus, cores, data):
    ranks = data.draw(st.integers(gpus + 1, gpus * cores))
    near = tuple(f"{gpu * cores}-{(gpu + 1) * cores - 1}" for gpu in range(gpus))
    cpus = [
        parse_cpus(text) for text in places(Site(gpus=gpus, ranks=ranks, cpus=near), ranks, "here")
    ]
    preparing, training = cpus[:-gpus], cpus[-gpus:]
    assert len(cpus) == ranks
    assert all(len(entry) == 1 for entry in preparing)
    assert all(
        set(own_cores) <= set(parse_cpus(text))
        for own_cores, text in zip(training, near, strict=True)
    )
    assert sorted(cpu for entry in cpus for cpu in entry) == list(range(gpus * cores))
    sizes = [len(own_cores) for own_cores in training]
    assert max(sizes) - min(sizes) <= 1


@given(gpus=st.integers(1, 4), slots=st.integers(1, 3), data=st.data())
def test_places_of_trainers_on_one_gpu_are_the_same_cores(gpus, slots, data):
    preparing = data.draw(st.integers(1, 7 * gpus))
    near = tuple(f"{gpu * 8}-{gpu * 8 + 7}" for gpu in range(gpus))
    trainers = gpus * slots
    cpus = places(Site(gpus=gpus, cpus=near), preparing + trainers, "here", trainers)
    assert len(cpus) == preparing + trainers
    assert cpus[preparing:] == cpus[preparing : preparing + gpus] * slots
    assert sorted(cpu for text in cpus[: preparing + gpus] for cpu in parse_cpus(text)) == list(
        range(8 * gpus)
    )


def test_places_leave_ranks_unbound_without_cpus():
    assert places(Site(gpus=4, ranks=8), 8, "here") == ()


def test_parse_site_inherits_from_its_base():
    site = parse_site(
        {"base": "perlmutter", "ranks": 8, "directives": ["--constraint=gpu&hbm80g"]}, "own.yaml"
    )
    assert (site.system, site.gpus, site.ranks, site.cpus) == (
        "slurm",
        4,
        8,
        SITES["perlmutter"].cpus,
    )
    assert site.directives == ("--constraint=gpu&hbm80g",)


def test_parse_site_lists_keys_and_defaults_for_an_unknown_key():
    with pytest.raises(InputError) as caught:
        parse_site({"gpu": 4}, "own.yaml")
    text = str(caught.value)
    assert text.startswith("own.yaml: 'gpu' is unknown; there are, with their defaults\n")
    assert {line.split(":")[0].strip() for line in text.splitlines()[1:]} == {
        "base",
        *Site.__dataclass_fields__,
    }
    assert "  ranks: 4" in text.splitlines()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"base": "summitt"}, "base: 'summitt' is unknown; there are generic, summit"),
        ({"system": "sge"}, "system: 'sge' is unknown; there are slurm"),
        ({"gpus": "4"}, "gpus: '4' should be a whole number from 0 to 1024"),
        ({"ranks": True}, "ranks: True should be a whole number from 1"),
        ({"gpus": 4, "ranks": 4}, "it should be 5 at least"),
        ({"launcher": 3}, "launcher: 3 should be a string"),
        ({"launcher": "srun -n {rank}"}, "may have braces only around {gpus}, {nodes}, {ranks}"),
        ({"launcher": "srun -n {ranks:>9999999999}"}, "may have braces only around"),
        ({"launcher": "srun -n {ranks.__class__}"}, "may have braces only around"),
        ({"launcher": "srun -n {"}, "may have braces only around"),
        ({"resources": ["{0}"]}, "may have braces only around"),
        ({"queue_option": "--qos={nodes}"}, "may have braces only around {}"),
        ({"base": ["generic"]}, "base: ['generic'] is unknown"),
        (
            {"gpus": 1, "ranks": 2, "cpus": ["0-99999999999"]},
            "'0-99999999999' is not a list of CPUs",
        ),
        ({"setup": "module load x"}, "setup: 'module load x' should be a list of strings"),
        ({"setup": ["a\nb"]}, "should not contain line breaks"),
        (
            {"gpus": 2, "ranks": 3, "cpus": ["0-3"]},
            "cpus should have a list for each of its GPUs, 2, not 1",
        ),
        ({"gpus": 2, "ranks": 3, "cpus": ["0-3", "3-6"]}, "a CPU is in two lists"),
        ({"gpus": 1, "ranks": 4, "cpus": ["0,1"]}, "ranks: 4 are more than the 2 cores of a node"),
        ({"gpus": 1, "ranks": 2, "cpus": ["0-x"]}, "'0-x' is not a list of CPUs"),
    ],
    ids=str,
)
def test_parse_site_names_what_is_wrong(content, message):
    with refused(InputError, message):
        parse_site(content, "own.yaml")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["base", *Site.__dataclass_fields__]) | st.text(), values, max_size=4
    )
)
def test_parse_site_accepts_or_refuses_any_content(content):
    with contextlib.suppress(InputError):
        assert isinstance(parse_site(content, "own.yaml"), Site)
