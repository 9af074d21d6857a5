"""Folders of images, one folder per class."""

import os

import numpy as np
import pytest

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.decode import decode
from preprocess.source import open_data
from preprocess.sources.files import NamedFiles
from preprocess.sources.image_folder import ImageFolder, describe_unread, open_image_folder
from tests.preprocess.samples import encode, pattern, write


def test_classes_and_files_come_in_alphabetical_order(folder):
    source = ImageFolder(folder)
    assert source.classes == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [source.name(index).removeprefix(f"{folder}/") for index in (0, 2, 3, 7)] == [
        "cat/0.png",
        "cat/2.png",
        "dog/0.png",
        "dog/4.png",
    ]


def test_image_folder_sample_is_the_bytes_of_its_file(folder):
    assert ImageFolder(folder).read(4) == (folder / "dog/1.png").read_bytes()


def test_folders_below_a_class_belong_to_it(folder):
    write(folder / "cat/tabby/a.jpg", pattern(4, 6))
    assert ImageFolder(folder).name(3).endswith("cat/tabby/a.jpg")


# ---- links ------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """Make a folder with one image, outside of the data set."""
    write(tmp_path / "elsewhere/0.png", pattern(4, 6, seed=9))
    return tmp_path / "elsewhere"


def names(source):
    return [source.name(index).removeprefix(f"{source.folder}/") for index in range(len(source))]


def test_image_folder_class_may_be_a_link(folder, elsewhere):
    (folder / "eel").symlink_to(elsewhere)
    source = ImageFolder(folder)
    assert source.classes == ("cat", "dog", "eel")
    assert names(source)[8:] == ["eel/0.png"]
    assert source.read(8) == (elsewhere / "0.png").read_bytes()


def test_links_to_folders_and_files_below_a_class_are_followed(folder, elsewhere):
    (folder / "cat/more").symlink_to(elsewhere)
    (folder / "cat/one.png").symlink_to(elsewhere / "0.png")
    assert names(ImageFolder(folder))[:5] == [
        "cat/0.png",
        "cat/1.png",
        "cat/2.png",
        "cat/more/0.png",
        "cat/one.png",
    ]


def test_two_links_to_one_folder_are_two_ways_to_its_images(folder, elsewhere):
    (folder / "cat/a").symlink_to(elsewhere)
    (folder / "dog/b").symlink_to(elsewhere)
    assert len(ImageFolder(folder)) == 10


@pytest.mark.parametrize("target", [".", "..", "{folder}", "/"])
@pytest.mark.parametrize("link", ["cat/back", "cat/back.png", "back"])
def test_find_images_does_not_follow_cycles(folder, link, target):
    (folder / link).symlink_to(target.format(folder=folder))
    source = ImageFolder(folder)
    assert (source.classes, len(source)) == (("cat", "dog"), 8)


def test_links_of_two_folders_to_each_other_end(folder, elsewhere):
    (folder / "cat/there").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder / "cat")
    assert names(ImageFolder(folder))[:4] == [
        "cat/0.png",
        "cat/1.png",
        "cat/2.png",
        "cat/there/0.png",
    ]


@pytest.mark.parametrize("link", ["eel", "cat/more"])
@pytest.mark.parametrize("target", ["nowhere", "{itself}"])
def test_open_image_folder_names_a_broken_link(folder, link, target):
    (folder / link).symlink_to(target.format(itself=folder / link))
    with pytest.raises(InputError, match=f"{link}: broken link"):
        ImageFolder(folder)


def test_image_folder_broken_link_is_unreadable(folder):
    (folder / "cat/3.png").symlink_to("gone.png")
    (folder / "README.md").symlink_to("gone.md")
    source = ImageFolder(folder)
    with pytest.raises(UnreadableSample, match="cat/3.png: cannot be read"):
        source.read(3)


# ---- what is left out -------------------------------------------------------------------------


