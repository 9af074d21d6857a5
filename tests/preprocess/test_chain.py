"""A source and its transforms, one sample at a time."""

import threading

import numpy as np

from preprocess.base import AUGMENT
from preprocess.chain import Chain, _Generators, count_common
from preprocess.transforms import parse_transforms
from preprocess.transforms.decoding import with_full_decoding
from tests.preprocess.samples import Memory, pattern


def test_chain_reset_generator_equals_a_new_one():
    generators = _Generators(seed=2**63)
    for epoch, index in [(0, 0), (5, 123_456_789), (0, 0)]:
        fresh = np.random.Philox(
            key=np.array([2**63, AUGMENT], np.uint64),
            counter=np.array([0, 0, index, epoch], np.uint64),
        )
        made_draws, set_draws = np.random.Generator(fresh), generators.at(epoch, index)
        assert set_draws.random(5).tolist() == made_draws.random(5).tolist()
        assert (
            set_draws.integers(7, size=3, dtype=np.int32).tolist()
            == made_draws.integers(7, size=3, dtype=np.int32).tolist()
        )


def test_generators_are_thread_local():
    alone, shared = _Generators(seed=1).at(2, 3), _Generators(seed=1)
    expected = alone.random(4).tolist()
    generator = shared.at(2, 3)
    drawn = generator.random(2).tolist()
    thread = threading.Thread(target=lambda: shared.at(5, 6).random(3))
    thread.start()
    thread.join()
    assert drawn + generator.random(2).tolist() == expected


def test_decode_shrinks_a_jpeg_only_for_the_next_transform(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "preprocess.transforms.decoding.decode",
        lambda data, mode, at_least, bits: sizes.append(at_least and at_least(64, 64))
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
    assert sizes == [(8, 8), (4, 6), None, None, None, (16, 16)]


def test_decoded_size_does_not_depend_on_the_fixed_part(
    monkeypatch,
):
    sizes = []
    monkeypatch.setattr(
        "preprocess.transforms.decoding.decode",
        lambda data, mode, at_least, bits: sizes.append(at_least(64, 64)) or pattern(64, 64),
    )
    transforms = parse_transforms(["decode", {"resize": {"size": 8}}])
    for fixed in (None, 1, 2):
        Chain(Memory([b"a file"]), transforms, seed=7, fixed=fixed).prepare(0)
    Chain(Memory([b"a file"]), transforms[:1], seed=7).prepare(0)
    assert sizes == [(8, 8)] * 4


def test_count_common_is_zero_for_different_decodes():
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
