"""A network of two outputs as in two_outputs.py, in Keras."""

import keras
from keras import layers


def network(input_shape, outputs, width=16):
    """Build a network; ``outputs`` maps the names of targets to numbers of outputs."""
    images = keras.Input(input_shape)
    features = layers.Conv2D(width, 3, padding="same", activation="relu")(images)
    features = layers.Flatten()(layers.MaxPooling2D()(features))
    features = layers.Dense(4 * width, activation="relu")(features)
    return keras.Model(
        images,
        {
            "digit": layers.Dense(outputs["digit"])(features),
            "ink": layers.Dense(outputs["ink"])(features),
        },
    )