def test_hidden_files_and_other_kinds_of_files_are_left_out(folder):
    for path in ("cat/.hidden.png", "cat/.thumbnails/0.png", ".cache/0.png", "cat/notes.txt"):
        write(folder / path, pattern(4, 6))
    assert len(ImageFolder(folder)) == 8
    assert ImageFolder(folder).classes == ("cat", "dog")


def test_image_folder_deleted_file_is_unreadable(folder):
    source = ImageFolder(folder)
    (folder / "dog/0.png").unlink()
    with pytest.raises(UnreadableSample, match="dog/0.png: cannot be read: No such file"):
        source.read(3)


def test_image_folder_orders_by_seed_and_epoch(folder):
    source = ImageFolder(folder)
    orders = [source.order(seed, epoch).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert np.array_equal(source.order(2, 1), orders[3])


@pytest.mark.parametrize("name", ["validation", "val", "test"])
def test_open_image_folder_finds_validation_images(folder, name):
    (folder.parent / "all").mkdir()
    folder.rename(folder.parent / "all/train")
    write(folder.parent / f"all/{name}/cat/9.png", pattern(4, 6))
    train, validation = open_image_folder(str(folder.parent / "all"))
    assert (len(train), len(validation)) == (8, 1)


def test_image_folder_class_may_be_named_train(folder):
    (folder / "cat").rename(folder / "train")
    train, validation = open_image_folder(str(folder))
    assert (train.classes, validation) == (("dog", "train"), None)


def test_open_image_folder_names_what_is_wrong_with_a_path(tmp_path):
    (tmp_path / "file").write_bytes(encode(pattern(2, 2)))
    (tmp_path / "empty").mkdir()
    for name, complaint in [
        ("nowhere", "folder not found"),
        ("file", "is a file; it must be a folder"),
        ("empty", "each class needs a folder of images"),
    ]:
        with pytest.raises(InputError, match=complaint):
            open_image_folder(str(tmp_path / name))


def test_image_folder_class_without_images_is_named(folder):
    (folder / "eel").mkdir()
    (folder / "eel/notes.txt").touch()
    with pytest.raises(InputError, match=r"eel: no images in this class \(files that end in .apng"):
        open_image_folder(str(folder))


# ---- parts of the data ------------------------------------------------------------------------


def laid_out(folder, *places):
    """Make a folder with an image at each of these places."""
    for number, path in enumerate(places):
        write(folder / path / "0.png", pattern(4, 6, seed=number))
    return str(folder)


@pytest.mark.parametrize("name", ["valid", "dev", "Validation", "VAL", "validation_set"])
def test_image_parts_have_their_usual_names_in_any_case(tmp_path, name):
    path = laid_out(tmp_path, "Train/a", "Train/b", f"{name}/a", "Test/a", "Test/b")
    train, validation = open_image_folder(path)
    assert (train.classes, len(train), len(validation)) == (("a", "b"), 2, 1)
    assert validation.folder == str(tmp_path / name)


def test_training_and_testing_are_no_image_classes(tmp_path):
    path = laid_out(tmp_path, "Training/a", "Training/b", "Testing/a", "Testing/b")
    data = open_data("image_folder", path, 0.1, 0)
    assert (data.classes, len(data.train), len(data.validation)) == (("a", "b"), 2, 2)
    assert f"{path}/Testing is used for validation" in data.remark


@pytest.mark.parametrize(
    "places",
    [
        ("train", "test1"),
        ("train", "valid/a", "valid/b"),
        ("Training", "Testing"),
        ("val/a", "val/b", "test/a", "test/b"),
        ("seg_train/a", "seg_train/b", "seg_test/a", "seg_test/b", "seg_pred/a"),
        ("a/train", "a/test", "b/train", "b/test"),
    ],
)
def test_image_parts_that_hold_no_classes_are_refused(tmp_path, places):
    with pytest.raises(InputError, match="class|train"):
        open_image_folder(laid_out(tmp_path, *places))


def test_image_folder_class_may_be_named_like_a_split(tmp_path):
    train, validation = open_image_folder(laid_out(tmp_path, "dev1", "dev2", "dev3"))
    assert (train.classes, validation) == (("dev1", "dev2", "dev3"), None)


def test_image_folder_uses_the_plainest_split_name(tmp_path):
    path = laid_out(tmp_path, "train/a", "train/b", "val/a", "valid/a", "test/a", "test2/a")
    assert open_image_folder(path)[1].folder == str(tmp_path / "val")
    with pytest.raises(InputError, match="dev and valid are all validation data"):
        open_image_folder(laid_out(tmp_path / "x", "train/a", "train/b", "dev/a", "valid/a"))


@pytest.mark.parametrize("layout", ["{part}/images {part}/masks", "images/{part} masks/{part}"])
def test_masked_image_parts_have_their_usual_names(tmp_path, layout):
    for part, count in (("Training", 3), ("valid", 2), ("test", 1)):
        images, masks = layout.format(part=part).split()
        for number in range(count):
            write(tmp_path / images / f"{number}.png", pattern(2, 2))
            write(tmp_path / masks / f"{number}.png", pattern(2, 2, 1) % 2)
    train, validation = open_image_folder(str(tmp_path))
    assert (len(train), len(validation)) == (3, 2)


# ---- names that are no UTF-8 ------------------------------------------------------------------


def test_image_files_and_classes_may_have_names_of_any_bytes(folder):
    path = os.fsencode(folder) + b"/na\xefve"
    os.mkdir(path)
    with open(path + b"/caf\xe9.png", "wb") as file:
        file.write(b"content")
    source = ImageFolder(folder)
    assert source.classes == ("cat", "dog", "na\\xefve")
    assert source.name(8) == f"{folder}/na\\xefve/caf\\xe9.png"
    assert source.read(8) == b"content"
    os.unlink(path + b"/caf\xe9.png")
    with pytest.raises(UnreadableSample) as caught:
        source.read(8)
    assert str(caught.value).encode()


def test_masks_may_have_names_of_any_bytes(tmp_path):
    for kind in (b"images", b"masks"):
        os.mkdir(os.fsencode(tmp_path) + b"/" + kind)
        for name in (b"a", b"caf\xe9"):
            with open(os.fsencode(tmp_path) + b"/" + kind + b"/" + name + b".png", "wb") as file:
                file.write(encode(pattern(2, 2, 1) % 2))
    source, _ = open_image_folder(str(tmp_path))
    assert source.name(1).endswith("caf\\xe9.png")
    assert source.read_target(1).shape == (2, 2)


@pytest.mark.parametrize("ending", ["jfif", "jpe", "JPG", "Tif", "TIFF", "bmp", "jp2", "webp"])
def test_images_of_all_usual_endings_are_read(folder, ending):
    picture = pattern(4, 6, seed=3)
    kind = {"jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF", "jp2": "JPEG2000"}
    written = encode(picture, kind.get(ending.lower(), ending.upper()))
    (folder / f"cat/z.{ending}").write_bytes(written)
    source = ImageFolder(folder)
    assert source.labels.tolist() == [0] * 4 + [1] * 5
    assert decode(source.read(3)).shape == (4, 6, 3)


def test_files_of_other_endings_are_counted(folder):
    for name in ("cat/a.heic", "dog/b.HEIC", "dog/deep/c.txt", "dog/README"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no image")
    remark = open_data("image_folder", str(folder), 0.4, seed=0).remark
    assert remark == (
        f"data: {folder}: 4 files are not read because of their endings: "
        "2 .heic, 1 without one, 1 .txt"
    )
    assert describe_unread(NamedFiles([folder])).startswith("4 files are not read")
    (folder / "eel").mkdir()
    (folder / "eel/a.heic").write_text("no image")
    with pytest.raises(InputError, match=r"eel: no images in this class .*\), but 1 \.heic$"):
        ImageFolder(folder)
