"""Masks: the numbers of classes, and the places of mask files."""

import pickle

import numpy as np
import pytest
from PIL import Image

from launch.errors import InputError
from preprocess.base import UnreadableSample
from preprocess.sources.image_folder import open_image_folder
from preprocess.sources.masks import MaskFiles, PixelClasses, decode_mask
from preprocess.target import TargetSpec, TargetWish
from tests.preprocess.samples import encode, pattern, write
from tests.refusals import refused

MASK = np.array([[0, 7], [255, 7]], np.uint8)


def saved(path, mask, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, mask)
    else:
        (mask if isinstance(mask, Image.Image) else Image.fromarray(mask)).save(path, **options)
    return str(path)


def palette():
    image = Image.fromarray(MASK % 3).convert("P")
    image.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    return image


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encode(Image.fromarray(MASK)), MASK),
        (encode(Image.fromarray(MASK.astype(np.uint16) * 100)), MASK.astype(int) * 100),
        (encode(Image.fromarray(MASK > 7).convert("1")), MASK > 7),
        (encode(palette()), np.asarray(palette())),
    ],
)
def test_masks_keep_numbers_of_every_image_mode(content, expected):
    assert np.array_equal(decode_mask(content).numbers, expected)


@pytest.mark.parametrize("image", [pattern(2, 2), pattern(2, 2, 1)[:, :, 0] / 255])
def test_several_numbers_a_pixel_or_fractions_are_no_mask(tmp_path, image):
    if image.ndim == 2:
        file = saved(tmp_path / "0.npy", image)
    else:
        file = saved(tmp_path / "0.png", image)
    with pytest.raises(
        UnreadableSample,
        match="0.(png|npy): its mask is .*it should have one whole number for each pixel",
    ):
        MaskFiles([file], PixelClasses(range(2), "01")).read_numbers(0)


def test_masks_make_each_number_a_class_except_ignored(tmp_path):
    files = [saved(tmp_path / "0.png", MASK), saved(tmp_path / "1.npy", np.array([[3]]))]
    assert MaskFiles(files, PixelClasses()).spec == TargetSpec("mask", 4, ("0", "3", "7", "255"))
    masks = MaskFiles(files, PixelClasses(ignore=255))
    assert masks.spec == TargetSpec("mask", 3, ("0", "3", "7"), ignore=-1)
    assert [masks.read(0).tolist(), masks.read(1).tolist()] == [[[0, 2], [-1, 2]], [[1]]]


def test_masks_map_numbers_to_classes_by_an_option(tmp_path):
    masks = MaskFiles(
        [saved(tmp_path / "0.png", MASK)],
        PixelClasses.from_options({"sky": 255, "sea": 0, "ship": 7}, None),
    )
    assert (masks.read(0).tolist(), masks.spec.names) == ([[1, 2], [0, 2]], ("sky", "sea", "ship"))
    masks = MaskFiles(
        [saved(tmp_path / "0.png", MASK)], PixelClasses.from_options({"sea": 0, "ship": 8}, None)
    )
    with pytest.raises(
        UnreadableSample,
        match=r"0.png: its mask has the value 7 at row 0, column 1; the values of the 2 cl",
    ):
        masks.read(0)


def test_masks_spec_may_name_the_classes(tmp_path):
    request = TargetWish("mask", names=("sea", "ship"), ignore=255)
    masks = MaskFiles(
        [saved(tmp_path / "0.png", MASK % 2)], PixelClasses.from_options(None, request)
    )
    assert masks.spec == TargetSpec("mask", 2, ("sea", "ship"), ignore=255)


