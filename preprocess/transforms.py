"""What is done to a sample between its file and the network.

A transform is a frozen dataclass whose fields are the parameters of a spec. Its ``apply`` takes an image
(height, width, channels), a random generator and whether the image is for training, and gives the new image.
When it is not for training nothing is random: a random crop is the centre crop; flips, rotation and jitter do
nothing.
Images stay uint8 until :class:`Scale`.

In a spec a transform is a bare name, or a mapping of one name to its parameters; a name with a colon is the
import path of a function ``f(image, rng, training, **parameters) -> image``:

    transforms:
      - decode
      - random_crop: {size: [32, 32], padding: 4}
      - my_transforms:cutout: {size: 8}
      - scale: {mean: 0.5, std: 0.25}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from PIL import Image, ImageEnhance
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preprocess.base import BadImage, InputError, import_function
from preprocess.decode import Mode, decode, to_array, to_image
from preprocess.sample import Affine

# A description says what is wanted: messages and the JSON Schema show it.
Pixels = Annotated[int, Field(strict=True, gt=0)]
Size = Annotated[tuple[Pixels, Pixels], Field(description="[height, width] of the crop, in pixels")]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Jitter = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False,
                                description="x of the factors 1 - x to 1 + x, a number not below 0")]

_FORBID = ConfigDict(extra="forbid")


class Transform(Protocol):
    """An image to an image."""

    @property
    def is_random(self) -> bool:
        """Whether the result depends on the generator or on ``training``."""

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, transformed."""


@dataclass(frozen=True, config=_FORBID)
class Decode:
    """The bytes of an image file to an array; always the first transform.

    Sources that hold arrays need no decoding; on them it only brings the channels to its mode.
    """

    mode: Annotated[Mode, Field(description="RGB, or L for greyscale with one channel")] = "RGB"

    is_random: ClassVar[bool] = False

    def apply(self, image: bytes | np.ndarray, rng: np.random.Generator | None = None, training: bool = True,
              at_least: tuple[int, int] | None = None) -> np.ndarray:
        """Decode it, at a smaller size where ``at_least`` (height, width) is enough."""
        if isinstance(image, bytes):
            return decode(image, self.mode, at_least)
        if image.shape[2] == (3 if self.mode == "RGB" else 1):
            return image
        return to_array(_as_image(image, self).convert(self.mode))


@dataclass(frozen=True, config=_FORBID)
class Resize:
    """Change the size of the image, with antialiasing; one number keeps its proportions."""

    size: Annotated[Pixels | tuple[Pixels, Pixels], Field(
        description="[height, width], or one number for the shorter side, in pixels")]
    filter: Annotated[Literal["nearest", "bilinear", "bicubic", "lanczos"], Field(
        description="how pixels are weighted: nearest, bilinear, bicubic or lanczos")] = "bilinear"

    is_random: ClassVar[bool] = False

    @property
    def at_least(self) -> tuple[int, int]:
        """(height, width) below which the image would have to be enlarged."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image at its new size."""
        height, width = self._target(*image.shape[:2])
        if (height, width) == image.shape[:2]:
            return image
        how = Image.Resampling[self.filter.upper()]
        return to_array(_as_image(image, self).resize((width, height), how))

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        shorter = min(height, width)
        return round(height * self.size / shorter), round(width * self.size / shorter)


@dataclass(frozen=True, config=_FORBID)
class RandomCrop:
    """Cut out a window at a uniformly random place; in evaluation at the centre."""

    size: Size
    padding: Annotated[int, Field(
        strict=True, ge=0, description="pixels of black that are added to each side first, not below 0")] = 0

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The window."""
        room_y, room_x = _room(image, self.size, self.padding)
        if training:
            top, left = int(rng.random() * (room_y + 1)), int(rng.random() * (room_x + 1))
        else:
            top, left = room_y // 2, room_x // 2
        return _window(image, top - self.padding, left - self.padding, self.size)


@dataclass(frozen=True, config=_FORBID)
class CenterCrop:
    """Cut out the window at the centre."""

    size: Size

    is_random: ClassVar[bool] = False

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The window."""
        room_y, room_x = _room(image, self.size, 0)
        return _window(image, room_y // 2, room_x // 2, self.size)


@dataclass(frozen=True, config=_FORBID)
class Flip:
    """Mirror the image with probability one half, in each of the directions asked for."""

    horizontal: Annotated[Switch, Field(description="true where left and right may change places, or false")] = False
    vertical: Annotated[Switch, Field(description="true where top and bottom may change places, or false")] = False

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.horizontal or self.vertical):
            raise ValueError("flip in which direction? horizontal: true, vertical: true, or both")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, perhaps mirrored."""
        if not training:
            return image
        if self.horizontal and rng.random() < 0.5:
            image = _mirror(image)
        if self.vertical and rng.random() < 0.5:
            image = image[::-1]
        return image


@dataclass(frozen=True, config=_FORBID)
class Rotate:
    """Turn the image about its centre by a uniformly random angle; the corners that come in are black."""

    degrees: Annotated[float, Field(
        strict=True, gt=0, le=180, description="largest angle, above 0, at most 180")]

    is_random: ClassVar[bool] = True

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, turned by a random angle."""
        return self.turn(image, (2 * rng.random() - 1) * self.degrees) if training else image

    def turn(self, image: np.ndarray, degrees: float) -> np.ndarray:
        """Turn by this angle, counter-clockwise."""
        return to_array(_as_image(image, self).rotate(degrees, Image.Resampling.BILINEAR))


