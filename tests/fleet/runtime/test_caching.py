"""The choice of a cache for decoded samples, and its reason."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.events import CacheChosen
from fleet.runtime.startup.caching import HostResources, choose_cache, file_bytes, memory_bytes
from fleet.runtime.startup.data import open_inputs
from fleet.spec import parse
from launch.errors import InputError
from preprocess.sample import ArraySpec
from tests.sources import Numbered

NOISE = ["decode", "tests.sources:noise"]
RESOURCES = HostResources(preprocessors=1, trainers=2)
ROW, SAMPLES, VALIDATION = 48, 60, 20  # bytes of an image; plain labels are not counted


def spec(models=({"family": "softmax"},), **parts):
    data = {
        "source": "tests.sources:numbered",
        "path": str(SAMPLES),
        "transforms": NOISE,
        **parts.pop("data", {}),
    }
    return parse(
        {
            "models": list(models),
            "data": data,
            "resources": {"engine": "numpy"},
            "train": {"batch": {"size": 8}},
            **parts,
        }
    )


def chosen(
    resources=RESOURCES, before=None, fixed_s=1e-4, varying_s=1e-5, shape=(4, 4, 3), **parts
):
    """Choose a cache.

    Args:
        before: the choice of an earlier launch.
        fixed_s: seconds of a sample up to its first random transform.
        varying_s: seconds of its remaining transforms.
        shape: shape of a stored sample; None if samples differ.
    """
    settings = spec(**parts)
    opened = open_inputs(settings)
    reason = "" if shape else "a is 6 x 6 and b 4 x 4 before the first random transform"
    probes = {
        name: dataclasses.replace(
            probe,
            fixed_s=fixed_s,
            varying_s=varying_s,
            stored=shape and ArraySpec(shape, "uint8"),
            not_stored_reason=reason,
        )
        for name, probe in opened.probes.items()
    }
    earlier = None if before is None else CacheChosen(before, "auto", "", 0, "network")
    return choose_cache(settings, dataclasses.replace(opened, probes=probes), resources, earlier)


def test_cache_keeps_samples_that_fit_in_memory():
    results = chosen()
    assert (results.cache, results.asked, results.nbytes) == ("memory", "auto", SAMPLES * ROW)
    assert results.why == "60 samples take 2.88 kB of a window of 2 GB"


@pytest.mark.parametrize(
    ("window", "cache"),
    [
        ((SAMPLES + VALIDATION) * ROW * 4 // 3 + 1, "memory"),
        ((SAMPLES + VALIDATION) * ROW * 4 // 3 - 1, "none"),
    ],
)
def test_cache_leaves_a_quarter_of_the_window_free(window, cache):
    choice = chosen(data={"shared_memory": window})
    assert choice.cache == cache
    assert (
        "decoded take 3.84 kB with validation samples, too much for a window of 5.12 kB"
        in choice.why
    ) == (cache == "none")


def test_cache_considers_memory_used_by_others():
    results = chosen(dataclasses.replace(RESOURCES, shared_free=4500))
    assert results.cache == "none"
    assert "too much for 4.5 kB of free memory" in results.why


@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.integers(0, 9), st.booleans())
def test_cache_of_a_ring_is_never_memory(fixed_s, varying_s, preprocessors, is_crowded):
    resources = HostResources(preprocessors, 3, is_crowded)
    results = chosen(resources, fixed_s=fixed_s, varying_s=varying_s, data={"order": "ring"})
    assert results.cache != "memory"
    assert results.why.startswith("order: ring is for data sets larger than the memory")


def test_cache_refuses_samples_of_varying_shape():
    results = chosen(shape=None, fixed_s=1.0)
    assert (results.cache, results.nbytes) == ("none", 0)
    assert results.why == "samples differ: a is 6 x 6 and b 4 x 4 before the first random transform"


@pytest.mark.parametrize(
    ("resources", "varying_s", "cache"),
    [
        # a trainer augments as fast as the only preprocessor
        (HostResources(1, 4), 5e-3, "memory"),
        (HostResources(8, 4), 5e-3, "none"),
        (HostResources(8, 4), 5e-4, "memory"),
        (HostResources(1, 4, is_crowded=True), 5e-3, "memory"),  # augmented once on the node
        (HostResources(1, 4, is_crowded=True, shared_free=9000), 5e-3, "none"),
        (HostResources(0, 4, is_crowded=True), 5e-3, "memory"),
    ],
)
def test_cache_shares_slow_random_transforms(resources, varying_s, cache):
    results = chosen(resources, fixed_s=1e-3, varying_s=varying_s)
    assert results.cache == cache
    assert (
        "random transforms take 5 ms per sample, which each network would repeat" in results.why
    ) == (cache == "none")


EPOCH = SAMPLES * (ROW + 1)  # augmented samples and their mask


@pytest.mark.parametrize(
    ("room", "cache"), [(10, "memory"), (7, "memory"), (6, "none"), (0, "none")]
)
def test_cache_finishes_fitting_epochs_once_for_crowded_trainers(room, cache):
    """Augmenting in four trainers costs 1 + 3 x (10 - room) / 10 times; the limit is two."""
    window = (SAMPLES + VALIDATION) * ROW + room * EPOCH + 1
    results = chosen(
        HostResources(1, 4, is_crowded=True),
        fixed_s=5e-3,
        varying_s=5e-3,
        data={"shared_memory": max(window, 4 * (SAMPLES + VALIDATION) * ROW // 3 + 1)},
        train={"batch": {"size": 8}, "stopping": {"max_epochs": 10}},
    )
    assert results.cache == cache


WIDE = {"data": {"shared_memory": "2kB"}}  # not in memory


def test_cache_auto_chooses_file_for_slow_decoding():
    results = chosen(fixed_s=0.04, **WIDE)
    assert (results.cache, results.nbytes) == ("file", (SAMPLES + VALIDATION) * ROW)
    assert results.why.endswith(
        "in a file they take 3.84 kB, which saves 40 ms of decoding per sample in every epoch"
    )
    assert results.is_temporary


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"fixed_s": 1.5e-4}, "0.15 ms of decoding per sample is too little for a file"),
        (
            {"fixed_s": 0.04, "train": {"batch": {"size": 8}, "stopping": {"max_epochs": 4}}},
            "40 ms of decoding per sample is too little",
        ),
        (
            {"fixed_s": 0.04, "resources": dataclasses.replace(RESOURCES, preprocessors=50)},
            "40 ms of decoding per sample is too little",
        ),
        (
            {"fixed_s": 0.04, "resources": dataclasses.replace(RESOURCES, disk_free=1500)},
            "too much for 1.5 kB of free disk",
        ),
        (
            {"fixed_s": 0.04, "checkpoint": {"quota": "1kB"}},
            "too much with the checkpoints for checkpoint.quota: 1 kB",
        ),
        (
            {
                "fixed_s": 0.04,
                "models": [{"build": "tests.sources:zeros"}],
                "checkpoint": {"quota": "1TB"},
            },
            "it is unknown how much of checkpoint.quota the checkpoints take",
        ),
        (
            {
                "fixed_s": 0.04,
                "data": {"shared_memory": "1kB", "transforms": ["tests.sources:noise"]},
            },
            "no transform is the same in every epoch",
        ),
    ],
)
def test_cache_uses_no_file_without_room_or_gain(parts, words):
    results = chosen(**{**WIDE, **parts})
    assert results.cache == "none"
    assert words in results.why


def test_cache_of_each_trainer_must_fit_as_many_times():
    room = 2 * SAMPLES * ROW + VALIDATION * ROW
    assert chosen(HostResources(0, 2), data={"shared_memory": 2 * room}).nbytes == 2 * SAMPLES * ROW
    assert chosen(HostResources(0, 3), data={"shared_memory": room}).cache == "none"


@pytest.mark.parametrize("cache", ["none", "memory", "file"])
def test_cache_of_the_spec_is_used(cache):
    results = chosen(fixed_s=1.0, data={"cache": cache})
    assert (results.cache, results.asked, results.why, results.is_temporary) == (
        cache,
        cache,
        "as requested by the spec",
        False,
    )


def test_cache_of_own_samples_needs_room():
    results = chosen(HostResources(0, 2), data={"cache": "memory", "shared_memory": "1kB"})
    assert (results.cache, results.asked) == ("none", "memory")


@pytest.mark.parametrize(
    ("before", "cache"), [("none", "none"), ("memory", "memory"), ("file", "file")]
)
def test_cache_of_the_previous_launch_is_kept(before, cache):
    results = chosen(before=before)
    assert (results.cache, results.why) == (cache, "as in the previous launch")


def test_cache_choice_is_dropped_once_impossible():
    assert chosen(before="memory", **WIDE).cache == "none"
    # not a file, which may lack samples that could not be read
    assert chosen(before="memory", fixed_s=1.0, **WIDE).cache == "none"
    small_disk = dataclasses.replace(RESOURCES, disk_free=100)
    assert chosen(small_disk, before="file", **WIDE).cache == "none"


def test_masks_and_weights_take_room_as_well():
    settings = parse(
        {
            "models": [{"family": "softmax"}],
            "resources": {"engine": "numpy"},
            "data": {
                "source": f"{__name__}:weighed",
                "path": "60",
                "transforms": [],
                "validation": None,
            },
        }
    )
    opened = open_inputs(settings)
    row = 16 + opened.sample.target.wire.itemsize
    assert memory_bytes(opened, RESOURCES) == file_bytes(opened) == SAMPLES * row > SAMPLES * 16


def weighed(path):
    source = Numbered(int(path), seed=1)
    source.weights = source.labels / 2
    return source


def test_cache_file_stores_samples_of_all_splits():
    opened = open_inputs(spec())
    assert {name: entry.stored for name, entry in opened.keeping("memory").samples.items()} == {
        "train": ArraySpec((4, 4, 3), "uint8"),
        "validation": None,
    }
    assert None not in [entry.stored for entry in opened.keeping("file").samples.values()]
    torn = dataclasses.replace(opened.probes["train"], stored=None, not_stored_reason="they differ")
    with pytest.raises(InputError, match="they differ"):
        dataclasses.replace(opened, probes={"train": torn}).keeping("memory")
