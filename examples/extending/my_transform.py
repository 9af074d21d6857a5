"""A custom transform: cover a random square, so that no network relies on one position."""


def cover(image, rng, training, size=2):
    if training:
        row, column = (rng.integers(0, side - size + 1) for side in image.shape[:2])
        image[row : row + size, column : column + size] = 0
    return image
