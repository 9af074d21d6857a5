"""The regressor of two_inputs.py in Keras."""

import keras
from keras import layers


def network(input_shape, outputs=1, units=16):
    """Return a model whose inputs have the names of the data's."""
    photo = keras.Input(input_shape["photo"], name="photo")
    facts = keras.Input(input_shape["facts"], name="facts")
    pixels = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(photo)
    pixels = layers.GlobalAveragePooling2D()(pixels)
    numbers = layers.Dense(units, activation="relu")(facts)
    joined = layers.Dense(units, activation="relu")(layers.Concatenate()([pixels, numbers]))
    return keras.Model([photo, facts], layers.Dense(outputs)(joined))
