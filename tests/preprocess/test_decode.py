"""Decoding image files: both decoders give the same arrays."""

import io
import struct
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from preprocess import decode as decoders
from preprocess.base import UnreadableImage
from preprocess.decode import decode, decoder_name
from tests.examples import examples
from tests.places import SHARED
from tests.preprocess.samples import encode, pattern, smooth

CIFAR = SHARED / "cifar10_jpeg.tar"


@pytest.fixture
def pillow_only(monkeypatch):
    monkeypatch.setattr(decoders, "simplejpeg", None)


@pytest.fixture(params=["simplejpeg", "Pillow"])
def pillow_too(request, monkeypatch):
    if request.param == "Pillow":
        monkeypatch.setattr(decoders, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")


def assert_near(image, expected, tolerance):
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected.astype(int)).max() <= tolerance


def palette():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    return image


RGB, GREY = pattern(5, 7), pattern(5, 7, channels=1)
LOOKED_UP = np.array([[[10, 20, 30], [40, 50, 60]]])
FRAMES = [Image.new("L", (2, 2), value) for value in (10, 200)]


# The bytes of a file, its image, and the tolerance if the format is lossy.
@pytest.mark.parametrize(
    ("data", "mode", "expected", "tolerance"),
    [
        (encode(RGB), "RGB", RGB, 0),
        (encode(GREY), "L", GREY, 0),
        (encode(GREY), "RGB", np.repeat(GREY, 3, axis=2), 0),  # three equal channels
        # the usual weighted sum of channels
        (
            encode(RGB),
            "L",
            (RGB @ [0.299, 0.587, 0.114])[:, :, None].round(),
            1,
        ),
        # no blending
        (
            encode(np.concatenate([RGB, np.zeros((5, 7, 1), np.uint8)], axis=2)),
            "RGB",
            RGB,
            0,
        ),
        *(
            (encode(palette(), **more), "RGB", LOOKED_UP, 0)
            for more in ({}, {"transparency": 0}, {"transparency": b"\x00\x80"})
        ),
        # the upper bits
        (
            encode(Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))),
            "L",
            np.array([[[0], [0], [1], [255]]]),
            0,
        ),
        (b"P5 3 1 65535\n\0\0\x80\0\xff\xff", "L", np.array([[[0], [128], [255]]]), 0),
        (b"P5 3 1 4095\n\0\0\x08\0\x0f\xff", "L", np.array([[[0], [128], [255]]]), 0),
        (
            encode(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
            "L",
            np.full((2, 2, 1), 10),
            0,
        ),
        (encode(smooth(40, 64), "JPEG", quality=95), "RGB", smooth(40, 64), 8),
        (
            encode(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=95),
            "RGB",
            np.full((8, 8, 3), (0, 255, 255)),
            4,
        ),
    ],
    ids=[
        "a PNG",
        "a grey one",
        "a grey one in colour",
        "one in colour in grey",
        "transparency",
        "a palette",
        "a palette of which one is transparent",
        "a palette with transparencies",
        "16 bits",
        "16 bits of a PGM",
        "12 bits of a PGM",
        "an animation",
        "a JPEG",
        "CMYK",
    ],
)
def test_decode_file_is_an_image(data, mode, expected, tolerance):
    assert_near(decode(data, mode), expected, tolerance)


def test_pixels_without_a_fixed_range_are_refused():
    with pytest.raises(UnreadableImage, match="no fixed range"):
        decode(encode(Image.new("F", (2, 2)), "TIFF"))


