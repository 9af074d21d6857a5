"""Networks for targets of each kind.

FLEET calls them with the shape of an input and the number of outputs.
"""

import keras
from keras import layers


def painter(input_shape, classes, width=16):
    """Build a model with a logit per class and pixel, of increasingly dilated convolutions."""
    image = keras.Input(input_shape)
    hidden = image
    for dilation in (1, 2, 4):
        hidden = layers.Conv2D(width, 3, padding="same", dilation_rate=dilation, activation="relu")(
            hidden
        )
    return keras.Model(image, layers.Conv2D(classes, 1)(hidden))


def tagger(input_shape, outputs, width=16):
    """Build a model with a logit per label."""
    image = keras.Input(input_shape)
    hidden = image
    for step in (1, 2, 2):
        hidden = layers.Conv2D(step * width, 3, padding="same", activation="relu")(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    return keras.Model(image, layers.Dense(outputs)(layers.GlobalMaxPooling2D()(hidden)))