@pytest.mark.parametrize(
    ("pixels", "ignore", "complaint"),
    [
        ({"a": 0}, None, "pixels: {'a': 0} should give each class a pixel value"),
        ({"a": 0, "b": -1}, None, "a different integer from 0"),
        ({"a": 1, "b": 1}, None, "a different integer from 0"),
        ({"a": 1, "b": 2}, 2, "ignore: 2 is the value of the class b"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, pixels, ignore, complaint):
    with pytest.raises(InputError, match=complaint):
        MaskFiles(
            [saved(tmp_path / "0.png", MASK)],
            PixelClasses.from_options(pixels, TargetWish("mask", ignore=ignore)),
        )


def test_masks_of_one_number_or_of_very_many_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"0.png: all pixels of all masks have the value 0; at least two classes"
    ):
        MaskFiles([saved(tmp_path / "0.png", MASK * 0)], PixelClasses())
    many = np.arange(400, dtype=np.uint16).reshape(20, 20)
    with pytest.raises(
        InputError, match=r"1.png: with this mask there are more than 256 values of pixels"
    ):
        MaskFiles(
            [saved(tmp_path / "0.png", MASK), saved(tmp_path / "1.png", many)], PixelClasses()
        )


# ---- palettes, formats and orientations
# -----------------------------------------------------------

SIGN = np.array([[0, 1, 1], [0, 0, 1]], np.uint8)  # 1 is the expected class
BLACK, WHITE, RED = (0, 0, 0), (255, 255, 255), (200, 0, 0)


def painted(*colours, mask=SIGN, kind="P"):
    """Make the mask in two colors, with the palette's first color first."""
    if kind != "P":
        return Image.fromarray(np.array([colour[0] for colour in colours], np.uint8)[mask]).convert(
            kind
        )
    image = Image.fromarray(mask).convert("P")
    image.putpalette([level for colour in colours for level in colour])
    return image


INVERTED = painted(WHITE, BLACK, mask=1 - SIGN)


@pytest.mark.parametrize("kind", ["gif", "png", "tif"])
def test_palettes_that_differ_leave_the_grey_levels(tmp_path, kind):
    files = [
        saved(tmp_path / f"{number}.{kind}", image)
        for number, image in enumerate([painted(BLACK, WHITE), INVERTED])
    ]
    masks = MaskFiles(files, PixelClasses())
    assert masks.spec.names == ("0", "255")
    assert [masks.read(0).tolist(), masks.read(1).tolist()] == [SIGN.tolist()] * 2


def test_palettes_that_agree_leave_the_numbers(tmp_path):
    files = [
        saved(tmp_path / "0.png", painted(BLACK, RED)),
        saved(tmp_path / "1.png", painted(BLACK, RED, WHITE, mask=2 * SIGN)),
    ]
    masks = MaskFiles(files, PixelClasses())
    assert masks.spec.names == ("0", "1", "2")
    assert masks.read(1).tolist() == (2 * SIGN).tolist()


def test_masks_mix_palettes_and_gray_levels(tmp_path):
    files = [saved(tmp_path / "0.png", painted(BLACK, RED)), saved(tmp_path / "1.png", 2 * SIGN)]
    masks = MaskFiles(files, PixelClasses())
    assert masks.spec.names == ("0", "1", "2")


@pytest.mark.parametrize("message", [PixelClasses(), PixelClasses(range(2), "ab")])
def test_colors_that_differ_are_refused(tmp_path, message):
    files = [
        saved(tmp_path / "0.png", painted(BLACK, RED)),
        saved(tmp_path / "1.png", painted(RED, BLACK)),
    ]
    with pytest.raises(InputError, match=r"1.png: the palettes of masks differ: the value 0 is "):
        MaskFiles(files, message)


def test_numbers_of_classes_mean_nothing_where_palettes_differ(tmp_path):
    files = [saved(tmp_path / "0.gif", painted(BLACK, WHITE)), saved(tmp_path / "1.gif", INVERTED)]
    with pytest.raises(InputError, match="1.gif: the palettes of masks differ"):
        MaskFiles(files, PixelClasses.from_options(None, TargetWish("mask", names=("a", "b"))))


@pytest.mark.parametrize("images", [[painted(BLACK, WHITE)], [painted(BLACK, WHITE), INVERTED]])
def test_values_of_classes_may_be_the_grey_levels_of_a_palette(tmp_path, images):
    files = [saved(tmp_path / f"{number}.gif", image) for number, image in enumerate(images)]
    masks = MaskFiles(files, PixelClasses.from_options({"sea": 0, "ship": 255}, None))
    assert [masks.read(number).tolist() for number in range(len(files))] == [SIGN.tolist()] * len(
        files
    )


@pytest.mark.parametrize("kind", ["1", "P"])
def test_white_is_one_class_in_images_of_one_bit_and_of_eight(tmp_path, kind):
    files = [
        saved(tmp_path / "0.png", painted(BLACK, WHITE, kind="L")),
        saved(tmp_path / "1.png", painted(BLACK, WHITE, kind=kind)),
    ]
    masks = MaskFiles(files, PixelClasses())
    assert masks.spec.names == ("0", "255")
    assert [masks.read(0).tolist(), masks.read(1).tolist()] == [SIGN.tolist()] * 2
    saved(tmp_path / "0.png", np.array([[0, 1, 255]], np.uint8))
    with pytest.raises(InputError, match="the palettes of masks differ: the value 1 is the color"):
        MaskFiles(files, PixelClasses())


def test_masks_unexpected_palette_is_unreadable(tmp_path):
    files = [saved(tmp_path / f"{number}.png", painted(BLACK, RED)) for number in range(101)]
    saved(tmp_path / "1.png", painted(RED, BLACK))
    masks = MaskFiles(files, PixelClasses(range(2), "ab"))
    assert masks.read(100).tolist() == SIGN.tolist()
    with pytest.raises(
        UnreadableSample, match=r"1.png: the palettes of masks differ: the value 0 has "
    ):
        masks.read(1)


def test_held_out_masks_have_the_palette_of_those_for_training(tmp_path):
    train = MaskFiles([saved(tmp_path / "0.png", painted(BLACK, RED))], PixelClasses())
    held_out = saved(tmp_path / "1.png", painted(RED, BLACK))
    with pytest.raises(InputError, match=r"1.png: the palettes of masks differ"):
        MaskFiles([held_out], train.classes)
    grey = [saved(tmp_path / "2.gif", painted(BLACK, WHITE)), saved(tmp_path / "3.gif", INVERTED)]
    assert (
        MaskFiles(grey[1:], MaskFiles(grey, PixelClasses()).classes).read(0).tolist()
        == SIGN.tolist()
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("0.jpg", {"quality": 100}),
        ("0.webp", {}),
        ("0.tif", {"compression": "jpeg"}),
        ("0.jp2", {}),
    ],
)
@pytest.mark.parametrize("message", [PixelClasses(), PixelClasses(range(2), "ab")])
def test_formats_that_change_numbers_are_no_masks(tmp_path, name, options, message):
    file = saved(tmp_path / name, np.zeros((8, 8), np.uint8), **options)
    with pytest.raises(InputError, match=f"{name}: its mask is in the format .*save masks as PNG$"):
        MaskFiles([file], message)


