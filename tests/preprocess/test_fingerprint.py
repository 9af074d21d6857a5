"""The identity of data: independent of its location, different after changes; and stable sides."""

import io
import itertools

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import InputError
from preprocess import fingerprint
from preprocess import fingerprint as fp
from preprocess.base import RandomAccess
from preprocess.source import assign_folds, open_per_target, split
from tests.preprocess.records import labelled, write_records, write_tar


class Listed(RandomAccess):
    """A source of listed samples: (name, class)."""

    samples = ()

    def __init__(self, by_content, groups):
        names, labels = zip(*self.samples, strict=True)
        self.names, self.labels, self.classes = names, np.array(labels), ("a", "b", "c")
        self._by_content = by_content
        if groups:
            self.groups = np.array([len(name) and ord(name[0]) % 5 for name in names])

    def read(self, index):
        return np.full((2, 2, 1), index, np.uint8)

    def name(self, index):
        return self.names[index]

    def sample_ids(self):
        return fp.SampleIds(fp.hash_each(self.names), by_content=self._by_content)


def listed(path, by_content=False, groups=False):
    return Listed(by_content, groups)


def opened(samples, before, validation=0.2, test=None, **options):
    Listed.samples = samples
    (data,), fingerprint = open_per_target(
        f"{__name__}:listed", "x", validation, 3, options, test, (None,), "as ever", before
    )
    return data, fingerprint


def named(part):
    return {part.name(index) for index in range(len(part))}


NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=60, max_size=90, unique=True)


@given(NAMES, st.data(), st.booleans(), st.booleans())
def test_samples_keep_their_side_when_others_change(names, draw, by_content, groups):
    """If samples are identified by content, a new one may replace an equal one that was removed."""
    samples = [(name, ord(name[-1]) % 3) for name in names]
    options = {"by_content": by_content, "groups": groups, "test": 0.2}
    began = draw.draw(st.integers(40, len(samples)))
    old, before = opened(samples[:began], None, **options)
    removed = draw.draw(st.sets(st.integers(0, began - 1), max_size=10))
    now = draw.draw(
        st.permutations([sample for index, sample in enumerate(samples) if index not in removed])
    )
    try:
        new, after = opened(now, before, **options)
    except InputError as error:  # for example, all held-out groups were removed
        assert "start over with --fresh" in str(error)  # noqa: PT017
        return
    for earlier, later in itertools.permutations(new.splits(), 2):
        assert named(old.splits()[earlier]).isdisjoint(named(new.splits()[later]))
    if groups:
        assert {*new.train.groups}.isdisjoint(new.validation.groups)
    again, _ = opened(now, after, **options)
    assert {part: named(source) for part, source in again.splits().items()} == {
        part: named(source) for part, source in new.splits().items()
    }


@given(NAMES, st.integers(40, 60), st.sampled_from([0.1, 0.2, 0.5]))
def test_new_samples_are_divided_by_the_requested_share(names, began, share):
    samples = [(name, ord(name[-1]) % 3) for name in names]
    old, before = opened(samples[:began], None, share)
    new, _ = opened(samples, before, share)
    assert len(new.validation) - len(old.validation) == round(share * (len(names) - began))


@given(NAMES, st.integers(2, 5))
def test_fingerprint_keeps_folds_and_balances_new_samples(names, folds):
    Listed.samples = samples = [(name, ord(name[-1]) % 3) for name in names]
    source = listed("")
    previous = np.full(len(samples), -1)
    Listed.samples = samples[:40]
    previous[:40] = assign_folds(listed(""), folds, 1)
    folds_now = assign_folds(source, folds, 1, previous)
    assert folds_now[:40].tolist() == previous[:40].tolist()
    sizes = np.bincount(folds_now, minlength=folds)
    assert sizes.max() - sizes.min() <= 2
    assert (
        assign_folds(source, folds, 1, np.full(len(samples), -1)).tolist()
        == assign_folds(source, folds, 1).tolist()
    )


def test_fingerprint_refuses_removal_of_a_whole_side():
    samples = [(f"{number}", 0) for number in range(10)]
    old, before = opened(samples, None)
    with pytest.raises(
        InputError,
        match="every sample that was held out for validation has been removed; start over with",
    ):
        opened([sample for sample in samples if sample[0] not in named(old.validation)], before)


