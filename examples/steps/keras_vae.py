"""The variational autoencoder of vae.py in Keras."""

import math

import keras
import tensorflow as tf
from keras import layers


@keras.saving.register_keras_serializable("fleet_examples")
class Sampling(layers.Layer):
    """Draws a code in training, and returns its mean otherwise."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, mean, log_variance, training=False):
        if not training:
            return mean
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed_generator)
        return mean + noise * keras.ops.exp(log_variance / 2)


def network(input_shape, units=64, latent=8):
    """Return a model with three outputs: logits of pixels, mean and log variance of the code."""
    images = keras.Input(input_shape)
    hidden = layers.Dense(units, activation="relu")(layers.Flatten()(images))
    mean = layers.Dense(latent, name="mean")(hidden)
    log_variance = layers.Dense(latent, name="log_variance")(hidden)
    code = Sampling()(mean, log_variance)
    hidden = layers.Dense(units, activation="relu")(code)
    logits = layers.Dense(math.prod(input_shape), name="logits")(hidden)
    return keras.Model(images, [logits, mean, log_variance])


def step(model, batch, training):
    images = batch["input"]
    logits, mean, log_variance = model(images, training=training)
    pixels = tf.reshape(images, tf.shape(logits))
    error = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(pixels, logits), axis=1)
    divergence = 0.5 * tf.reduce_sum(mean**2 + tf.exp(log_variance) - 1 - log_variance, axis=1)
    return {"loss": error + divergence, "error": error, "divergence": divergence}
