"""Model functions that the tests' specs name by import path."""

import os

import keras


def broken(input_shape, classes):
    """Raise an error in a model function."""
    raise ValueError("unknown layer")


class _Explodes(keras.layers.Layer):
    """Raise in training on one rank only, like a GPU without free memory."""

    def call(self, inputs, training=None):
        if training and os.environ.get("OMPI_COMM_WORLD_RANK") == "2":
            raise RuntimeError("only on the second rank")
        return inputs


def explodes_on_rank(input_shape, classes):
    """Build a network whose step fails on rank 2 while rank 1 waits in the exchange."""
    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), _Explodes(), keras.layers.Dense(classes)]
    )


def missing_on_rank(input_shape, classes):
    """Fail to build a network on rank 2 while rank 1 waits for it to join the exchange."""
    if os.environ.get("OMPI_COMM_WORLD_RANK") == "2":
        raise FileNotFoundError("not on this node")
    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]
    )


class _Adds(keras.layers.Layer):
    """Add a sum over the rows of a batch, and a mean, to the loss."""

    def call(self, inputs):
        self.add_loss(
            [
                1e-3 * keras.ops.sum(keras.ops.square(inputs)),
                1e-2 * keras.ops.mean(keras.ops.abs(inputs)),
            ]
        )
        return inputs


def penalised(input_shape, classes):
    """Add penalties of all kinds: on weights, on activities, and of a custom layer."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(
                8,
                "tanh",
                kernel_regularizer=keras.regularizers.L2(0.1),
                activity_regularizer=keras.regularizers.L1(0.1),
            ),
            _Adds(),
            keras.layers.Dense(classes, kernel_regularizer="l1"),
        ]
    )


def three_inputs(input_shape, classes):
    """Return a functional model of an image, facts and tokens."""
    image = keras.Input(input_shape["image"], name="image")
    facts = keras.Input(input_shape["facts"], name="facts")
    tokens = keras.Input(input_shape["tokens"], name="tokens", dtype="int64")
    words = keras.layers.Embedding(8, 4, name="words")(tokens)
    parts = [
        keras.layers.Dense(4, name="pixels")(keras.layers.Flatten()(image)),
        keras.layers.Dense(4, name="numbers")(facts),
        keras.layers.GlobalAveragePooling1D()(words),
    ]
    joined = keras.layers.Activation("relu")(keras.layers.Concatenate()(parts))
    return keras.Model([image, facts, tokens], keras.layers.Dense(classes, name="head")(joined))


class Three(keras.Model):
    """Takes an image, facts and tokens as a mapping."""

    def __init__(self, classes):
        super().__init__()
        self.pixels = keras.layers.Dense(4)
        self.numbers = keras.layers.Dense(4)
        self.words = keras.layers.Embedding(8, 4)
        self.head = keras.layers.Dense(classes)

    def call(self, inputs):
        parts = [
            self.pixels(keras.ops.reshape(inputs["image"], (-1, 16))),
            self.numbers(inputs["facts"]),
            keras.ops.mean(self.words(inputs["tokens"]), axis=1),
        ]
        return self.head(keras.ops.relu(keras.ops.concatenate(parts, axis=1)))


def three_inputs_subclass(input_shape, classes):
    """Return a subclass of Model of an image, facts and tokens."""
    return Three(classes)


def one_of_three_inputs(input_shape, classes):
    """Return a model that takes an image alone."""
    image = keras.Input(input_shape["image"], name="image")
    return keras.Model(image, keras.layers.Dense(classes)(keras.layers.Flatten()(image)))


def _tokens(length, classes):
    tokens = keras.Input((length,), name="tokens", dtype="int64")
    mask = keras.Input((length,), name="tokens_mask", dtype="uint8")
    words = keras.layers.Embedding(8, 4, name="words")(tokens)
    mean = keras.layers.GlobalAveragePooling1D()(words)
    return keras.Model([tokens, mask], keras.layers.Dense(classes, name="head")(mean))


def tokens_of_any_length(input_shape, classes):
    """Return a functional model of tokens, which ignores their mask."""
    return _tokens(None, classes)


def tokens_of_one_length(input_shape, classes):
    """Return such a model that takes rows of the longest length alone."""
    return _tokens(input_shape["tokens"][0], classes)


class _Tokens(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.words = keras.layers.Embedding(8, 4)
        self.head = keras.layers.Dense(classes)

    def call(self, inputs):
        return self.head(keras.ops.mean(self.words(inputs["tokens"]), axis=1))


def tokens_subclass(input_shape, classes):
    """Return a subclass of Model of tokens, which ignores their mask."""
    return _Tokens(classes)