def test_fingerprint_divides_again_with_other_settings():
    samples = [(f"{number}", number % 3) for number in range(30)]
    Listed.samples = samples
    _, before = opened(samples, None)
    (data,), _ = open_per_target(
        f"{__name__}:listed", "x", 0.5, 4, {}, None, (None,), "otherwise", before
    )
    expected, _ = split(listed(""), 0.5, 4)
    assert named(data.train) == named(expected)


def marks(*names, **more):
    return fp.SampleIds(fp.hash_each(names), by_content=True, unit="row", **more)


@pytest.mark.parametrize(
    ("now", "matches"),
    [
        ("abcd", [0, 1, 2, 3]),
        ("xabcd", [-1, 0, 1, 2, 3]),
        ("abxd", [0, 1, 2, 3]),
        ("abxyd", [0, 1, -1, -1, 3]),
        ("dcba", [3, 2, 1, 0]),
        ("aabcd", [0, 0, 1, 2, 3]),
        ("wxyz", [0, 1, 2, 3]),
        ("ad", [0, 3]),
    ],
)
def test_match_samples_by_content(now, matches):
    """An edited row keeps its place, and a second row like it belongs to the first."""
    assert fp.match_samples(marks(*"abcd"), marks(*now)).tolist() == matches


def test_fingerprint_counts_a_duplicate_row_as_new():
    words = fp.compare_fingerprints(
        fp.Fingerprint({"train": marks(*"abc")}), fp.Fingerprint({"train": marks(*"abca")})
    )
    assert words == {"train": ["1 row more"]}


def test_read_fingerprint_returns_what_was_written(tmp_path):
    samples = [(f"{number}", number % 3) for number in range(12)]
    _, written = opened(samples, None)
    with open(tmp_path / "data.npz", "wb") as file:
        fp.write_fingerprint(file, written)
    again = fp.read_fingerprint(tmp_path / "data.npz")
    assert (again.digest, again.division, again.sides.tolist()) == (
        written.digest,
        "as ever",
        written.sides.tolist(),
    )
    assert fp.compare_fingerprints(written, again) == {}
    (tmp_path / "data.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:-30])
    assert fp.read_fingerprint(tmp_path / "data.npz") is None
    assert fp.read_fingerprint(tmp_path / "other.npz") is None


# ---- the sources -------------------------------------------------------------------------------

IMAGES = np.arange(10 * 16, dtype=np.uint8).reshape(10, 4, 4, 1)
LABELS = np.arange(10) % 2


def write_npz(folder, images, labels):
    np.savez(folder / "x.npz", x=images, y=labels)
    return "npz", folder / "x.npz"


def write_npy(folder, images, labels):
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", labels)
    return "npy", folder


def write_hdf5(folder, images, labels):
    with h5py.File(folder / "x.h5", "w") as file:
        file["images"], file["labels"] = images, labels
    return "hdf5", folder / "x.h5"


def as_file(image):
    file = io.BytesIO()
    np.save(file, image)
    return file.getvalue()


def write_shard(folder, images, labels):
    write_tar(
        folder / "x.tar",
        [
            (f"{number}.{key}", content)
            for number, (image, label) in enumerate(zip(images, labels, strict=True))
            for key, content in (("npy", as_file(image)), ("cls", str(label).encode()))
        ],
    )
    return "webdataset", folder / "x.tar"


def write_tfrecord(folder, images, labels):
    write_records(
        folder / "x.tfrecord",
        *(
            labelled(as_file(image), int(label))
            for image, label in zip(images, labels, strict=True)
        ),
    )
    return "tfrecord", folder / "x.tfrecord"


def write_huggingface(folder, images, labels):
    datasets = pytest.importorskip("datasets")
    rows = {"image": images.tolist(), "label": labels.tolist()}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "x")
    return "huggingface", folder / "x"


def write_masks(folder, images, labels):
    for name, arrays in (
        ("images", images),
        ("masks", labels[:, None, None] * (images[..., 0] > 50)),
    ):
        (folder / name).mkdir()
        for number, array in enumerate(arrays):
            path = folder / name / f"{number}.npy"
            path.write_bytes(as_file(array))
            if name == "images":
                path.rename(path.with_suffix(".png"))  # not decoded here
    return "image_folder", folder


