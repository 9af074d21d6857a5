"""Images of digits with two targets by name: the digit, and how much ink it has.

A source of your own for two_outputs.yaml and keras_two_outputs.yaml. The images come with
scikit-learn.
"""

import numpy as np
from sklearn.datasets import load_digits


class Digits:
    def __init__(self):
        digits = load_digits()
        self.images = (digits.images * 15).astype(np.uint8)[..., None]
        self.targets = {"digit": digits.target, "ink": digits.images.mean((1, 2)) / 16}

    def __len__(self):
        return len(self.images)

    def read(self, index):
        return self.images[index]

    def name(self, index):
        return f"digit {index}"

    def order(self, seed, epoch):
        return np.random.default_rng([seed, epoch]).permutation(len(self))


def data(path=None):
    return Digits()