@dataclass(frozen=True, config=_FORBID)
class ColorJitter:
    """Change brightness, contrast and saturation, in this order, each by a random factor.

    A parameter x means a factor uniform in [max(0, 1 - x), 1 + x]; 0 leaves the property alone.
    """

    brightness: Jitter = 0.0
    contrast: Jitter = 0.0
    saturation: Jitter = 0.0

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.brightness or self.contrast or self.saturation):
            raise ValueError("color_jitter of what? brightness, contrast or saturation above 0")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The image, its colours changed."""
        if not training:
            return image
        picture = _as_image(image, self)
        for enhance, amount in ((ImageEnhance.Brightness, self.brightness),
                                (ImageEnhance.Contrast, self.contrast),
                                (ImageEnhance.Color, self.saturation)):
            if amount:
                low, high = max(0.0, 1 - amount), 1 + amount
                picture = enhance(picture).enhance(low + (high - low) * rng.random())
        return to_array(picture)


@dataclass(frozen=True, config=_FORBID)
class Scale:
    """Pixels 0..255 to numbers that networks like: (x / 255 - mean) / std, float32.

    Where it is the last transform the trainers do it, so that images travel as uint8.
    """

    mean: Annotated[Real | tuple[Real, ...], Field(
        description="a number, or a list of one for each channel; pixels are from 0 to 1")] = 0.0
    std: Annotated[Positive | tuple[Positive, ...], Field(
        description="a number above 0, or a list of one for each channel")] = 1.0

    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means and {len(self.std)} standard deviations; "
                             "each channel has one of either")

    @cached_property
    def affine(self) -> Affine:
        """The same as one multiplication and one addition."""
        return Affine(self.mean, self.std)

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """The numbers."""
        self.affine.check(image.shape[2])
        return self.affine.apply(image)


@dataclasses.dataclass(frozen=True)
class UserTransform:
    """A function of the user's, named by its import path.

    Args:
        path: ``module:function``; the function takes (image, rng, training) and ``parameters``.
        parameters: passed by name.
    """

    path: str
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)

    is_random: ClassVar[bool] = True  # nobody knows

    @cached_property
    def function(self) -> Any:
        """The function itself."""
        return import_function(self.path, "transform")

    def apply(self, image: np.ndarray, rng: np.random.Generator, training: bool) -> np.ndarray:
        """What the user's function makes of it."""
        try:
            # A copy, for the function may write into it.
            return self.function(np.array(image), rng, training, **self.parameters)
        except BadImage:
            raise
        except Exception as error:
            error.add_note(f"in the transform {self.path}")
            raise


TRANSFORMS: dict[str, type] = {
    "decode": Decode,
    "resize": Resize,
    "random_crop": RandomCrop,
    "center_crop": CenterCrop,
    "flip": Flip,
    "rotate": Rotate,
    "color_jitter": ColorJitter,
    "scale": Scale,
}


def parse_transform(item: object) -> Transform:
    """One item of a spec's list of transforms.

    >>> parse_transform({"random_crop": {"size": [32, 32], "padding": 4}})
    RandomCrop(size=(32, 32), padding=4)
    >>> parse_transform({"rotate": {"degrees": 200}})
    Traceback (most recent call last):
    preprocess.base.InputError: rotate: 'degrees' is 200; wanted: largest angle, above 0, at most 180; it takes degrees

    Raises:
        InputError: no such transform, or parameters that it does not take; the message lists what there is.
    """
    name, parameters = _name_and_parameters(item)
    if ":" in name:
        transform = UserTransform(name, parameters)
        transform.function  # noqa: B018 - a wrong path is reported now, not at the first sample
        return transform
    if name not in TRANSFORMS:
        known = ", ".join(signature(known) for known in TRANSFORMS)
        raise InputError(f"no transform {name!r}; there are {known}, or an import path module:function")
    try:
        return TypeAdapter(TRANSFORMS[name]).validate_python(parameters)
    except ValidationError as error:
        wrong = dict.fromkeys(_complaint(name, parameters, one) for one in error.errors())
        raise InputError(f"{name}: {'; '.join(wrong)}; it takes {_parameters(name)}") from None


