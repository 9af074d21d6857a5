"""Write the data of the specs in this folder: `python make_data.py` takes a second.

fish.csv   600 fish: the path of a photo, age, length, and the weight to predict
photos/    the photos: a fish is an ellipse, whose height is in no column
"""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 16  # pixels of a side


def write_fish(rng, count=600):
    Path("photos").mkdir(exist_ok=True)
    y, x = np.mgrid[:SIZE, :SIZE]
    with open("fish.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "age", "length", "weight"])
        for number in range(count):
            age, length, height = rng.uniform(1, 10), rng.uniform(20, 60), rng.uniform(2, 7)
            row, column = rng.uniform(7, 9, 2)
            fish = ((y - row) / height) ** 2 + ((x - column) / 7) ** 2 < 1
            pixels = rng.integers(0, 60, (SIZE, SIZE)) + np.where(fish, 150, 0)
            Image.fromarray(pixels.astype(np.uint8)).save(f"photos/{number:03}.png")
            weight = length / 40 * height / 4 + age / 20
            table.writerow([f"photos/{number:03}.png", f"{age:.3f}", f"{length:.3f}", weight])


if __name__ == "__main__":
    write_fish(np.random.default_rng(0))
