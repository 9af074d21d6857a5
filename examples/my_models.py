"""A user-defined network: `build: my_models:tiny_vit`, with this file beside the spec.

FLEET calls the function with `input_shape` (height, width, channels), `classes`, and the `args` of
the spec. It returns a keras.Model with one output per class, preferably without a softmax.
"""

import keras
from keras import layers


def tiny_vit(input_shape, classes, depth=4, width=64, heads=4, patch=8):
    """Build a small vision transformer: patches as tokens, `depth` layers of attention."""
    image = keras.Input(input_shape)
    words = layers.Conv2D(width, patch, strides=patch)(image)
    words = layers.Reshape((-1, width))(words)
    places = layers.Embedding(words.shape[1], width)(keras.ops.arange(words.shape[1]))
    words = words + places
    for _ in range(depth):
        normal = layers.LayerNormalization()(words)
        words = words + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
        normal = layers.LayerNormalization()(words)
        words = words + layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(normal))
    mean = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(words))
    return keras.Model(image, layers.Dense(classes)(mean))