SOURCES = [write_npz, write_npy, write_hdf5, write_shard, write_tfrecord, write_huggingface]


def fingerprint_of(write, folder, images=IMAGES, labels=LABELS):
    folder.mkdir()
    source, path = write(folder, images, labels)
    return open_per_target(source, str(path), None, 0, {}, None, (None,), "", None)[1]


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("write", SOURCES)
def test_fingerprint_depends_on_content_not_location(tmp_path, monkeypatch, write, is_large):
    if is_large:
        for module in (
            fingerprint,
            __import__("preprocess.sources.shards", fromlist=["FULL_READ_BYTES"]),
        ):
            monkeypatch.setattr(module, "FULL_READ_BYTES", 0)
    before = fingerprint_of(write, tmp_path / "before")
    assert fingerprint_of(write, tmp_path / "moved").digest == before.digest

    def words(folder, *data):
        return fp.compare_fingerprints(before, fingerprint_of(write, tmp_path / folder, *data)).get(
            "train", []
        )

    changed = IMAGES.copy()
    changed[4, 2, 2] += 1
    (unit,) = {part.unit for part in before.splits.values()}
    assert words("repainted", changed) == [f"content of 1 of 10 {unit}s differs"]
    assert words("turned", IMAGES, 1 - LABELS) == [f"classes of 10 of 10 {unit}s differ"]
    assert words("longer", np.concatenate([IMAGES, IMAGES[:1] + 99]), np.append(LABELS, 1)) == [
        f"1 {unit} more in class 1"
    ]
    inserted = words("inserted", np.insert(IMAGES, 5, 99, axis=0), np.insert(LABELS, 5, 1))
    assert (f"1 {unit} more in class 1" in inserted) or is_large  # these are identified by position


def test_masks_are_looked_at(tmp_path):
    before = fingerprint_of(write_masks, tmp_path / "before")
    labels = LABELS.copy()
    labels[5] = 0
    after = fingerprint_of(write_masks, tmp_path / "after", labels=labels)
    assert fp.compare_fingerprints(before, after) == {"train": ["masks of 1 of 10 files differ"]}


def test_hash_files_selects_the_same_files_of_many(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "FULL_READ_FILES", 0)
    monkeypatch.setattr(fingerprint, "CONTENT_SAMPLES", 5)
    monkeypatch.setattr(fingerprint, "SIZED_FILES", 8)
    paths = [tmp_path / f"{number}" for number in range(20)]
    for path in paths:
        path.write_bytes(b"abc")
    names = [path.name for path in paths]
    first = fingerprint.hash_files(fp.hash_each(names), list(map(str, paths)))
    assert [(seen != fingerprint.NOT_READ).sum() for seen in first.values()] == [8, 5]
    assert [
        seen.tolist()
        for seen in fingerprint.hash_files(fp.hash_each(names), list(map(str, paths))).values()
    ] == [seen.tolist() for seen in first.values()]


class Own:
    """A source that provides its own fingerprint."""

    version = 1

    def fingerprint(self):
        return f"version {self.version}"

    def __len__(self):
        return 4

    labels, classes = [0, 1, 0, 1], ["a", "b"]

    def read(self, index):
        return np.zeros((2, 2, 1), np.uint8)

    def name(self, index):
        return f"x/{index}"

    def order(self, seed, epoch):
        return np.arange(4)


def custom(path):
    return Own()


def test_fingerprint_of_a_custom_source(monkeypatch):
    def now(path="x"):
        return open_per_target(f"{__name__}:custom", path, None, 0, {}, None, (None,), "", None)[1]

    before = now()
    monkeypatch.setattr(Own, "version", 2)
    assert fp.compare_fingerprints(before, now()) == {
        "train": ["fingerprint: version 1 -> version 2"]
    }
    monkeypatch.setattr(Own, "name", lambda self, index: f"elsewhere/{index}")
    monkeypatch.setattr(Own, "version", 1)
    assert now("elsewhere").digest == before.digest