@pytest.mark.parametrize("name", ["0.png", "0.tif"])
def test_masks_follow_the_exif_orientation(tmp_path, name):
    exif = Image.Exif()
    exif[0x0112] = 6
    for image in (Image.fromarray(SIGN), painted(BLACK, RED)):
        file = saved(tmp_path / name, image, exif=exif)
        expected = np.rot90(SIGN, -1).tolist()
        assert MaskFiles([file], PixelClasses(range(2), "ab")).read(0).tolist() == expected


# ---- folders of images with masks beside
# ----------------------------------------------------------


def fill(folder, names, suffix=""):
    for number, name in enumerate(names):
        write(folder / f"images/{name}.jpg", pattern(2, 2, seed=number))
        saved(folder / f"masks/{name}{suffix}.png", (MASK + number).astype(np.uint8))


@pytest.mark.parametrize("suffix", ["", "_mask"])
def test_masks_have_the_names_of_their_images(tmp_path, suffix):
    fill(tmp_path, ["b", "a/c"], suffix)
    source, validation = open_image_folder(str(tmp_path))
    assert (validation, len(source)) == (None, 2)
    assert source.name(0).endswith("images/a/c.jpg")
    assert source.read(1) == (tmp_path / "images/b.jpg").read_bytes()
    sent = pickle.loads(pickle.dumps(source))
    assert sent.target.names == ("0", "1", "7", "8", "255")
    assert sent.read_target(1).tolist() == [[0, 2], [4, 2]]


@pytest.mark.parametrize("layout", ["{part}/{what}", "{what}/{part}"])
def test_parts_lie_in_folders_and_share_their_classes(tmp_path, layout):
    for part, mask in (("train", MASK), ("val", MASK * 0)):
        write(tmp_path / layout.format(part=part, what="images") / "0.png", pattern(2, 2))
        saved(tmp_path / layout.format(part=part, what="masks") / "0.png", mask)
    train, validation = open_image_folder(str(tmp_path))
    assert train.target == validation.target == TargetSpec("mask", 3, ("0", "7", "255"))
    assert validation.read_target(0).tolist() == [[0, 0], [0, 0]]


def test_options_name_the_folders(tmp_path):
    fill(tmp_path, ["a"])
    (tmp_path / "masks").rename(tmp_path / "annotations")
    (tmp_path / "images").rename(tmp_path / "photos")
    source, _ = open_image_folder(str(tmp_path), images="photos", masks="annotations")
    assert source.target.outputs == 3
    with pytest.raises(
        InputError,
        match=r"no folders images and annotations here, nor in train \(options: images, m",
    ):
        open_image_folder(str(tmp_path), masks="annotations")


def test_two_folders_of_other_names_are_two_classes(tmp_path):
    for name in ("images", "other"):
        write(tmp_path / f"{name}/0.png", pattern(2, 2))
    assert open_image_folder(str(tmp_path))[0].classes == ("images", "other")
    with pytest.raises(InputError, match="no folders images and masks here"):
        open_image_folder(str(tmp_path), target=TargetWish("mask"))


def test_images_and_masks_that_lack_each_other_are_named(tmp_path):
    fill(tmp_path, "abc")
    (tmp_path / "masks/b.png").unlink()
    with refused(InputError, "images/b.jpg", "no mask", "masks"):
        open_image_folder(str(tmp_path))
    for name in "bc":
        (tmp_path / f"images/{name}.jpg").unlink()
    with refused(InputError, "masks/c.png", "no image", "images"):
        open_image_folder(str(tmp_path))
    write(tmp_path / "images/c.png", pattern(2, 2))
    write(tmp_path / "images/c.jpg", pattern(2, 2))
    with pytest.raises(
        InputError, match=r"images/c.(png|jpg): .*images/c.(png|jpg) has the same name"
    ):
        open_image_folder(str(tmp_path))
