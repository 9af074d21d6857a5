"""A source and its transforms, one sample at a time."""

import threading

import numpy as np

from preprocess.base import AUGMENT
from preprocess.chain import Chain, _Generators, count_common
from preprocess.transforms import parse_transforms
from preprocess.transforms.decoding import with_full_decoding
from tests.preprocess.samples import Memory, pattern


def test_a_generator_that_is_set_equals_one_that_is_made():
    generators = _Generators(seed=2**63)
    for epoch, index in [(0, 0), (5, 123_456_789), (0, 0)]:
        made = np.random.Philox(
            key=np.array([2**63, AUGMENT], np.uint64),
            counter=np.array([0, 0, index, epoch], np.uint64),
        )
        made_draws, set_draws = np.random.Generator(made), generators.at(epoch, index)
        assert set_draws.random(5).tolist() == made_draws.random(5).tolist()
        assert (
            set_draws.integers(7, size=3, dtype=np.int32).tolist()
            == made_draws.integers(7, size=3, dtype=np.int32).tolist()
        )


def test_a_generator_is_not_changed_by_another_thread_between_two_draws():
    alone, shared = _Generators(seed=1).at(2, 3), _Generators(seed=1)
    expected = alone.random(4).tolist()
    mine = shared.at(2, 3)
    drawn = mine.random(2).tolist()
    other = threading.Thread(target=lambda: shared.at(5, 6).random(3))
    other.start()
    other.join()
    assert drawn + mine.random(2).tolist() == expected


def test_a_jpeg_is_decoded_small_only_for_a_transform_that_makes_it_smaller_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "preprocess.transforms.decoding.decode",
        lambda data, mode, at_least, bits: asked.append(at_least and at_least(64, 64))
        or pattern(64, 64),
    )
    for following in (
        [{"resize": {"size": 8}}],
        [{"resize": {"size": [4, 6]}}],
        [{"center_crop": {"size": [8, 8]}}],
        [{"center_crop": {"size": [32, 32]}}, {"resize": {"size": 8}}],
        [],
        [{"random_resized_crop": {"size": 8, "scale": [0.25, 1.0], "ratio": [1.0, 1.0]}}],
    ):
        Chain(Memory([b"a file"]), parse_transforms(["decode", *following]), seed=7).prepare(0)
    assert asked == [(8, 8), (4, 6), None, None, None, (16, 16)]


def test_how_small_a_jpeg_is_decoded_is_a_matter_of_its_own_transforms_wherever_they_are_divided(
    monkeypatch,
):
    asked = []
    monkeypatch.setattr(
        "preprocess.transforms.decoding.decode",
        lambda data, mode, at_least, bits: asked.append(at_least(64, 64)) or pattern(64, 64),
    )
    transforms = parse_transforms(["decode", {"resize": {"size": 8}}])
    for fixed in (None, 1, 2):
        Chain(Memory([b"a file"]), transforms, seed=7, fixed=fixed).prepare(0)
    Chain(Memory([b"a file"]), transforms[:1], seed=7).prepare(0)
    assert asked == [(8, 8)] * 4


def test_lists_that_decode_in_different_ways_have_nothing_in_common():
    small, tiny, plain = (
        parse_transforms(["decode", *more])
        for more in (
            [{"resize": {"size": 8}}],
            [{"resize": {"size": 4}}],
            [{"center_crop": {"size": [8, 8]}}],
        )
    )
    assert (
        count_common([small, tiny])
        == count_common([small, plain])
        == count_common([tiny, plain[:1]])
        == 0
    )
    assert count_common([small, small]) == count_common([small, (*small, *plain[1:])]) == 2
    assert count_common([plain, plain[:1]]) == 1
    assert count_common([with_full_decoding(small), with_full_decoding(tiny)]) == 1
