"""Make the images that benchmarks decode: photographs of CIFAR-10, enlarged.

Smooth noise makes them as hard to decode as photographs of that size.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def make_jpegs(tar: str, folder: Path, count: int = 4000, size: int = 256, seed: int = 0) -> Path:
    """Write ``count`` square JPEG files to ``folder/<class>/``, unless they exist.

    Args:
        tar: An archive of JPEG files ``train/<class>/<number>.jpg``.
        folder: The target folder.
        count: Number of images, the same number of each class.
        size: Pixels per side.
        seed: The seed of the noise.
    """
    if sum(1 for _ in folder.rglob("*.jpg")) == count:
        return folder
    rng = np.random.default_rng(seed)
    written: dict[str, int] = {}
    with tarfile.open(tar) as archive:
        for member in archive:
            split, _, path = member.name.partition("/")
            name = path.partition("/")[0]
            if split != "train" or not member.isfile() or written.get(name, 0) >= count / 10:
                continue
            written[name] = written.get(name, 0) + 1
            content = archive.extractfile(member)
            assert content is not None
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _enlarge(Image.open(io.BytesIO(content.read())), size, rng).save(target, quality=85)
    return folder


def _enlarge(small: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    image = np.asarray(
        small.convert("RGB").resize((size, size), Image.Resampling.BICUBIC), np.float32
    )
    coarse = rng.normal(0, 24, (size // 4, size // 4, 3)).clip(-64, 64) + 128
    noise = Image.fromarray(coarse.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    return Image.fromarray(
        (image + np.asarray(noise, np.float32) - 128).clip(0, 255).astype(np.uint8)
    )
