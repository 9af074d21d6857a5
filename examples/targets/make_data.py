"""Write the data of the specs in this folder: `python make_data.py` takes a second.

wine.csv      178 wines: thirteen features, and the cultivar of each
diabetes.csv  442 patients: ten features, disease progression after a year, a made-up clinic
shapes/       200 images with squares and discs, and a mask for each
signs.npz     images with any of three signs, and which of them each has
"""

import csv
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_diabetes, load_wine

SIZE = 32  # pixels of a side


def write_wine():
    wine = load_wine()
    with open("wine.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*wine.feature_names, "cultivar"])
        for features, target in zip(wine.data, wine.target, strict=True):
            table.writerow([*features, ("Barolo", "Grignolino", "Barbera")[target]])


def write_diabetes():
    diabetes = load_diabetes()
    with open("diabetes.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*diabetes.feature_names, "target", "clinic"])
        for number, (features, target) in enumerate(
            zip(diabetes.data, diabetes.target, strict=True)
        ):
            table.writerow(
                [*(f"{value:.6g}" for value in features), target / 100, "ABC"[number % 3]]
            )


def shapes_of(rng):
    """Draw a square and a disc at random positions, each (SIZE, SIZE) bool."""
    y, x = np.mgrid[:SIZE, :SIZE]
    radius, (top, left), (row, column) = (
        rng.integers(4, 8),
        rng.integers(0, SIZE - 10, 2),
        rng.integers(7, SIZE - 7, 2),
    )
    square = (y >= top) & (y < top + 10) & (x >= left) & (x < left + 10)
    return square, (y - row) ** 2 + (x - column) ** 2 < radius**2


def write_shapes(rng, count=200):
    for folder in ("images", "masks"):
        (Path("shapes") / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        square, disc = shapes_of(rng)
        mask = np.where(disc, 240, np.where(square, 120, 0)).astype(np.uint8)
        image = rng.integers(0, 100, (SIZE, SIZE, 3))
        image[square, 0] += 120
        image[disc] = image[disc] // 2 + [0, 60, 120]
        Image.fromarray(image.astype(np.uint8)).save(f"shapes/images/{number:03}.png")
        Image.fromarray(mask).save(f"shapes/masks/{number:03}.png")


def write_signs(rng, count=600):
    has = rng.integers(0, 2, (count, 3))
    images = rng.integers(0, 80, (count, SIZE, SIZE, 1))
    for image, (square, disc, cross) in zip(images, has, strict=True):
        squares, discs = shapes_of(rng)
        folder = rng.integers(2, SIZE - 2)
        image[squares] += 60 * square
        image[discs] += 110 * disc
        image[folder] += 90 * cross
        image[:, folder] += 90 * cross
    np.savez("signs.npz", x=images.clip(0, 255).astype(np.uint8), y=has)


if __name__ == "__main__":
    write_wine()
    write_diabetes()
    write_shapes(np.random.default_rng(0))
    write_signs(np.random.default_rng(1))