@pytest.mark.parametrize(
    ("orientation", "seen"),
    [
        (1, lambda image: image),
        (2, lambda image: image[:, ::-1]),
        (3, lambda image: image[::-1, ::-1]),
        (6, lambda image: np.rot90(image, -1)),
        (8, lambda image: np.rot90(image, 1)),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_decode_follows_the_exif_orientation(orientation, seen, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = smooth(24, 40)
    plain = decode(encode(stored, kind))
    assert np.array_equal(decode(encode(stored, kind, exif=exif)), seen(plain))


# Rotated by 90 degrees, with a resolution of 0 / 0, which Pillow reads but does not write.
ODD_EXIF = b"Exif\0\0" + struct.pack(
    "<2sHIHHHIHHHHIIIII", b"II", 42, 8, 2, 0x0112, 3, 1, 6, 0, 0x011A, 5, 1, 38, 0, 0, 0
)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_decode_uses_exif_that_cannot_be_rewritten(kind, pillow_too):
    options = {"lossless": True} if kind == "WEBP" else {}
    plain = decode(encode(smooth(24, 40), kind, **options))
    turned = decode(encode(smooth(24, 40), kind, **options, exif=ODD_EXIF))
    assert np.array_equal(turned, np.rot90(plain, -1))


def test_decode_ignores_unreadable_exif(pillow_too):
    data = encode(smooth(24, 40), "JPEG", exif=b"Exif\0\0no tags at all")
    assert np.array_equal(decode(data), decode(encode(smooth(24, 40), "JPEG")))
    assert decoders.reduction(data, (6, 10)) == 4


def test_decode_grayscale_file_may_use_fewer_than_16_bits():
    grey = np.array([[0, 15, 16, 2048, 4095, 4096, 65535]], np.uint16)
    data = encode(Image.fromarray(grey))
    assert decode(data, "L", bits=12).ravel().tolist() == [0, 0, 1, 128, 255, 255, 255]
    assert decode(data, "L").ravel().tolist() == [0, 0, 0, 8, 15, 16, 255]


def test_several_channels_of_fewer_than_16_bits_are_refused():
    colour = b"P6 1 1 255\nabc"
    assert decode(colour, bits=12).ravel().tolist() == [*b"abc"]
    with pytest.raises(UnreadableImage, match="16 bits in each of several channels"):
        decode(png_of_16_bits(np.array([[[0, 100, 4095]]])), bits=12)


def png_of_16_bits(image):
    """Make a PNG file with 16 bits per channel, which Pillow does not write."""

    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_decode_bmp_of_eight_bits_and_two_colors_is_refused():
    image = Image.new("P", (3, 2))
    image.putpalette([0, 0, 0, 255, 255, 255])
    with pytest.raises(UnreadableImage, match="BMP file of 8 bits with two colors"):
        decode(encode(image, "BMP"))
    assert decode(encode(image.convert("1"), "BMP")).shape == (2, 3, 3)


def test_decode_uses_the_first_frame_of_an_animation():
    frames = [Image.new("L", (2, 2), value) for value in (10, 200)]
    animation = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(animation, "L").max() == 10


def test_decode_truncated_jpeg_is_refused():
    data = encode(pattern(64, 64), "JPEG")
    with pytest.raises(UnreadableImage, match="truncated"):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"no image at all", b"\x89PNG\r\n\x1a\n" + b"\0" * 40]
)
def test_decode_refuses_other_files(data):
    with pytest.raises(UnreadableImage):
        decode(data)


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_decode_refuses_a_png_truncated_anywhere(cut):
    with pytest.raises(UnreadableImage):
        decode(encode(pattern(8, 8))[:cut])


def test_decode_reduces_a_jpeg_if_that_is_enough():
    data = encode(smooth(256, 200), "JPEG", quality=95)
    assert decode(data, at_least=(60, 50)).shape == (64, 50, 3)
    assert_near(decode(data, at_least=(60, 50)), smooth(64, 50), tolerance=12)
    assert decode(data, at_least=(65, 50)).shape == (128, 100, 3)


def test_decode_draft_fits_the_displayed_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(smooth(64, 200), "JPEG", exif=exif)  # displayed 200 high and 64 wide
    assert decode(data, at_least=(50, 16)).shape == (50, 16, 3)
    assert decode(data, at_least=lambda height, width: (height // 4, width // 4)).shape == (
        50,
        16,
        3,
    )
    assert decode(data, at_least=lambda height, width: (height, 1)).shape == (200, 64, 3)


@settings(max_examples=examples(40), deadline=None)
@given(height=st.integers(1, 90), width=st.integers(1, 90), data=st.data())
def test_decode_reduces_as_far_as_at_least_allows(height, width, data):
    at_least = data.draw(st.tuples(st.integers(1, height), st.integers(1, width)))
    decoded = decode(encode(smooth(height, width), "JPEG"), at_least=at_least).shape[:2]
    halvings = [
        (-(-height // scale), -(-width // scale))
        for scale in (1, 2, 4, 8)
        if height // scale >= at_least[0] and width // scale >= at_least[1]
    ]
    assert decoded == halvings[-1]


def test_decode_logs_which_decoder_runs(pillow_only):
    assert decoder_name().startswith("Pillow")


def corrupt(data):
    """Make a JPEG whose last third is from another image, with invalid codes."""
    position = 2 * len(data) // 3
    return data[:position] + bytes(range(1, 200)) + data[position + 199 :]


class TestBothDecoders:
    """Results must not depend on which of the two is installed."""

    @pytest.fixture(autouse=True)
    def _needs_both(self):
        pytest.importorskip("simplejpeg")

    def assert_same(self, data, monkeypatch, **options):
        fast = decoders._decode_simplejpeg(
            data, options.get("mode", "RGB"), options.get("at_least")
        )
        monkeypatch.setattr(decoders, "simplejpeg", None)
        assert np.array_equal(fast, decode(data, **options))

    @pytest.mark.parametrize("mode", ["RGB", "L"])
    @pytest.mark.parametrize("at_least", [None, (30, 30), (9, 9)])
    @pytest.mark.parametrize("subsampling", [0, 1, 2])
    @pytest.mark.parametrize("progressive", [False, True])
    def test_they_give_equal_pixels(self, mode, at_least, subsampling, progressive, monkeypatch):
        data = encode(
            smooth(77, 90) ^ pattern(77, 90) & 15,
            "JPEG",
            quality=85,
            subsampling=subsampling,
            progressive=progressive,
        )
        self.assert_same(data, monkeypatch, mode=mode, at_least=at_least)

    @pytest.mark.parametrize("at_least", [None, (30, 30), (9, 40)])
    @pytest.mark.parametrize("orientation", range(1, 10))
    def test_they_turn_files_alike(self, orientation, at_least, monkeypatch):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(smooth(77, 90) ^ pattern(77, 90) & 15, "JPEG", exif=exif)
        self.assert_same(data, monkeypatch, at_least=at_least)

    @pytest.mark.parametrize("kind", ["RGB", "L", "CMYK"])
    @pytest.mark.parametrize("exif", [b"", b"Exif\0\0"])
    def test_data_that_libjpeg_calls_corrupt_is_damage(self, kind, exif):
        picture = Image.fromarray(smooth(64, 64)).convert(kind)
        data = encode(picture, "JPEG", quality=95, exif=exif)
        assert decode(data).shape == (64, 64, 3)
        with pytest.raises(UnreadableImage, match="is damaged or truncated: Corrupt JPEG data"):
            decode(corrupt(data))

    def test_decode_ignores_a_damaged_color_profile(self):
        data = encode(smooth(16, 16), "JPEG", icc_profile=bytes(200))
        marked = data.replace(b"ICC_PROFILE\0\x01", b"ICC_PROFILE\0\x07")
        assert marked != data
        assert np.array_equal(decode(marked), decode(data))

    @pytest.mark.parametrize("mode", ["RGB", "L"])
    def test_they_give_equal_pixels_of_greyscale_files(self, mode, monkeypatch):
        self.assert_same(encode(pattern(33, 20, channels=1), "JPEG"), monkeypatch, mode=mode)

    @pytest.mark.skipif(not CIFAR.exists(), reason="the CIFAR-10 JPEGs are not here")
    def test_they_give_equal_pixels_of_photographs(self, monkeypatch):
        with tarfile.open(CIFAR) as tar:
            files = [tar.extractfile(tar.next()).read() for _ in range(50)]
        fast = [decode(data) for data in files]
        monkeypatch.setattr(decoders, "simplejpeg", None)
        assert all(
            np.array_equal(image, decode(data)) for image, data in zip(fast, files, strict=True)
        )

    def test_files_that_only_pillow_can_decode_go_to_it(self):
        file = io.BytesIO(encode(Image.new("CMYK", (8, 8)), "JPEG"))
        assert decoders._decode_simplejpeg(file.getvalue(), "RGB", None) is None
        assert decode(file.getvalue()).shape == (8, 8, 3)
