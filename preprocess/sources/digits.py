"""The built-in data set: scikit-learn's 1,797 handwritten digits as a PNG image folder.

Each digit has 8 x 8 pixels of 17 gray levels. They are written at 32 x 32 pixels, enlarged
bilinearly: with nearest neighbors every 3 x 3 window of a convolution would lie in blocks of one
value.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from launch.errors import InputError, pluralize
from preprocess.base import Source
from preprocess.sources.image_folder import open_image_folder

FOLDER = "data/digits"  # the default path
COUNT = 1797
SIZE = 32


def open_digits(path: str | None = None) -> tuple[Source, Source | None]:
    """Open the digits at ``path``, writing them there first if needed."""
    folder = Path(path or FOLDER)
    write_digits(folder)
    train, validation = open_image_folder(str(folder))
    count = len(train) + (0 if validation is None else len(validation))
    if count != COUNT:
        raise InputError(
            f"{folder} holds {pluralize(count, 'image')} instead of {COUNT} digits; "
            "delete it, and it will be written again"
        )
    return train, validation


def write_digits(folder: str | Path) -> None:
    """Write the digits to ``folder/{train,validation}/<class>/`` unless the folder exists.

    Every fifth sample of a class, in scikit-learn's order, goes to validation. The folder appears
    complete or not at all: it is written under a temporary name beside its place. Several processes
    may do so at the same time. The files are not synced to disk (that takes ten times as long),
    because they can be made again.

    Raises:
        InputError: scikit-learn is not installed, or the folder cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        return
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "builtin:digits comes from scikit-learn; pip install scikit-learn"
        ) from None
    prefix = f".{folder.name}.partial-"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        partial.chmod(0o755)
        _write(load_digits(), partial)
        partial.rename(folder)
    except OSError as error:
        # otherwise another process was faster and removed our partial folder
        if not folder.exists():
            raise InputError(f"cannot write the digits to {folder}: {error.strerror}") from error
    for left_over in folder.parent.glob(prefix + "*"):
        shutil.rmtree(left_over, ignore_errors=True)


def _write(digits: object, folder: Path) -> None:
    images = (digits.images * (255 / 16)).round().astype(np.uint8)  # type: ignore[attr-defined]
    seen = [0] * 10
    for index, (image, digit) in enumerate(zip(images, digits.target, strict=True)):  # type: ignore[attr-defined]
        split = "validation" if seen[digit] % 5 == 4 else "train"
        seen[digit] += 1
        class_folder = folder / split / str(digit)
        class_folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        picture.save(class_folder / f"{index:04}.png")
