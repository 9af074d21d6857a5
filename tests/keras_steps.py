"""Training steps of Keras that tests name in specs, good and bad."""

import keras
import tensorflow as tf


def two_heads(input_shape, classes, units=3):
    """Return a model with two outputs, as an autoencoder has."""
    from math import prod

    inputs = keras.Input(input_shape)
    code = keras.layers.Dense(units)(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, [keras.layers.Dense(prod(input_shape))(code), code])


def classify(model, batch, training):
    outputs = model(batch["input"], training=training)
    return {
        "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["target"], outputs),
        "accuracy": tf.argmax(outputs, -1) == batch["target"],
    }


def reconstruct(model, batch, training):
    """Return a loss of two terms, one of which is a metric; and a metric of evaluation."""
    restored, code = model(batch["input"], training=training)
    errors = tf.reduce_sum((restored - tf.reshape(batch["input"], tf.shape(restored))) ** 2, -1)
    penalty = tf.reduce_sum(code**2, -1)
    result = {"loss": errors + 0.1 * penalty, "penalty": penalty}
    if not training:
        result["largest"] = tf.reduce_max(tf.abs(code))
    return result


def with_branch(model, batch, training):
    """Return the loss of :func:`classify`, by a branch that depends on a tensor."""
    losses = classify(model, batch, training)["loss"]
    if tf.reduce_mean(losses) > 1e9:
        losses = losses * 0
    return losses


def one_number(model, batch, training):
    return tf.reduce_mean(classify(model, batch, training)["loss"])


def index_as_loss(model, batch, training):
    """Return the index of each sample as its loss, with a gradient of 0."""
    outputs = model(batch["input"], training=training)
    return tf.cast(batch["index"], tf.float32) + 0 * tf.reduce_sum(outputs, -1)


def missing_name(model, batch, training):
    return model(batch["image"])


def wrong_shape(model, batch, training):
    return model(batch["input"])


def no_loss(model, batch, training):
    return {"error": tf.reduce_sum(model(batch["input"]), -1)}


def detached(model, batch, training):
    return tf.stop_gradient(tf.reduce_sum(model(batch["input"]), -1))


def not_a_number(model, batch, training):
    return tf.reduce_sum(model(batch["input"]), -1) * float("nan")