def parse_transforms(items: object) -> tuple[Transform, ...]:
    """A spec's list of transforms.

    Raises:
        InputError: names every item that is wrong, one line each.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise InputError(f"transforms: a list of transforms is wanted, not {items!r}")
    transforms: list[Transform] = []
    wrong = []
    for index, item in enumerate(items):
        try:
            transform = parse_transform(item)
        except InputError as error:
            wrong.append(f"transforms[{index}]: {error}")
            continue
        if isinstance(transform, Decode) and index > 0:
            wrong.append(f"transforms[{index}]: decode comes first: after it there is nothing to decode")
        transforms.append(transform)
    if wrong:
        raise InputError("\n".join(wrong))
    return tuple(transforms)


def signature(name: str) -> str:
    """A transform with its parameters and their defaults, as messages show it.

    >>> signature("random_crop")
    'random_crop(size, padding=0)'
    """
    return f"{name}({_parameters(name)})"


def item_schema() -> dict[str, Any]:
    """The JSON Schema of one item of a spec's list of transforms, by which editors complete it."""
    return {"anyOf": [
        {"enum": [name for name in TRANSFORMS if _may_be_bare(name)]},
        {"type": "string", "pattern": ":", "description": "Import path module:function of your own function."},
        {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False,
         "properties": {name: _schema(name) for name in TRANSFORMS},
         "patternProperties": {":": {"type": "object", "description": "Parameters of your own function, by name."}}},
    ]}


def _may_be_bare(name: str) -> bool:
    try:
        TRANSFORMS[name]()
    except ValidationError:
        return False
    return True


def _parameters(name: str) -> str:
    return ", ".join(field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
                     for field in dataclasses.fields(TRANSFORMS[name]))


def _name_and_parameters(item: object) -> tuple[str, dict[str, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, dict) and len(item) == 1:
        [(name, parameters)] = item.items()
        parameters = {} if parameters is None else parameters
        if isinstance(name, str) and isinstance(parameters, dict):
            return name, parameters
    raise InputError("a name, or one name with its parameters as in 'flip: {horizontal: true}', "
                     f"not {item!r}")


def _complaint(name: str, parameters: dict[str, Any], error: Any) -> str:
    if error["type"] == "value_error":  # of a __post_init__
        return str(error["ctx"]["error"])
    parameter = error["loc"][0]
    if error["type"] == "unexpected_keyword_argument":
        return f"no parameter {parameter!r}"
    wanted = _schema(name)["properties"][parameter]["description"]
    if error["type"] == "missing":
        return f"{parameter!r} is missing: {wanted}"
    return f"{parameter!r} is {parameters[parameter]!r}; wanted: {wanted}"


def _schema(name: str) -> dict[str, Any]:
    schema = TypeAdapter(TRANSFORMS[name]).json_schema()
    return {**schema, "description": " ".join(schema["description"].split())}


def _as_image(image: np.ndarray, transform: object) -> Image.Image:
    """For transforms that Pillow carries out.

    Raises:
        InputError: not an image that Pillow has.
    """
    if image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise InputError(f"{type(transform).__name__} works on uint8 images with 1 or 3 channels, not on "
                         f"{image.dtype} with {image.shape[2]}; scale comes after it")
    return to_image(np.ascontiguousarray(image))


def _room(image: np.ndarray, size: tuple[int, int], padding: int) -> tuple[int, int]:
    """How far a window can move, down and to the right."""
    height, width = image.shape[:2]
    room = height + 2 * padding - size[0], width + 2 * padding - size[1]
    if min(room) < 0:
        raise BadImage(f"of {height} x {width} pixels is too small to crop {size[0]} x {size[1]} from; "
                       "resize before the crop")
    return room


def _mirror(image: np.ndarray) -> np.ndarray:
    """Left for right; channel by channel, which NumPy copies four times as fast as pixel by pixel."""
    mirrored = np.empty(image.shape, image.dtype)
    for channel in range(image.shape[2]):
        mirrored[:, :, channel] = image[:, ::-1, channel]
    return mirrored


def _window(image: np.ndarray, top: int, left: int, size: tuple[int, int]) -> np.ndarray:
    """The window at (top, left); what lies outside the image is 0."""
    height, width = image.shape[:2]
    bottom, right = top + size[0], left + size[1]
    if top >= 0 and left >= 0 and bottom <= height and right <= width:
        return image[top:bottom, left:right]
    window = np.zeros((*size, image.shape[2]), image.dtype)
    inside = image[max(top, 0):max(bottom, 0), max(left, 0):max(right, 0)]
    y, x = max(-top, 0), max(-left, 0)
    window[y:y + inside.shape[0], x:x + inside.shape[1]] = inside
    return window
